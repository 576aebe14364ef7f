"""Training curves out of metrics.jsonl, as numbers: of one run, or of the runs of a folder and their mean."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from statewise.errors import CheckpointError, ConfigError, excerpt
from statewise.plots.curves import AXES, Axis, Curve, RunCurves
from statewise.training.course import DIVERGED
from statewise.training.metrics import read_metrics
from statewise.training.run_folder import METRICS_FILE, read_run
from statewise.training.several_folder import runs_in
from statewise.training.tasks import task_type

LARGEST = 1e300  # of what can be drawn


def read_curves(folder: Path | str, x: Axis = "steps", name: str | None = None) -> list[RunCurves]:
    """The curves of a run; of a folder of several runs one for each learning rate, the mean of its seeds.

    While seeds train, some are ahead of others: the mean ends where the slowest one is. Those that diverged do not
    count.

    name: instead of the folder's

    Errors: CheckpointError where there is no run, or none that has begun; ConfigError for another ``x``.
    """
    if x not in AXES:
        raise ConfigError(f"x={x!r} is unknown; use one of {', '.join(AXES)}")
    folder = Path(folder)
    name = folder.resolve().name if name is None else name
    names = runs_in(folder)
    if names is None:
        found = [_of_run(folder, x, name)]
    else:
        begun = [one for one in names if (folder / one / METRICS_FILE).exists()]
        groups: dict[str, list[RunCurves]] = {}
        for one in begun:
            rate = re.sub(r"-?seed-\d+$", "", one)
            groups.setdefault(f"{name} {rate}".rstrip(), []).append(_of_run(folder / one, x, one))
        found = [mean_of(runs, group) for group, runs in groups.items()]
    if not any(run.training or run.validation for run in found):
        raise CheckpointError(f"{folder} has no line of metrics yet; wait for one, or resume the run")
    return found


def mean_of(runs: Sequence[RunCurves], name: str) -> RunCurves:
    """Several runs of one task as one, without those that diverged, unless all did, or have no line yet."""
    runs = [run for run in runs if run.training or run.n_diverged] or runs
    lasting = [run for run in runs if not run.n_diverged]
    counted = lasting or runs
    found = replace(counted[0], name=name, n_runs=len(lasting), n_diverged=len(runs) - len(lasting))
    if len(counted) == 1:
        return found
    training, validation = (_means([getattr(run, part) for run in counted]) for part in ("training", "validation"))
    return replace(found, training=training, validation=validation)


def _of_run(folder: Path, x: Axis, name: str) -> RunCurves:
    task, path = task_type(read_run(folder)), folder / METRICS_FILE
    kinds: dict[str, list[dict[str, Any]]] = {}
    for record in read_metrics(path):
        kinds.setdefault(str(record.get("kind")), []).append(record)
    training = kinds.get("train", [])
    steps = [0.0, *(_number(record, "step", path) for record in training)]
    units = [0.0, *(_number(record, task.unit, path) for record in training)]

    def curves(records: Sequence[Mapping[str, Any]]) -> dict[str, Curve]:
        if not records:
            return {}
        place = np.array([_number(record, "seconds" if x == "time" else "step", path) for record in records])
        if x == "units":  # a look at the validation split counts under this name what it has read itself
            place = np.interp(place, steps, units)
        names = [name for name, value in records[0].items() if isinstance(value, (int, float)) and name != "best"]
        return {
            name: Curve(place, np.array([_number(record, name, path) for record in records]))
            for name in names
            if all(name in record for record in records)
        }

    return RunCurves(
        name=name,
        metric=task.metric,
        unit=task.unit,
        higher_is_better=task.higher_is_better,
        training=curves(training),
        validation=curves(kinds.get("evaluation", [])),
        n_runs=int(DIVERGED not in kinds),
        n_diverged=int(DIVERGED in kinds),
    )


def _number(record: Mapping[str, Any], name: str, path: Path) -> float:
    value = record.get(name)
    if not isinstance(value, (int, float)) or not abs(value) < LARGEST:
        raise CheckpointError(f"{path} is damaged: in the line of step {record['step']} {name} is {excerpt(value)}")
    return float(value)


def _means(runs: Sequence[Mapping[str, Curve]]) -> dict[str, Curve]:
    return {name: _mean([run[name] for run in runs]) for name in runs[0] if all(name in run for run in runs)}


def _mean(curves: Sequence[Curve]) -> Curve:
    """Point by point where the runs have equally many; else where all have some, with lines between the points."""
    if len({len(curve.x) for curve in curves}) == 1:
        x, values = np.mean([curve.x for curve in curves], axis=0), np.stack([curve.y for curve in curves])
    else:
        x = np.unique(np.concatenate([curve.x for curve in curves]))
        x = x[(x >= max(curve.x[0] for curve in curves)) & (x <= min(curve.x[-1] for curve in curves))]
        values = np.stack([np.interp(x, curve.x, curve.y) for curve in curves])
    return Curve(x, values.mean(axis=0), values.min(axis=0), values.max(axis=0))
