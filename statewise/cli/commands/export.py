"""`statewise export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import Folder, Which


def export(
    source: Folder,
    target: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="FILE.onnx, or FILE.pt2 for a step as a program of torch.export.", show_default=False
        ),
    ],
    part: Annotated[
        str | None,
        typer.Option(
            help="What the file does: step (one step, on a state), prefill (a language model reads a prompt), stream "
            "(a classifier or regressor reads pieces as they arrive) or whole (it reads whole rows). Without it, the "
            "step of a language model, and whole rows of all others.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="How many rows a step has, which is fixed; 1 if not given.", show_default=False),
    ] = None,
    which: Which = "best",
) -> None:
    """Write a model for other runtimes, as ONNX."""
    from statewise.cli.model_folder import open_model
    from statewise.export import export_file

    source_model = open_model(source, which=which, device="cpu")
    source_model.require_answers()
    written = export_file(source_model.model, target, part=part, batch=batch)
    rows = f"batch {1 if batch is None else batch}" if written.part == "step" else "any number of rows of any length"
    print(f"{written.path}: {written.part}, {written.n_bytes:,} bytes, {written.n_operations:,} operations, {rows}")
    print(f"its outputs differ from the model's by {written.largest_difference:.1e} of the largest")
