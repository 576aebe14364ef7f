"""`statewise convert`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import SOURCES, Json, Which


def convert(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help=SOURCES, show_default=False)],
    target: Annotated[
        Path, typer.Argument(metavar="TARGET", help="A new folder, or for gguf a new file.", show_default=False)
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="statewise, mamba_ssm, transformers, h3, s4, s4d, rwkv, fla or gguf. Default: gguf for a TARGET that "
            "is named *.gguf, else statewise.",
            show_default=False,
        ),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="float32, float16 or bfloat16. Default: the source's.", show_default=False),
    ] = None,
    type: Annotated[
        str | None,
        typer.Option(
            help="Type of the matrices in gguf: q8_0, q5_1, q5_0, q4_1, q4_0, mxfp4, tq2_0, tq1_0, bf16, f16 or f32.",
            show_default=False,
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A tokenizer.json, bytes, or none. Default: the source's, if it has one.",
            show_default=False,
        ),
    ] = None,
    which: Which = "best",
    json: Json = None,
) -> None:
    """Convert a model: a published one into a checkpoint, or a checkpoint into a format that others read."""
    from statewise.cli.console import counted, show_conversion
    from statewise.cli.conversion import convert_model

    with counted("tensors") as progress:
        record = convert_model(
            source, target, to=to, dtype=dtype, type=type, tokenizer=tokenizer, which=which, progress=progress
        )
    show_conversion(record, as_json=json)
