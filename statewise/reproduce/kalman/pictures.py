"""The plots: what is true, what is seen, and what a filter and a smoother make of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from statewise.plots import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"filter": style.COLOURS[0], "smoother": style.COLOURS[1]}
DASHES = {"filter": style.DASHES[0], "smoother": style.DASHES[1]}
Numbers = np.ndarray[Any, Any]


def numbers(values: Sequence[float | None]) -> Numbers:
    return np.array([np.nan if x is None else x for x in values], float)


def draw_series(drawing: Figure, found: Mapping[str, Any], state: str, dt: float, names: tuple[str, str]) -> None:
    """Two panels over one time, filter and smoother, each with the truth, what is seen, and its 95 % interval."""
    series = found[state]
    time = dt * np.arange(1, len(series["truth"]) + 1)
    for axes, estimate in zip(drawing.subplots(2, 1, sharex=True, sharey=True), COLOURS):
        axes.plot(time, numbers(found["y"][0]), ".", color="gray", markersize=4, label=names[1])
        band(axes, time, series, estimate)
        axes.plot(time, numbers(series["truth"]), color="black", linewidth=1, label="truth")
        axes.set(ylabel=names[0])
        axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    axes.set(xlabel="time, s")


def band(axes: Axes, time: Numbers, series: Mapping[str, Any], estimate: str) -> None:
    mean, half = numbers(series[estimate]), numbers(series[f"{estimate}_half"])
    axes.fill_between(
        time, mean - half, mean + half, color=COLOURS[estimate], alpha=0.25, linewidth=0, label=f"{estimate}, 95 %"
    )
    axes.plot(time, mean, color=COLOURS[estimate], linestyle=DASHES[estimate], linewidth=1.2, label=estimate)


def draw_methods(drawing: Figure, examples: Mapping[str, Mapping[str, Any]], dt: float) -> None:
    """A panel for each method: the angle, the filter and the smoother; what is seen is its sine."""
    panels = drawing.subplots(2, 2, sharex=True, sharey=True)
    panels[0, 0].set(ylabel="angle, radians")
    panels[1, 0].set(ylabel="angle, radians", xlabel="time, s")
    panels[1, 1].set(xlabel="time, s")
    for axes, (method, found) in zip(panels.flat, examples.items()):
        series = found["0"]
        time = dt * np.arange(1, len(series["truth"]) + 1)
        axes.plot(time, numbers(found["y"][0]), ".", color="gray", markersize=3, label="observed sine")
        for estimate in COLOURS:
            band(axes, time, series, estimate)
        axes.plot(time, numbers(series["truth"]), color="black", linewidth=1, label="true angle")
        axes.set_title(method, fontsize=9)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    drawing.legend(handles, labels, fontsize=8, loc="outside lower center", ncols=len(labels))


def draw_track(drawing: Figure, found: Mapping[str, Any]) -> None:
    """The plane, and one coordinate over time with its intervals."""
    plane, over_time = drawing.subplots(1, 2, width_ratios=[2, 3])
    east, north = found["0"], found["2"]
    plane.plot(numbers(found["y"][0]), numbers(found["y"][1]), ".", color="gray", markersize=4, label="observations")
    for estimate, colour in COLOURS.items():
        plane.plot(numbers(east[estimate]), numbers(north[estimate]), color=colour, linewidth=1.2, label=estimate)
    plane.plot(numbers(east["truth"]), numbers(north["truth"]), color="black", linewidth=1, label="truth")
    plane.set(xlabel="east, m", ylabel="north, m")
    time = np.arange(1, len(east["truth"]) + 1)
    truth = numbers(east["truth"])
    over_time.plot(time, numbers(found["y"][0]) - truth, ".", color="gray", markersize=4, label="observations")
    for estimate in COLOURS:
        away = {estimate: numbers(east[estimate]) - truth, f"{estimate}_half": numbers(east[f"{estimate}_half"])}
        band(over_time, time, away, estimate)
    over_time.axhline(0.0, color="black", linewidth=1, label="truth")
    over_time.set(xlabel="time, s", ylabel="east less the truth, m")
    for axes in (plane, over_time):
        axes.legend(fontsize=8)


def draw_consistency(drawing: Figure, panels: Mapping[str, Mapping[str, Mapping[str, Any]]], level: float) -> None:
    """A panel for each system: NEES over its degrees of freedom, against the step, and where chi-square has it."""
    for axes, (title, lines) in zip(drawing.subplots(1, len(panels), squeeze=False)[0], panels.items()):
        for i, (name, told) in enumerate(lines.items()):  # dashes, since two lines may be one
            axes.plot(told["step"], told["ratio"], ("-", "-", "-", "--")[i], linewidth=0.9, label=name)
        axes.axhspan(
            told["low"], told["high"], color="gray", alpha=0.3, linewidth=0, label=f"chi-square, {100 * level:g} %"
        )
        axes.set_title(title, fontsize=9)
        axes.set(xlabel="step")
        axes.legend(fontsize=7)
        if axes.get_subplotspec().is_first_col():
            axes.set(ylabel="mean NEES over the number of states")
