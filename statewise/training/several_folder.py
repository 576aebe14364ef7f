"""A folder of several runs: stack.json names them and says what they are, and each is a run folder of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from statewise import __version__
from statewise.checkpoints.atomic import HIDDEN_NAME
from statewise.checkpoints.folders import RUN_FILE
from statewise.configuration import to_dict
from statewise.errors import CheckpointError, ConfigError
from statewise.training.config import CHANGEABLE_ON_RESUME, RunConfig
from statewise.training.metrics import write_bytes
from statewise.training.run_folder import differences, read_run, run_from_dict

RUNS_FILE = "stack.json"  # its name in version 0.1.0, which trained the runs as one stacked model


def seeds_and_rates(config: RunConfig, seeds: int = 1, lrs: Sequence[float] | None = None) -> dict[str, RunConfig]:
    """Runs by name: as many seeds, from the configuration's on, each with every learning rate.

    >>> from statewise.training.presets import PRESETS
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
        raise ConfigError("two of the learning rates have the same first six digits; change one of them")
    return runs


def begin_folder(folder: Path, runs: Mapping[str, RunConfig]) -> None:
    """A new folder for these runs; also after an attempt that was stopped before any of them began.

    Errors: CheckpointError if there is something else in it, or it cannot be written.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; expected a folder for the runs")
    present = {entry.name for entry in folder.iterdir()} if folder.exists() else set()
    earlier = (runs_in(folder) if folder.exists() else None) or []
    if any((folder / name / RUN_FILE).exists() for name in earlier):
        raise CheckpointError(f"{folder} already holds runs; resume them (--resume), or give another folder")
    foreign = sorted(name for name in present - {RUNS_FILE, *earlier} if not HIDDEN_NAME.fullmatch(name))
    if foreign:
        raise CheckpointError(f"{folder} is not empty (it holds {foreign[0]!r}); give another folder")
    whole = {name: to_dict(replace(run, data=run.data.with_absolute_paths())) for name, run in runs.items()}
    data = {
        "statewise_version": __version__,
        "runs": list(runs),
        "configurations": whole,
        "sha256": _digest(whole),
    }
    write_bytes(folder / RUNS_FILE, (json.dumps(data, indent=2, allow_nan=False) + "\n").encode())


def runs_in(folder: Path) -> list[str] | None:
    """The names of the runs in a folder; None if it is not one of several runs.

    Errors: CheckpointError if its stack.json is damaged.
    """
    data = _read(folder)
    if data is None:
        return None
    names = data["runs"]
    if not isinstance(names, list) or not names or not all(isinstance(n, str) and Path(n).name == n for n in names):
        raise CheckpointError(f"{folder / RUNS_FILE} names no runs; resume each run in {folder} separately")
    return names


def read_one_of(folder: Path, name: str) -> RunConfig:
    """A run of the folder, also one that has not begun: that is as stack.json says, if it is not one of 0.1.0.

    Errors: CheckpointError if there is none, it cannot be read, or stack.json was edited: the runs would differ in more
            than what they were begun to differ in.
    """
    data = {} if (folder / name / RUN_FILE).exists() else _read(folder) or {}
    known = data.get("configurations")
    if not isinstance(known, dict) or name not in known:
        return read_run(folder / name)
    if data.get("sha256") != _digest(known):
        raise CheckpointError(
            f"{folder / RUNS_FILE} was edited, and {name} has not begun: it would not be what the others were begun "
            "with; undo the edit, or train it in a folder of its own"
        )
    return run_from_dict(known[name], where=f"{folder / RUNS_FILE}: {name}")


def require_as_begun(folder: Path, runs: Mapping[str, RunConfig]) -> None:
    """Before runs continue together: each is still what stack.json says of its name. A folder of 0.1.0 does not say.

    Errors: ConfigError for one that was begun again with other settings, such as another learning rate after it had
            diverged: under its old name it would count as a seed of that rate.
    """
    known = (_read(folder) or {}).get("configurations")
    if not isinstance(known, dict):
        return
    for name, run in runs.items():
        if name not in known:
            continue
        begun = run_from_dict(known[name], where=f"{folder / RUNS_FILE}: {name}")
        for field, (was, now) in differences(begun, run).items():
            if field not in CHANGEABLE_ON_RESUME:
                raise ConfigError(
                    f"{name} was begun with {field} {was!r}, and now has {now!r}: it is no longer one of the runs in "
                    f"{folder}; train that in a folder of its own. Without {folder / name} it begins again as it was"
                )


def _digest(configurations: Any) -> str:
    return hashlib.sha256(json.dumps(configurations, sort_keys=True).encode()).hexdigest()


def _read(folder: Path) -> dict[str, Any] | None:
    path = folder / RUNS_FILE
    if not path.exists():
        return None
    try:
        data: dict[str, Any] = json.loads(path.read_text("utf-8"))
        data["runs"]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); resume each run in {folder} separately") from None
    return data
