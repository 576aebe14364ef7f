"""What trained models gave, for tables and plots. A run that diverged has a word instead of its number."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from statewise.reproduce.training import Trial, is_diverged

LOST = "diverged"


def runs_of(parts: Iterable[Trial]) -> list[Trial]:
    """The runs of all seeds of some parts."""
    return [run for part in parts for run in part["seeds"].values()]


def each(runs: Iterable[Trial], name: str, lost: str | None = LOST) -> list[Any]:
    """The value of each run; ``lost`` for one that diverged."""
    return [lost if is_diverged(run) else run.get(name) for run in runs]


def known(values: Iterable[Any]) -> list[float]:
    """Those that are numbers."""
    return [value for value in values if isinstance(value, (int, float))]


def mean(values: Sequence[Any], lost: str | None = LOST) -> Any:
    """The mean of values if all are numbers, else ``lost``."""
    return statistics.fmean(values) if values and len(known(values)) == len(values) else lost


def row_of(name: str, parts: Sequence[Trial], published: float | None = None) -> dict[str, Any]:
    """What tables say of a model, from what was found of its seeds, in one part or in several."""
    runs = runs_of(parts)
    accuracy = each(runs, "accuracy")
    return {
        "name": name,
        "published": published,
        "ours": mean(accuracy),
        "accuracy": accuracy,
        "validation": each(runs, "validation"),
        "watched": [LOST if is_diverged(run) else max(run["course"], default=0.0) for run in runs],
        "best": max(known(accuracy), default=None),
        **{what: each(runs, what, None) for what in ("steps", "epochs", "seconds", "chance")},
        "weights": parts[0]["parameters"],
        "cpu": sum(part["cpu_seconds"] for part in parts),
        "ms": mean(known(part["ms_per_step"] for part in parts), None),
        "whole": [run for run in runs if not is_diverged(run)],
        "lost": any(map(is_diverged, runs)),
    }


def label(row: Mapping[str, Any]) -> str:
    """For a plot."""
    return f"{row['name']} (a seed diverged)" if row["lost"] else str(row["name"])
