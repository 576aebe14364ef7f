"""`statewise evaluate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import Device, Folder, Json, TokenizerOption, Weights, Which


def evaluate(
    folder: Folder,
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a source as for train.")] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="Where the files of a data set are, if not where the run had them.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="test (the default), validation or train.", show_default=False)
    ] = None,
    max_items: Annotated[
        int | None,
        typer.Option("--max-items", "--max-tokens", min=1, help="Read only so many rows, or tokens."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the result, where its kind has a picture.")
    ] = None,
    text_file: Annotated[
        str | None, typer.Option(help="Text: a file read as one document instead of a split; - is standard input.")
    ] = None,
    chunk_length: Annotated[
        int | None, typer.Option(help="Text: tokens in a chunk; changes the memory, not the result. Default: 1024.")
    ] = None,
    across_documents: Annotated[
        bool, typer.Option("--across-documents", help="Text: carry the state from one document to the next as well.")
    ] = False,
    streams: Annotated[
        int | None, typer.Option(help="Text: read it as so many pieces side by side, which is faster. Default: 1.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Text: read windows of so many tokens instead of one sequence.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens (default: half a window) or time steps between windows.")
    ] = None,
    compressors: Annotated[
        bool | None, typer.Option(help="Text: what xz -9 and zlib make of the same bytes.", show_default=False)
    ] = None,
    weights: Weights = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Measure how well a model does on a split of its data.

    A language model is told beside general compressors. Its text is read as one sequence with the state carried on,
    with full attention in windows instead.
    """
    from statewise.console import read_prompt, show_evaluation

    if text_file is not None and data is not None:
        raise typer.BadParameter("a text comes from one of --data and --text-file", param_hint="--text-file")
    for name, given in (("--split", split), ("--max-tokens", max_items), ("--data-dir", data_folder)):
        if text_file is not None and given is not None:
            raise typer.BadParameter(
                f"{name} chooses from a corpus that is divided; the file of --text-file is read as a whole",
                param_hint=name,
            )
    text = None if text_file is None else read_prompt(text_file)
    from statewise.model_folder import open_model

    opened = open_model(folder, which=which, device=device, tokenizer=tokenizer)
    if weights is not None:
        opened = opened.with_weights(weights)
    asked = {
        "across_documents": across_documents or None,
        "chunk_length": chunk_length,
        "n_streams": streams,
        "window": window,
        "stride": stride,
        "compressors": compressors,
    }
    options = {name: value for name, value in asked.items() if value is not None}
    if text is not None:
        show_evaluation(*opened.evaluate_file(text, str(text_file), plot=plot, **options), as_json=json)
    else:
        task = opened.task(data, data_folder)
        result = opened.evaluate(task, split or "test", max_items=max_items, plot=plot, **options)
        show_evaluation(*result, as_json=json)
