"""Figures in files, drawn with matplotlib where it is installed, without a window; those of runs among them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from statewise.errors import ConfigError, importing, package_folder, require_least

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from statewise.training.curves import Axis, Curve, RunCurves

MATPLOTLIB = ("matplotlib", "plot", "plots need")
SUFFIXES = (".png", ".svg", ".pdf")
# Of Okabe and Ito (2008), told apart by the colour-blind; without the yellow, which is too light for a line on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
# Five, so that with seven colours they make 35 pairs, and lines differ in grey too
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1.2, 1.5)), (0, (9, 2)))
MARKERS = ("o", "s", "^", "D", "v")


def require_matplotlib() -> None:
    """Errors: InputError if it is not installed."""
    package_folder(*MATPLOTLIB)


def require_plot(path: Path) -> None:
    """What can be refused before there is anything to draw.

    Errors: InputError if matplotlib is not installed; ConfigError for a name or folder that a figure cannot have.
    """
    require_matplotlib()
    if path.suffix not in SUFFIXES:
        raise ConfigError(
            f"a figure cannot be written to {path}; give a name that ends in one of {', '.join(SUFFIXES)}"
        )
    if not path.parent.is_dir():
        raise ConfigError(f"a figure cannot be written to {path}: there is no folder {path.parent}")


@contextmanager
def figure(path: Path, width: float = 6.4, height: float = 4.8) -> Iterator[Figure]:
    """An empty figure, in inches, that is written to ``path`` at the end of the ``with``.

    Errors: as :func:`require_plot`.
    """
    require_plot(path)
    drawn = _empty(width, height)
    yield drawn
    drawn.savefig(path, dpi=150)


def _empty(width: float, height: float) -> Figure:
    with importing(*MATPLOTLIB):
        from matplotlib.figure import Figure  # not pyplot, which would open a window, and keeps all figures

    return Figure(figsize=(width, height), layout="constrained")


def plot_runs(
    runs: Sequence[Path | str] | Mapping[str, Path | str],
    *,
    x: Axis = "steps",
    smooth: int = 1,
    log_y: bool = False,
) -> Figure:
    """The training curves of runs: the loss, the task's metric and the learning rate, one below the other.

    The figure's ``axes`` are these panels, in this order; there is no panel for a metric that is the loss. ``savefig``
    writes it. A folder of several runs is one curve for each learning rate, the mean of its seeds, in a band from the
    least to the greatest.

    runs:   their folders, perhaps by names for the legend
    x:      "steps"; "time", the seconds of training without pauses; "units", the tokens, sequences or windows read
    smooth: shows means over this many lines of metrics.jsonl, and for a single run the lines themselves faintly
    log_y:  the loss on a logarithmic scale, and the metric if less of it is better

    Errors: InputError if matplotlib is not installed; CheckpointError where there is no run, or none that has begun;
            ConfigError for runs of different tasks, or a logarithm of what is not positive.
    """
    from statewise.training.curves import read_curves

    require_matplotlib()
    require_least(ConfigError, smooth=(smooth, 1))
    named = runs if isinstance(runs, Mapping) else _named(runs)
    curves = [one for name, folder in named.items() for one in read_curves(folder, x, name)]
    if not curves:
        raise ConfigError("no runs to plot were given; give the folder of at least one")
    first = curves[0]
    for other in curves:
        if (other.metric, other.unit) != (first.metric, first.unit):
            raise ConfigError(
                f"{first.name} is measured by {first.metric} and counts {first.unit}, {other.name} by {other.metric} "
                f"and counts {other.unit}; plot them apart"
            )
    return _drawn(curves, x, smooth, log_y)


def _named(folders: Sequence[Path | str]) -> dict[str, Path | str]:
    """Folders by their last names; where two would be the same, by what was given."""
    if isinstance(folders, (str, Path)):
        folders = [folders]
    names = [Path(folder).resolve().name for folder in folders]
    return {name if names.count(name) == 1 else str(folder): folder for name, folder in zip(names, folders)}


def _drawn(curves: Sequence[RunCurves], x: Axis, smooth: int, log_y: bool) -> Figure:
    first = curves[0]
    names = ["loss", *([first.metric] if first.metric != "loss" else [])]
    rows_of_legend = 2 if len(curves) == 1 else len(curves) + 4
    page = _empty(7.2, 2.5 * len(names) + 1.3 + 0.2 * rows_of_legend)
    panels = page.subplots(len(names) + 1, 1, sharex=True, height_ratios=[*[3] * len(names), 1])
    scale, unit = _scale(curves, x, first.unit)
    for axes, name in zip(panels, [*names, "lr"]):
        for number, run in enumerate(curves):
            if name in run.training:
                faint = len(curves) == run.n_runs + run.n_diverged == 1
                _line(axes, run.training[name], scale, _style(number), 1 if name == "lr" else smooth, faint=faint)
            if name in run.validation:
                style = _style(1 if len(curves) == 1 else number)  # of a single run validation has a colour of its own
                _line(axes, run.validation[name], scale, {**style, **_marker(number)}, 1)
        axes.set_ylabel("learning\nrate" if name == "lr" else name.replace("_", " "))
        axes.grid(True, alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        if log_y and (name == "loss" or (name == first.metric and not first.higher_is_better)):
            _logarithmic(axes, name, curves)
    panels[-1].set_ylim(bottom=0)
    panels[-1].set_xlabel(unit)
    panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    page.align_ylabels()
    _legend(page, curves)
    return page


def _line(axes: Axes, curve: Curve, scale: float, style: Mapping[str, Any], n: int, *, faint: bool = False) -> None:
    """faint: behind what is smoothed shows the values themselves"""
    from statewise.training.curves import smoothed

    x = curve.x / scale
    if curve.low is not None and curve.high is not None:
        axes.fill_between(x, smoothed(curve.low, n), smoothed(curve.high, n), color=style["color"], alpha=0.2, lw=0)
    if n > 1 and faint:
        axes.plot(x, curve.y, color=style["color"], linewidth=0.8, alpha=0.3)
    alone = {"marker": "."} if len(x) == 1 else {}  # there is no line through one point
    axes.plot(x, smoothed(curve.y, n), **{"linewidth": 1.6, **alone, **style})


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
    training, validation, title = _style(0), _style(1), f"Training of {_label(curves[0])}"
    if len(curves) > 1:
        handles += [Line2D([], [], label=_label(run), **_style(n), **_marker(n)) for n, run in enumerate(curves)]
        training = validation = {"color": "0.35"}
        title = f"Training of {sum(run.n_runs + run.n_diverged for run in curves)} runs"
    handles += [
        Line2D([], [], label="training", **training),
        Line2D([], [], label="validation", **validation, **_marker(0)),
    ]
    if any(run.n_runs > 1 for run in curves):
        handles.append(Patch(label="from the least to the greatest of the seeds", color=training["color"], alpha=0.3))
    columns = len(handles) if len(curves) == 1 else 1
    page.legend(
        handles=handles, title=title, loc="outside upper center", ncols=columns, fontsize="small", frameon=False
    )


def _style(number: int) -> dict[str, Any]:
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}


def _marker(number: int) -> dict[str, Any]:
    return {"marker": MARKERS[number % len(MARKERS)], "markersize": 4.5, "linewidth": 1.0}
