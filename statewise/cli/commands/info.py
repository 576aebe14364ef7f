"""`statewise info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import SOURCES, Json, Which


def info(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[SOURCE]", help=f"To describe as well: {SOURCES}", show_default=False),
    ] = None,
    which: Which = "best",
    json: Json = None,
) -> None:
    """Tell versions, devices and kernels; of a run or checkpoint its configuration, parameters and states."""
    from statewise.cli.console import show_info
    from statewise.cli.facts import environment, parts

    record = environment()
    if folder is not None:
        from statewise.cli.model_folder import open_model
        from statewise.models.registry import model_to_dict

        opened = open_model(folder, which=which, device="cpu")
        record["checkpoint"] = str(opened.checkpoint)
        record["format"] = opened.format
        record["configuration"] = model_to_dict(opened.model.config)
        record["parts"] = parts(opened.model)
    show_info(record, as_json=json)
