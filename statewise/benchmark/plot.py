"""Cost against length, one line for each side."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from statewise.benchmark.case import Workload
from statewise.errors import ConfigError, DataError
from statewise.plots.style import figure, line, marker, require_plot


def require_cost_plot(workload: Workload, path: Path, *, quick: bool = False) -> None:
    """What can be refused before anything is measured.

    Errors:  InputError without matplotlib; ConfigError for a file that cannot be written, or a workload at one length.
    """
    lengths: dict[str, set[int]] = defaultdict(set)
    for case in workload.cases(quick):
        lengths[_kind(case.name)].add(case.length)
    if all(len(some) < 2 for some in lengths.values()):
        raise ConfigError(f"--plot: {workload.name} is measured at one length only, so there is nothing to plot")
    require_plot(path)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"--plot {path} cannot be written; name a file in a folder where you may write")


def plot_cost(record: Mapping[str, Any], path: Path) -> None:
    """Microseconds of a step against the number of steps, both logarithmic; forward and backward side by side.

    record: of :func:`~statewise.benchmark.run.run_workload`

    Errors:  DataError for a workload measured at one length; otherwise as :func:`require_cost_plot`.
    """
    lines = _lines(record["cases"])
    if not any(len(points) > 1 for sides in lines.values() for points in sides.values()):
        raise DataError(f"{record['workload']} is measured at one length only, so there is nothing to plot")
    drawn = {kind: sides for kind, sides in lines.items() if any(len(points) > 1 for points in sides.values())}
    with figure(path, 5 * len(drawn), 4) as page:
        panels = page.subplots(1, len(drawn), squeeze=False, sharey=True)[0]
        for axes, (kind, sides) in zip(panels, drawn.items()):
            for number, (side, points) in enumerate(sides.items()):
                lengths, costs = zip(*sorted(points.items()))
                look = {**line(number), **marker(number), "linewidth": 2 if side.startswith("ours") else 1}
                axes.plot(lengths, costs, label=side, **look)
            axes.set(xscale="log", yscale="log", xlabel="length", title=kind)
            axes.set_xscale("log", base=2)
        panels[0].set_ylabel("microseconds per step")
        panels[-1].legend(fontsize="small")
        page.suptitle(f"{record['workload']}: {record['cases'][0]['setting']}", fontsize="medium")


def _lines(cases: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, dict[int, float]]]:
    """kind of case -> side -> length -> microseconds a step."""
    lines: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for case in cases:
        kind = _kind(case["name"])
        for side, found in case["sides"].items():
            if "milliseconds" in found:
                lines[kind][side][case["length"]] = 1e3 * found["milliseconds"] / case["length"]
    return lines


def _kind(name: str) -> str:
    """The name of a case without its length: "256 x 4,096, forward" is "256 channels, forward"."""
    number = r"\d[\d,]*\b"
    return (
        re.sub(rf"L={number}|^{number} steps", "", re.sub(rf" x {number}", " channels", name))
        .replace(", ,", ",")
        .strip(", ")
    )
