"""A folder of runs that were trained side by side: stack.json names them, and each is a run folder of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from statewise import __version__
from statewise.checkpoints import RunCheckpoint, list_checkpoints
from statewise.checkpoints.atomic import HIDDEN_NAME
from statewise.checkpoints.files import read_trainer_data
from statewise.checkpoints.folders import RUN_FILE
from statewise.checkpoints.manifest import read_manifest
from statewise.errors import CheckpointError, ConfigError
from statewise.train.config import RunConfig
from statewise.train.metrics import write_bytes
from statewise.train.run_folder import set_aside

STACK_FILE = "stack.json"


def seeds_and_rates(config: RunConfig, seeds: int = 1, lrs: Sequence[float] | None = None) -> dict[str, RunConfig]:
    """The runs of a stack by name: as many seeds, from the configuration's on, each with every learning rate.

    >>> from statewise.train.presets import PRESETS
    >>> list(seeds_and_rates(PRESETS["digits"](), 2))
    ['seed-0', 'seed-1']
    >>> list(seeds_and_rates(PRESETS["digits"](), 1, [1e-3, 3e-3]))
    ['lr-0.001', 'lr-0.003']

    Errors: ConfigError for no seed, a rate that is there twice, and what TrainConfig refuses.
    """
    if seeds < 1:
        raise ConfigError(f"--seeds {seeds} is too small; use at least 1")
    rates = [config.train.optimizer.lr] if lrs is None else list(lrs)
    if not rates or len(set(rates)) < len(rates):
        raise ConfigError(f"--lrs {','.join(map(str, rates))}; give at least one learning rate, each once")
    runs = {}
    for lr in rates:
        for seed in range(config.train.seed, config.train.seed + seeds):
            parts = ([f"lr-{lr:g}"] if lrs is not None else []) + ([f"seed-{seed}"] if seeds > 1 or not lrs else [])
            runs["-".join(parts)] = replace(
                config, train=replace(config.train, seed=seed, optimizer=replace(config.train.optimizer, lr=lr))
            )
    if len(runs) < seeds * len(rates):
        raise ConfigError("two of the learning rates have the same first six digits; give others")
    return runs


def begin_folder(folder: Path, names: Sequence[str]) -> None:
    """A new folder for these runs; also after an attempt that was stopped before any of them began.

    Errors: CheckpointError if there is something else in it, or it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; expected a folder for the runs")
    present = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    earlier = (runs_in(folder) if folder.exists() else None) or []
    if any((folder / name / RUN_FILE).exists() for name in earlier):
        raise CheckpointError(f"{folder} already holds runs; resume them (--resume), or give another folder")
    foreign = sorted(name for name in present - {STACK_FILE, *earlier} if not HIDDEN_NAME.fullmatch(name))
    if foreign:
        raise CheckpointError(f"{folder} is not empty (there is {foreign[0]!r}); give another folder")
    data = {"statewise_version": __version__, "runs": list(names)}
    write_bytes(folder / STACK_FILE, (json.dumps(data, indent=2) + "\n").encode())


def runs_in(folder: Path) -> list[str] | None:
    """The names of the runs in a folder; None if it is not one of several runs.

    Errors: CheckpointError if its stack.json is damaged.
    """
    path = folder / STACK_FILE
    if not path.exists():
        return None
    try:
        names = json.loads(path.read_text("utf-8"))["runs"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); resume each run in {folder} alone") from None
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise CheckpointError(f"{path} names no runs; resume each run in {folder} alone")
    return names


def common_step(folder: Path, names: Sequence[str]) -> int | None:
    """The newest step of which all have a checkpoint, 0 if one has none; None if they have none in common."""
    steps = [{c.step for c in _checkpoints(folder / name)} for name in names]
    return max(set.intersection(*steps), default=None if all(steps) else 0)


def _checkpoints(run: Path) -> list[RunCheckpoint]:
    """Those of a run; none of one that has not begun."""
    return list_checkpoints(run) if (run / RUN_FILE).exists() else []


def go_back(folder: Path, names: Sequence[str], step: int | None) -> list[str]:
    """Moves the checkpoints after this step out of the way: else they would count as the latest and the best.

    Returns a line for each. A stack that was killed while it saved has made them, and makes them again.

    Errors: CheckpointError, before anything is moved, if one was not made by the stack, or there is no such step.
    """
    if step is None:
        raise CheckpointError(
            f"the runs in {folder} have no checkpoint of the same step; go on with each alone, as in "
            f"statewise train --resume {folder / names[0]}"
        )
    newer = [(name, c) for name in names for c in _checkpoints(folder / name) if c.step > step]
    for name, checkpoint in newer:
        if not read_trainer_data(checkpoint.path, read_manifest(checkpoint.path)).get("stacked"):
            raise CheckpointError(
                f"{name} was gone on with alone, to step {checkpoint.step}, and not all others have come further than "
                f"step {step}; go on with each alone, as in statewise train --resume {folder / name}, or move "
                f"{checkpoint.path} elsewhere"
            )
    messages = []
    for name, checkpoint in newer:
        aside = set_aside(checkpoint.path)
        messages.append(
            f"{name} goes back to step {step}, the newest that all runs have; its later checkpoint is now {aside}"
        )
    return messages
