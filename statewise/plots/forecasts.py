"""Forecasts of series, beside what was observed.

Observations are a black line, forecasts a dashed one in a lighter band, so that you can read it in grey as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from statewise.models.quantiles import interval_name
from statewise.plots.style import COLOURS, new_figure, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


class Forecasted(NamedTuple):
    """A series and forecasts of it, each made before its first time.

    Shapes:  times: (n,) and values: (n, d_target)   forecasts: each times (steps,), values (steps, d_target,
             n_quantiles); times as dates or numbers
    """

    name: str
    times: np.ndarray
    values: np.ndarray
    forecasts: Sequence[tuple[np.ndarray, np.ndarray]]


@styled
def forecasts(
    shown: Sequence[Forecasted],
    targets: Sequence[str],
    quantiles: tuple[float, ...] | None,
    *,
    n_series: int | None = None,
) -> Figure:
    """A panel for each target of each series: what was observed, and the forecasts, each with the interval from the
    lowest to the highest quantile, behind a dotted line where it begins.

    quantiles: which they are; None: one column, the mean
    n_series:  how many there are, if more than are shown
    Errors:    InputError without matplotlib.
    """
    panels = len(shown) * len(targets)
    page = new_figure(10, 1 + 2.8 * panels)
    axes_of = list(page.subplots(panels, squeeze=False)[:, 0])
    for number, axes in enumerate(axes_of):
        series, target = shown[number // len(targets)], number % len(targets)
        axes.plot(series.times, series.values[:, target], color="black", linewidth=1.0, label="observed")
        for times, values in series.forecasts:
            _forecast(axes, times, values[:, target], quantiles)
            axes.axvline(times[0], color="grey", linewidth=0.6, linestyle=":")
        axes.set_ylabel(targets[target])
        if target == 0:
            axes.set_title(series.name, fontsize="medium")
    axes_of[-1].set_xlabel("time")
    found = dict(zip(*(part[::-1] for part in axes_of[0].get_legend_handles_labels()[::-1])))
    page.legend(
        list(found.values())[::-1], list(found)[::-1], loc="outside upper right", ncols=len(found), frameon=False
    )
    if n_series is not None and len(shown) < n_series:
        page.supxlabel(f"the first {len(shown)} of {n_series:,} series", fontsize="small")
    return page


def _forecast(axes: Axes, times: np.ndarray, values: np.ndarray, quantiles: tuple[float, ...] | None) -> None:
    """values: (steps, n_quantiles)"""
    point = 0 if quantiles is None else quantiles.index(0.5)
    dots: Any = {"marker": "o", "markersize": 4} if len(times) < 3 else {}
    axes.plot(times, values[:, point], color=COLOURS[1], linewidth=1.5, linestyle="--", label="forecast", **dots)
    name = interval_name(quantiles)
    if name is not None:
        axes.fill_between(times, values[:, 0], values[:, -1], color=COLOURS[4], alpha=0.4, linewidth=0.4, label=name)
