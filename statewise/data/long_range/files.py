"""Where the files of a task lie, and what to say if they do not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from statewise.data.long_range.config import TASKS, LongRangeDataConfig
from statewise.errors import DataError


def locate(config: LongRangeDataConfig, holds: Callable[[Path], bool]) -> Path:
    """The first of the task's folders for which ``holds`` is true.

    Errors:  DataError if there is none: what was looked for, where, and where it comes from.
    """
    facts = TASKS[config.task]
    if config.folder is None:
        raise DataError(f"the task {config.task!r} reads {facts.files}, from {facts.source}; set data.folder to them")
    folder = Path(config.folder).expanduser()
    for name in facts.folders:
        if holds(folder / name):
            return folder / name
    places = ", ".join(name for name in facts.folders if name != ".")
    below = f", and below it in {places}," if places else ""
    raise DataError(
        f"no {config.task} in {folder}: looked there{below} for {facts.files}; they come from {facts.source}: set "
        "data.folder (--data-dir) to them"
    )
