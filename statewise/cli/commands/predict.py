"""`statewise predict`."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statewise.cli.answer_files import print_answers, require_answer_file, require_other_than, write_answers
from statewise.cli.options import Device, Exact, Folder, TokenizerOption, Which, device_for, may_be_exact

if TYPE_CHECKING:
    from statewise.predict import Predictor

WAIT_SECONDS = 0.2  # between two looks at a file that grows


@may_be_exact
def predict(
    folder: Folder,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="What the model was trained on: a folder of pictures or sounds, or one of them; a table. x.npz or "
            "x.npy: rows. signal.csv: one row, a step a line. Texts: one a line, or .jsonl. -: standard input, a "
            "signal step by step, or texts.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="FILE.csv, FILE.jsonl or FILE.parquet. Default: JSON lines on standard output."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
    array: Annotated[
        str | None, typer.Option(help='Which array of an .npz, such as test_x. Default: "x", or the only one.')
    ] = None,
    keep_field: Annotated[
        list[str] | None,
        typer.Option(
            "--keep-field",
            metavar="COLUMN",
            help="A column of DATA to have beside the answers, such as an id. May be repeated.",
            show_default=False,
        ),
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="The pooled features that the head reads, instead of answers.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="For a signal: keep reading as the file grows, carrying the state.")
    ] = False,
    every: Annotated[
        int | None, typer.Option(min=1, help="For a stream: answer after every EVERY steps. Default: 1.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows read together.")] = 64,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    exact: Exact = False,
) -> None:
    """Predict with a trained model: classes with their probabilities, numbers, embeddings, how likely texts are.

    Give the data as they were stored: the model scales them as in training, and names its classes.
    """
    if out is not None:
        require_other_than(out, "--out", data)
        require_answer_file(out, overwrite)
    if follow and data == "-":
        raise typer.BadParameter("standard input is always followed; leave it out", param_hint="--follow")
    from statewise.cli.console import counted
    from statewise.cli.model_folder import open_model
    from statewise.errors import ConfigError
    from statewise.models.text_input import needs_tokenizer
    from statewise.predict import Predictor

    opened = open_model(folder, which=which, device=device_for(None, device, exact), tokenizer=tokenizer)
    opened.require_answers()
    if opened.forecasts:
        raise ConfigError(f"{folder} holds a {type(opened.model).__name__}; use statewise forecast {folder} {data}")
    is_text = opened.reads_text
    predictor = Predictor(
        opened.model,
        tokenizer=opened.tokenizer if is_text or needs_tokenizer(opened.model.config) else None,
        begins_documents=opened.begins_documents,
    )
    is_signal = getattr(opened.model.config, "d_input", None) is not None
    if follow or (data == "-" and is_signal):
        for name, given in (("--out", out), ("--array", array), ("--embeddings", embeddings or None)):
            if given is not None:
                raise typer.BadParameter("does not work with a stream; leave it out", param_hint=name)
        if not is_signal:
            raise typer.BadParameter("is for signals, but this model reads tokens; leave it out", param_hint="--follow")
        _stream(predictor, data, every or 1, keep_field or [])
        return
    if every is not None:
        raise typer.BadParameter("is for streams: standard input, or --follow", param_hint="--every")
    asked = _standard_input() if data == "-" else Path(data)
    rows = predictor.rows(asked, array=array, keep_fields=keep_field or [])
    with counted("answering") as progress:
        batches = predictor.batches(rows, batch_size=batch_size, progress=progress, embeddings=embeddings)
        write_answers(batches, out, overwrite)
    if out is not None:
        print(f"{len(rows):,} answered: {out}", file=sys.stderr)


def _standard_input() -> Sequence[str]:
    from statewise.errors import DataError
    from statewise.predict.texts import texts_of

    texts = texts_of(sys.stdin.buffer.read())
    if not texts:
        raise DataError("standard input holds no text; expected one on each line")
    return texts


def _stream(predictor: Predictor, data: str, every: int, keep: Sequence[str]) -> None:
    """An answer after every ``every`` steps, and after the last ones, with how many were read, and what the columns to
    keep say of the last step, or of each one that has an answer."""
    from dataclasses import replace

    import numpy as np

    from statewise.errors import DataError
    from statewise.predict.files import growing_lines
    from statewise.predict.signals import read_steps

    stream = predictor.stream()
    piece: list[list[float]] = []
    cells: list[list[str]] = []
    name = "standard input" if data == "-" else data
    lines = _lines_of_standard_input() if data == "-" else growing_lines(Path(data), _wait)

    def read() -> None:
        answers = stream(np.array([piece]))
        kept = np.array(cells, object)[-1 if answers is not None and answers.step is None else 0 :]
        piece.clear()
        cells.clear()
        if answers is not None:
            answers = replace(answers, kept=dict(zip(keep, kept.T)))
            print_answers(answers, {} if answers.step is not None else {"steps": stream.n_read})

    for step, kept_cells in read_steps(lines, name, stream.model.config, keep=keep):
        piece.append(step)
        cells.append(kept_cells)
        if len(piece) == every:
            read()
    if piece:
        read()
    if not stream.n_read:
        raise DataError(f"{name} holds no numbers; expected a step on each line")


def _lines_of_standard_input() -> Iterable[str]:
    """As they come. Bytes that are not UTF-8 are replaced, so that they match neither a number nor a column's name."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="replace")
    return sys.stdin


def _wait() -> bool:
    time.sleep(WAIT_SECONDS)
    return True
