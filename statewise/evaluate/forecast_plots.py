"""Forecasts that follow one another over a known split, as a picture in a file."""

from __future__ import annotations

from pathlib import Path

from statewise.data.series import SeriesSplit
from statewise.data.series_clock import on_the_wall
from statewise.errors import InputError
from statewise.evaluate.forecasting import AnyForecaster, check_fits, forecast
from statewise.plots.forecasts import Forecasted, forecasts
from statewise.plots.style import require_matplotlib, save


def plot_forecasts(
    model: AnyForecaster, split: SeriesSplit, path: Path | str, *, series: int = 0, target: int | None = None
) -> None:
    """Draw one series over a split, with a panel for each target, or for ``target`` only: what was observed, and
    forecasts that follow one another, each one horizon long, with the interval from the lowest to the highest quantile.
    The file's ending sets the format.

    Errors:  InputError without matplotlib, for a model that does not fit the data, or a series without a window.
    """
    require_matplotlib()
    check_fits(model, split.data)
    data, horizon = split.data, split.data.config.horizon
    mine = [origin for origin in split.origins if origin.series == series]
    targets = range(data.d_target) if target is None else (target,)
    if not mine or not all(0 <= one < data.d_target for one in targets):
        raise InputError(f"series={series}, target={target}: no window of it is in the {split.name} split")
    origins = [origin for origin in mine if (origin.row - mine[0].row) % horizon == 0]
    table, chosen = data.tables[series], list(targets)
    times = on_the_wall(table.times, data.clock).astype("datetime64[s]") if data.dates else table.times
    made = [
        (times[origin.row : origin.row + horizon], values[:, chosen])
        for origin, values in zip(origins, forecast(model, split, origins))
    ]
    shown = slice(max(0, origins[0].row - data.config.history), origins[-1].row + horizon)
    name = f"{table.name}: {split.name}, forecasts {horizon} steps ahead"
    drawn = Forecasted(name, times[shown], table.values[shown][:, chosen], made)
    save(forecasts([drawn], [data.targets[one] for one in chosen], model.config.quantiles), path)
