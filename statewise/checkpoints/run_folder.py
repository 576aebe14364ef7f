"""The checkpoints of a run: which ones there are, which is the best, and which ones to delete.

A run folder has ``run.json`` and ``checkpoints/step-*/``. There is no pointer to the latest or the best, which could be
stale. Each checkpoint's trainer/state.json gives its step, the metric of its validation and the result:

    {"step": 500, "metric": "accuracy", "higher_is_better": true, "validation": 0.93, ...}

Runs of language models that began before there were other metrics have ``validation_bits_per_byte`` instead.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from statewise.checkpoints.atomic import locate, remove_folder, remove_hidden
from statewise.checkpoints.files import read_trainer_data
from statewise.checkpoints.folders import CHECKPOINTS, RUN_FILE, require_checkpoint
from statewise.checkpoints.manifest import read_manifest
from statewise.errors import CheckpointError, InputError, excerpt


class RunCheckpoint(NamedTuple):
    """A complete checkpoint of a run."""

    path: Path
    step: int
    validation: float | None  # by the metric; None if it was not evaluated
    metric: str = "bits_per_byte"
    higher_is_better: bool = False


def list_checkpoints(run: str | os.PathLike[str]) -> list[RunCheckpoint]:
    """The checkpoints of a run, oldest step first. Hidden folders are unfinished writes and are ignored.

    Errors:  CheckpointError if it is not a run folder, or if a checkpoint is damaged, with its name: none is skipped
             silently, since it might be the best.
    """
    found, damaged = _scan(Path(run))
    if damaged:
        raise CheckpointError(
            f"{damaged[0]}. Remove that checkpoint, or, if you do not want to continue the run, name the one to use"
        )
    return found


def resolve(folder: str | os.PathLike[str], which: str = "best") -> Path:
    """The folder of a checkpoint: ``folder`` itself, or the latest or best checkpoint of a run.

    The best has the best ``validation``, the earliest if there are ties. If none was evaluated, it is the latest.

    Errors:  CheckpointError if there is none.
    """
    if which not in ("best", "latest"):
        raise InputError(f'which={which!r} is unknown; use "best" or "latest"')
    folder = Path(folder)
    if not (folder / RUN_FILE).exists():
        place = locate(folder)
        require_checkpoint(place)
        return place
    found = list_checkpoints(folder)
    if not found:
        raise CheckpointError(f"the run {folder} has no checkpoint yet")
    return (best_of(found) if which == "best" else found[-1]).path


def best_of(checkpoints: list[RunCheckpoint]) -> RunCheckpoint:
    """The one with the best validation, the earliest of equal ones; without any validation the last."""
    scored = [
        ((-1 if c.higher_is_better else 1) * c.validation, c.step, c) for c in checkpoints if c.validation is not None
    ]
    return min(scored)[2] if scored else checkpoints[-1]


def prune(run: str | os.PathLike[str], keep_last: int, keep_best: bool = True) -> list[Path]:
    """Deletes all checkpoints but the last ``keep_last`` (at least one) and the best; returns the deleted paths.

    A damaged checkpoint is left alone.
    """
    found, _ = _scan(Path(run))
    kept = set(found[-max(keep_last, 1) :])
    if keep_best and found:
        kept.add(best_of(found))
    dropped = [checkpoint.path for checkpoint in found if checkpoint not in kept]
    for path in dropped:
        remove_folder(path)
    return dropped


def clean_unfinished(run: str | os.PathLike[str]) -> list[Path]:
    """Deletes what killed processes left half-written; returns the deleted paths.

    Only the process that owns the run may call this: it would delete what another process is writing.
    """
    run = Path(run)
    return remove_hidden(run) + remove_hidden(run / CHECKPOINTS)


def _scan(run: Path) -> tuple[list[RunCheckpoint], list[CheckpointError]]:
    if not (run / RUN_FILE).exists():
        raise CheckpointError(f"{run} is not a run folder: it has no {RUN_FILE}")
    found, damaged = [], []
    for path in sorted((run / CHECKPOINTS).glob("step-*")):
        try:
            found.append(_describe(path, read_trainer_data(path, read_manifest(path))))
        except CheckpointError as error:
            if path.exists():  # and not deleted meanwhile by a run that goes on
                damaged.append(error)
    return sorted(found, key=lambda checkpoint: checkpoint.step), damaged


def _describe(path: Path, data: Mapping[str, Any]) -> RunCheckpoint:
    """What the data of a trainer say of their checkpoint."""
    key = "validation" if "metric" in data else "validation_bits_per_byte"
    step, score = data.get("step"), data.get(key)
    if type(step) is not int or not (score is None or type(score) in (int, float)):
        raise CheckpointError(f"{path} has no step, or its {key} is not a number")
    metric, higher = data.get("metric", "bits_per_byte"), data.get("higher_is_better", False)
    if type(metric) is not str or type(higher) is not bool:
        raise CheckpointError(
            f"{path} has a metric={excerpt(metric)}, higher_is_better={excerpt(higher)}; expected a name and true or "
            "false"
        )
    return RunCheckpoint(path, step, score, metric, higher)
