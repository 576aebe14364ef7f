"""`statewise predict`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from statewise.cli.options import Device, Folder, TokenizerOption, Which

if TYPE_CHECKING:
    from statewise.predict import Answers, Predictor

WAIT_SECONDS = 0.2  # between two looks at a file that grows


def predict(
    folder: Folder,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="x.npz or x.npy: rows. signal.csv: one row, a step a line. Texts: one a line, or .jsonl. "
            "-: standard input, a signal step by step, or texts.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="FILE.csv, FILE.jsonl or FILE.parquet. Default: JSON lines on standard output."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
    array: Annotated[
        str | None, typer.Option(help='Of an .npz: which array, as test_x. Default: "x", or the only one.')
    ] = None,
    embeddings: Annotated[
        bool, typer.Option("--embeddings", help="The pooled features that the head reads, instead of answers.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Of a signal: read on as the file grows, with the state carried.")
    ] = False,
    every: Annotated[
        int | None, typer.Option(min=1, help="Of a stream: answer after every so many steps. Default: 1.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Rows read together.")] = 64,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
) -> None:
    """Ask a trained model: classes with their probabilities, numbers, embeddings, how likely texts are.

    Data are taken as they were stored: the model scales them as in training, and names its classes.
    """
    if out is not None:
        _require_place(out, overwrite)
    if follow and data == "-":
        raise typer.BadParameter("standard input is followed anyway; leave it out", param_hint="--follow")
    from statewise.cli.model_folder import open_model
    from statewise.predict import Predictor

    opened = open_model(folder, which=which, device=device, tokenizer=tokenizer)
    opened.require_answers()
    is_text = opened.reads_text
    predictor = Predictor(
        opened.model,
        tokenizer=opened.tokenizer if is_text else None,
        begins_documents=opened.begins_documents,
    )
    is_signal = getattr(opened.model.config, "d_input", None) is not None
    if follow or (data == "-" and is_signal):
        for name, given in (("--out", out), ("--array", array), ("--embeddings", embeddings or None)):
            if given is not None:
                raise typer.BadParameter("has no place where a signal is followed; leave it out", param_hint=name)
        if not is_signal:
            raise typer.BadParameter("is for signals, and this model reads tokens", param_hint="--follow")
        _stream(predictor, data, every or 1)
        return
    if every is not None:
        raise typer.BadParameter("is for streams: standard input, or --follow", param_hint="--every")
    asks_texts = is_text or (getattr(opened.model.config, "text", None) is not None and not _is_array(data))
    rows = predictor.rows(_texts(data)) if asks_texts else predictor.rows(*_arrays(data, array))
    _answer(predictor, rows, out, overwrite, batch_size, embeddings)


def _require_place(out: Path, overwrite: bool) -> None:
    from statewise.checkpoints.atomic import require_place
    from statewise.predict.files import require_format

    require_format(out)
    if out.exists() and not overwrite:
        _refuse(out)
    require_place(out)


def _refuse(out: Path) -> None:
    from statewise.errors import ConfigError

    raise ConfigError(f"{out} exists already; name a new file, or replace it: --overwrite")


def _arrays(data: str, array: str | None) -> tuple[Any, Any]:
    from statewise.predict.files import read_arrays

    return read_arrays(Path(data), array)


def _is_array(data: str) -> bool:
    return Path(data).suffix in (".npz", ".npy")


def _texts(data: str) -> list[str]:
    from statewise.cli.console import read_prompt
    from statewise.errors import DataError
    from statewise.predict.files import read_texts

    texts = read_texts(read_prompt(data).decode("utf-8-sig", "surrogateescape").splitlines(), data)
    if not texts:
        raise DataError(f"{data} holds no text; expected one a line")
    return texts


def _answer(
    predictor: Predictor, rows: Any, out: Path | None, overwrite: bool, batch_size: int, embeddings: bool
) -> None:
    """A file appears under its name complete, or not at all."""
    from statewise.checkpoints.atomic import write_file
    from statewise.cli.console import counted
    from statewise.predict.files import writer

    with counted("answering") as progress:
        batches = predictor.batches(rows, batch_size=batch_size, progress=progress, embeddings=embeddings)
        if out is None:
            for answers in batches:
                _print(answers)
            return

        def write(hidden: Path) -> None:
            with writer(hidden) as add:
                for answers in batches:
                    add(answers)

        write_file(out, 0, write, None if overwrite else _refuse)
    print(f"{len(rows):,} answered: {out}", file=sys.stderr)


def _stream(predictor: Predictor, data: str, every: int) -> None:
    """An answer after every so many steps, and after the last ones, with how many were read."""
    import numpy as np

    from statewise.predict.files import growing_lines, read_steps

    stream = predictor.stream()
    piece: list[list[float]] = []
    lines: Iterable[str] = sys.stdin if data == "-" else growing_lines(Path(data), _wait)

    def read() -> None:
        answers = stream(np.array([piece]))
        piece.clear()
        if answers is not None:
            _print(answers, {} if answers.step is not None else {"steps": stream.n_read})

    for step in read_steps(lines, "standard input" if data == "-" else data):
        piece.append(step)
        if len(piece) == every:
            read()
    if piece:
        read()


def _wait() -> bool:
    time.sleep(WAIT_SECONDS)
    return True


def _print(answers: Answers, more: dict[str, Any] | None = None) -> None:
    """``more``: of a stream, in the place of the row, of which there is one."""
    import json

    for row in answers.rows():
        if more is not None:
            row.pop("row")
            row = {**more, **row}
        print(json.dumps(row), flush=more is not None)
