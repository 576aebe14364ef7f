"""Training curves: what is drawn of a run, and how."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from statewise.errors import ConfigError, require_least
from statewise.plots.style import line, marker, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Axis = Literal["steps", "time", "units"]
AXES = ("steps", "time", "units")


class Curve(NamedTuple):
    """Values, and where they are on the horizontal axis.

    low, high: the least and the greatest of several runs, where y is their mean; None: of one run
    """

    x: np.ndarray
    y: np.ndarray
    low: np.ndarray | None = None
    high: np.ndarray | None = None


@dataclass(frozen=True)
class RunCurves:
    """What metrics.jsonl says of a run, or of several as one.

    metric:     the task's, as "accuracy"        unit: what the task counts, as "tokens"
    training:   by name, as "loss", "lr" and, if it follows from the loss, the metric
    validation: by name
    n_runs:     how many runs these are the mean of
    n_diverged: how many diverged, which are left out unless all did
    """

    name: str
    metric: str
    unit: str
    higher_is_better: bool
    training: Mapping[str, Curve]
    validation: Mapping[str, Curve]
    n_runs: int = 1
    n_diverged: int = 0

    @property
    def best(self) -> float | None:
        """The best value of the metric on the validation split; None before the first evaluation."""
        values = self.validation[self.metric].y if self.metric in self.validation else ()
        return float((max if self.higher_is_better else min)(values)) if len(values) else None


def smoothed(y: np.ndarray, n: int) -> np.ndarray:
    """The mean of ``n`` values around each; near the ends of as many as there are on both sides.

    >>> smoothed(np.array([0.0, 3.0, 6.0, 0.0]), 3).tolist()
    [0.0, 3.0, 3.0, 0.0]
    """
    place = np.arange(len(y))
    half = np.minimum(np.minimum(place, place[::-1]), n // 2)
    sums = np.concatenate([[0.0], np.cumsum(y, dtype=np.float64)])
    return (sums[place + half + 1] - sums[place - half]) / (2 * half + 1)


@styled
def training_curves(curves: Sequence[RunCurves], *, x: Axis = "steps", smooth: int = 1, log_y: bool = False) -> Figure:
    """The loss, the task's metric and the learning rate of runs, one below the other.

    The figure's ``axes`` are these panels, in this order; there is no panel for a metric that is the loss. The mean of
    several seeds is in a band from the least to the greatest.

    curves: of :func:`statewise.training.curves.read_curves`, which reads them from a run's folder
    x:      what they were read against
    smooth: shows means over this many lines of metrics.jsonl, and for a single run the lines themselves faintly
    log_y:  the loss on a logarithmic scale, and the metric if less of it is better

    Errors: InputError if matplotlib is not installed; ConfigError for no runs, for runs of different tasks, or a
            logarithm of what is not positive.
    """
    require_least(ConfigError, smooth=(smooth, 1))
    if not curves:
        raise ConfigError("no runs to plot were given; give the folder of at least one")
    first = curves[0]
    for other in curves:
        if (other.metric, other.unit) != (first.metric, first.unit):
            raise ConfigError(
                f"{first.name} is measured by {first.metric} and counts {first.unit}, {other.name} by {other.metric} "
                f"and counts {other.unit}; plot them apart"
            )
    names = ["loss", *([first.metric] if first.metric != "loss" else [])]
    rows_of_legend = 2 if len(curves) == 1 else len(curves) + 4
    page = new_figure(7.2, 2.5 * len(names) + 1.3 + 0.2 * rows_of_legend)
    panels = page.subplots(len(names) + 1, 1, sharex=True, height_ratios=[*[3] * len(names), 1])
    scale, unit = _scale(curves, x, first.unit)
    for axes, name in zip(panels, [*names, "lr"]):
        for number, run in enumerate(curves):
            if name in run.training:
                faint = len(curves) == run.n_runs + run.n_diverged == 1
                _curve(axes, run.training[name], scale, line(number), 1 if name == "lr" else smooth, faint=faint)
            if name in run.validation:
                look = line(1 if len(curves) == 1 else number)  # of a single run validation has a colour of its own
                _curve(axes, run.validation[name], scale, {**look, **marker(number)}, 1)
        axes.set_ylabel("learning\nrate" if name == "lr" else name.replace("_", " "))
        if log_y and (name == "loss" or (name == first.metric and not first.higher_is_better)):
            _logarithmic(axes, name, curves)
    panels[-1].set_ylim(bottom=0)
    panels[-1].set_xlabel(unit)
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    page.align_ylabels()
    _legend(page, curves)
    return page


def _curve(axes: Axes, curve: Curve, scale: float, look: Mapping[str, Any], n: int, *, faint: bool = False) -> None:
    """faint: behind what is smoothed shows the values themselves"""
    x = curve.x / scale
    if curve.low is not None and curve.high is not None:
        axes.fill_between(x, smoothed(curve.low, n), smoothed(curve.high, n), color=look["color"], alpha=0.2, lw=0)
    if n > 1 and faint:
        axes.plot(x, curve.y, color=look["color"], linewidth=0.8, alpha=0.3)
    alone = {"marker": "."} if len(x) == 1 else {}  # there is no line through one point
    axes.plot(x, smoothed(curve.y, n), **{"linewidth": 1.6, **alone, **look})


def _scale(curves: Sequence[RunCurves], x: Axis, unit: str) -> tuple[float, str]:
    """By how much the horizontal axis is divided, and its label."""
    if x != "time":
        return 1.0, "step" if x == "steps" else f"{unit} read"
    ends = [curve.x[-1:] for run in curves for part in (run.training, run.validation) for curve in part.values()]
    longest = float(np.concatenate(ends).max(initial=0.0))
    scale, name = next(
        (scale, name)
        for scale, name in ((3600, "hours"), (60, "minutes"), (1, "seconds"))
        if longest >= 2 * scale or scale == 1
    )
    return scale, f"{name} of training"


def _logarithmic(axes: Axes, name: str, curves: Sequence[RunCurves]) -> None:
    drawn = [part[name].y for run in curves for part in (run.training, run.validation) if name in part]
    least = min((float(y.min()) for y in drawn if len(y)), default=1.0)
    if least <= 0:
        raise ConfigError(
            f"the {name.replace('_', ' ')} goes down to {least:.3g}, which has no logarithm; leave out log_y"
        )
    axes.set_yscale("log")


def _label(run: RunCurves) -> str:
    """In the legend: what it is the mean of, what is missing, and how good it was."""
    runs = f" (mean of {run.n_runs})" if run.n_runs > 1 else ""
    many = f" {run.n_diverged}" if run.n_runs + run.n_diverged > 1 else ""
    diverged = f",{many} diverged" if run.n_diverged else ""
    best = "" if run.best is None else f": validation {run.metric.replace('_', ' ')} {run.best:.4g} at best"
    return f"{run.name}{runs}{diverged}{best}"


def _legend(page: Figure, curves: Sequence[RunCurves]) -> None:
    """Above the panels: the runs, how training differs from validation, and what a band is."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = []
    training, validation, title = line(0), line(1), f"Training of {_label(curves[0])}"
    if len(curves) > 1:
        handles += [Line2D([], [], label=_label(run), **line(n), **marker(n)) for n, run in enumerate(curves)]
        training = validation = {"color": "0.35"}
        title = f"Training of {sum(run.n_runs + run.n_diverged for run in curves)} runs"
    handles += [
        Line2D([], [], label="training", **training),
        Line2D([], [], label="validation", **validation, **marker(0)),
    ]
    if any(run.n_runs > 1 for run in curves):
        handles.append(Patch(label="from the least to the greatest of the seeds", color=training["color"], alpha=0.3))
    columns = len(handles) if len(curves) == 1 else 1
    page.legend(
        handles=handles, title=title, loc="outside upper center", ncols=columns, fontsize="small", frameon=False
    )
