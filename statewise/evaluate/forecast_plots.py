"""Plots of forecasts: beyond the end of series, and one after the other over a known split.

Observations are a black line, forecasts a dashed one in a lighter band, so that you can read it in grey as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from statewise.data.series import SeriesSplit
from statewise.data.series_clock import on_the_wall
from statewise.errors import InputError, importing
from statewise.evaluate.forecasting import AnyForecaster, check_fits, forecast
from statewise.models.quantiles import interval_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LINE, BAND = "#a33b00", "#f0a070"


class Ahead(NamedTuple):
    """The end of a series and what comes after it. times: (n,) and values: (n, d_target), times_ahead: (steps,) and
    forecasts: (steps, d_target, n_quantiles); times as dates or numbers.
    """

    name: str
    times: np.ndarray
    values: np.ndarray
    times_ahead: np.ndarray
    forecasts: np.ndarray


def plot_ahead(
    shown: Sequence[Ahead],
    targets: Sequence[str],
    quantiles: tuple[float, ...] | None,
    path: Path | str,
    *,
    n_series: int,
) -> None:
    """A panel for each target of each series. n_series: how many there are, shown or not.

    Errors:  InputError without matplotlib.
    """
    with _panels(len(shown) * len(targets), path) as (figure, panels):
        for number, axes in enumerate(panels):
            one, target = shown[number // len(targets)], number % len(targets)
            last = slice(-max(3 * len(one.times_ahead), 24), None)
            _observed(axes, one.times[last], one.values[last, target])
            _forecast(axes, one.times_ahead, one.forecasts[:, target], quantiles)
            axes.axvline(one.times_ahead[0], color="grey", linewidth=0.6, linestyle=":")
            axes.set_ylabel(targets[target])
            axes.set_title(one.name, fontsize="medium", loc="left")
        if len(shown) < n_series:
            figure.supxlabel(f"the first {len(shown)} of {n_series:,} series", fontsize="small")


def plot_forecasts(
    model: AnyForecaster, split: SeriesSplit, path: Path | str, *, series: int = 0, target: int | None = None
) -> None:
    """Draw one series over a split, with a panel for each target, or for ``target`` only: what was observed, and
    forecasts that follow one another, each one horizon long, with the interval from the lowest to the highest quantile.
    The file's ending sets the format.

    Errors:  InputError without matplotlib, for a model that does not fit the data, or a series without a window.
    """
    check_fits(model, split.data)
    data, horizon = split.data, split.data.config.horizon
    mine = [origin for origin in split.origins if origin.series == series]
    targets = range(data.d_target) if target is None else (target,)
    if not mine or not all(0 <= one < data.d_target for one in targets):
        raise InputError(f"series={series}, target={target}: no window of it is in the {split.name} split")
    origins = [origin for origin in mine if (origin.row - mine[0].row) % horizon == 0]
    forecasts = forecast(model, split, origins)
    table = data.tables[series]
    times = on_the_wall(table.times, data.clock).astype("datetime64[s]") if data.dates else table.times
    shown = slice(max(0, origins[0].row - data.config.history), origins[-1].row + horizon)
    with _panels(len(targets), path) as (_, panels):
        for axes, one in zip(panels, targets):
            _observed(axes, times[shown], table.values[shown, one])
            for origin, values in zip(origins, forecasts):
                ahead = times[origin.row : origin.row + horizon]
                _forecast(axes, ahead, values[:, one], model.config.quantiles)
                axes.axvline(ahead[0], color="grey", linewidth=0.6, linestyle=":")
            axes.set_ylabel(data.targets[one])
        panels[0].set_title(
            f"{table.name}: {split.name}, forecasts {horizon} steps ahead", fontsize="medium", loc="left"
        )


@contextmanager
def _panels(n: int, path: Path | str) -> Iterator[tuple[Any, list[Axes]]]:
    """One below the other, with one legend above them, written at the end."""
    with importing("matplotlib", "plot", "a plot needs"):
        from matplotlib.figure import Figure
    figure = Figure(figsize=(10, 1 + 2.8 * n), layout="constrained")
    panels = list(figure.subplots(n, squeeze=False)[:, 0])
    yield figure, panels
    found = dict(zip(*(part[::-1] for part in panels[0].get_legend_handles_labels()[::-1])))
    figure.legend(
        list(found.values())[::-1], list(found)[::-1], loc="outside upper right", ncols=len(found), frameon=False
    )
    figure.savefig(path, dpi=150)


def _observed(axes: Axes, times: np.ndarray, values: np.ndarray) -> None:
    axes.plot(times, values, color="black", linewidth=1.0, label="observed")


def _forecast(axes: Axes, times: np.ndarray, values: np.ndarray, quantiles: tuple[float, ...] | None) -> None:
    """values: (steps, n_quantiles)"""
    point = 0 if quantiles is None else quantiles.index(0.5)
    dots: Any = {"marker": "o", "markersize": 4} if len(times) < 3 else {}
    axes.plot(times, values[:, point], color=LINE, linewidth=1.5, linestyle="--", label="forecast", **dots)
    name = interval_name(quantiles)
    if name is not None:
        axes.fill_between(times, values[:, 0], values[:, -1], color=BAND, alpha=0.5, linewidth=0.4, label=name)
