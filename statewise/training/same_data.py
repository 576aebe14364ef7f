"""Whether the data of a run are still those that it was trained on; its splits mean something only then."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statewise.checkpoints.files import read_trainer_data
from statewise.checkpoints.manifest import TRAINER_DATA, read_manifest
from statewise.data.base import DataConfig
from statewise.data.labelled_config import OWN
from statewise.errors import DataError
from statewise.training.config import RunConfig
from statewise.training.tasks import Task, open_task


def open_trained(run: RunConfig, folder: Path, checkpoint: Path) -> Task[Any, Any]:
    """The task of a run in ``folder`` on its own data, to score a checkpoint of it.

    Errors:  DataError if the data have changed since, so that rows that were trained on may be in other splits now;
             not where a row's split hangs on the row alone.
    """
    task, manifest = open_task(run), read_manifest(checkpoint)
    if task.divided_by_content or TRAINER_DATA not in manifest.files:
        return task
    place, remedy = place_of(run.data), "put them back as they were"
    if place is not None and hasattr(run.data, "source"):
        words = f"statewise evaluate {shlex.quote(str(folder))} --data {shlex.quote(place)}"
        remedy += f", or score the data as they are now, which may include rows that were trained on: {words}"
    require_same_data(task, as_written_now(read_trainer_data(checkpoint, manifest)), checkpoint, remedy)
    return task


def require_same_data(task: Task[Any, Any], recorded: Mapping[str, Any], checkpoint: Path, remedy: str) -> None:
    """``recorded``: what the trainer of a checkpoint wrote, by today's names. Errors: DataError with the ``remedy``."""
    if recorded["data"] == task.fingerprint:
        return
    place = place_of(task.run.data)
    at = "" if place is None else f" at {place!r}"
    raise DataError(
        f"the {task.noun}{at} is not the one that {checkpoint} was trained on: files were added, removed or changed; "
        f"{remedy}"
    )


def place_of(data: DataConfig) -> str | None:
    """What names the data: their file or folder, else the name of the data set; None where they are drawn."""
    source: str | None = getattr(data, "source", None)
    folder: str | None = getattr(data, "folder", None)
    return folder if folder is not None and source in (None, *OWN) else source


def as_written_now(data: Mapping[str, Any]) -> dict[str, Any]:
    """A trainer's data with today's names, also of a language model's run that began before there were other tasks."""
    former = {"validation_bits_per_byte": "validation", "best_bits_per_byte": "best", "corpus": "data"}
    return {"held": 0, **{former.get(name, name): value for name, value in data.items()}}
