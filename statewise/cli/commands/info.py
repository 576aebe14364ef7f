"""`statewise info`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import SOURCES, Json, Which


def info(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[SOURCE]", help=f"What to describe: {SOURCES}", show_default=False),
    ] = None,
    which: Which = "best",
    json: Json = None,
) -> None:
    """Show versions, devices and kernels, or describe a run, a checkpoint or a published model."""
    from statewise.cli.console import show_info
    from statewise.cli.facts import environment, parts

    record = environment()
    if folder is not None and (published := _published(folder)) is not None:
        from statewise.cli.published import describe_published

        record |= describe_published(published)
    elif folder is not None:
        from statewise.cli.model_folder import open_model
        from statewise.explain import explain
        from statewise.models.language_model import LanguageModel
        from statewise.models.registry import model_to_dict

        opened = open_model(folder, which=which, device="cpu")
        record["checkpoint"] = str(opened.checkpoint)
        record["format"] = opened.format
        record["configuration"] = model_to_dict(opened.model.config)
        record["parts"] = parts(opened.model)
        if isinstance(opened.model, LanguageModel):
            record["generates"] = str(explain(opened.model))
    show_info(record, as_json=json)


def _published(source: Path) -> Path | None:
    """Where a model of others is, of whose files the headers are enough; None for one of ours."""
    from statewise.checkpoints.convert.source import OUR_TYPE, find_source, is_published
    from statewise.checkpoints.loading import locate_source

    path = locate_source(source)
    if not is_published(path) or find_source(path).config.get("model_type") == OUR_TYPE:
        return None
    return path
