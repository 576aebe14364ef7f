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
            metavar="FILE", help="FILE.onnx, or FILE.pt2 for a program of torch.export.", show_default=False
        ),
    ],
    batch: Annotated[int, typer.Option(help="How many rows a step has: an exported one has a fixed number.")] = 1,
    which: Which = "best",
) -> None:
    """Write a language model's decoding step for other runtimes."""
    from statewise.cli.model_folder import open_model
    from statewise.export import export_file

    model = open_model(source, which=which, device="cpu").language_model
    written = export_file(model, target, batch=batch)
    print(f"{written.path}: {written.n_bytes:,} bytes, {written.n_operations:,} operations a step, batch {batch}")
    print(f"its logits differ from the model's by {written.largest_difference:.1e} of the largest")
