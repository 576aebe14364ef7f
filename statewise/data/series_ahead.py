"""What a forecast beyond the end of series is made from: their last steps, and what is known of those to come."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from statewise.data.series_as_trained import require_step
from statewise.data.series_cells import Cells, Notation
from statewise.data.series_clock import NO_ZONE, Clock, on_the_wall
from statewise.data.series_covariates import calendar, read_covariates, scaled
from statewise.data.series_files import SeriesFile, SeriesTable, counted, find_series, read_series
from statewise.data.series_times import Frequency, ends_months, steps_after, times_after
from statewise.errors import DataError, InputError
from statewise.models.series_input import SeriesInputConfig


class Past(NamedTuple):
    """A series up to the step before its forecast, float64. times: (n,) and values: (n, d_target), NaN where missing;
    covariates: (n, d_covariates + d_past_covariates). times_ahead: (steps,) and covariates_ahead: (steps,
    d_covariates). Times are seconds since 1970 if ``dates``, of this clock.
    """

    name: str
    times: np.ndarray
    values: np.ndarray
    covariates: np.ndarray
    times_ahead: np.ndarray
    covariates_ahead: np.ndarray
    dates: bool
    clock: Clock = NO_ZONE


def read_pasts(source: Any, config: SeriesInputConfig, steps: int, future: Any = None) -> list[Past]:
    """The series of a table, as :func:`read_series` takes it: each series ends with its last known target.

    future: another table with the covariates of the steps to come, besides those below the last targets

    Errors:  DataError, one line: as ``read_series``; a series that is shorter than any in training, or has not two
             known values; a covariate that is missing; other steps than the model's.
    """
    if future is not None and not config.covariates:
        raise InputError("the model reads no covariates that are known ahead; leave out the future table")
    spacing = Frequency(config.unit, config.step)
    notation = Notation(delimiter=config.delimiter, date_format=config.date_format, usual=config.usual)
    columns: dict[str, Any] = {"time": config.time, "series": config.series, "frequency": spacing, "notation": notation}
    source, future = _located(source), _located(future)
    covariates = (*config.covariates, *config.past_covariates)
    found = read_series(source, targets=config.targets, covariates=covariates, **columns)
    require_zone("the table", found.clock, config.zone, "those of the training data", spacing)
    require_step("the table", found.series, config)
    plans: dict[str, SeriesTable] = {}
    if future is not None:
        planned = read_series(future, targets=config.covariates, covariates=(), origin=found.origin, **columns)
        require_zone("the future table", planned.clock, found.clock.zone, "those of the other table", spacing)
        plans = {table.name if config.series else "": table for table in planned.series}
    pasts = []
    for table in found.series:
        plan = plans.get(table.name if config.series else "")
        pasts.append(_past(table, plan, config, spacing, steps, found))
    return pasts


def _located(source: Any) -> Any:
    return find_series(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else source


def _past(
    table: SeriesTable,
    plan: SeriesTable | None,
    config: SeriesInputConfig,
    spacing: Frequency,
    steps: int,
    found: SeriesFile,
) -> Past:
    known = ~np.isnan(table.values).all(1)
    end = len(known) - int(known[::-1].argmax()) if known.any() else 0
    here = slice(max(0, end - config.history), end)
    n_steps = here.stop - here.start
    if n_steps < config.min_history or known[here].sum() < 2:
        raise DataError(
            f"the series {table.name!r} has {n_steps} steps to forecast from, {known[here].sum()} with a value; the "
            f"model reads at least {config.min_history} (data.min_history in training), 2 with a value; give more, or "
            "leave it out"
        )
    k = len(config.covariates)
    missing = np.isnan(table.covariates[here]).any(1)
    if missing.any():
        row = here.start + int(missing.argmax())
        column = (*config.covariates, *config.past_covariates)[int(np.isnan(table.covariates[row]).argmax())]
        raise DataError(
            f"the covariate {column!r} of series {table.name!r} is missing at "
            f"{told(table.times[row], spacing, found.clock)}; fill it: only targets may have gaps"
        )
    at_month_ends = ends_months(found.series[0].times)
    times = times_after(float(table.times[end - 1]), steps, spacing, at_month_ends=at_month_ends)

    def moment(step: int) -> str:
        return told(times[step], spacing, found.clock)

    ahead = np.full((steps, k), np.nan)
    below = table.covariates[end : end + steps, :k]
    ahead[: len(below)] = below
    if plan is not None:
        _fill(ahead, plan, int(table.index[end - 1]) + 1, table.name, moment, config)
    if np.isnan(ahead).any():
        step, column_number = (int(i) for i in np.argwhere(np.isnan(ahead))[0])
        raise DataError(
            f"the covariate {config.covariates[column_number]!r} of series {table.name!r} is missing at "
            f"{moment(step)}, step {step + 1} of {steps} to forecast; give it in a row below the last target, or in a "
            "table of its own (future, --future FILE)"
        )
    return Past(
        table.name,
        table.times[here],
        table.values[here],
        read_covariates(_part(table, here), config),
        times,
        np.concatenate([calendar(times, config), scaled(ahead, config)], 1),
        config.dates,
        found.clock,
    )


def _fill(
    ahead: np.ndarray,
    plan: SeriesTable,
    first: int,
    name: str,
    moment: Callable[[int], str],
    config: SeriesInputConfig,
) -> None:
    """What a plan says of the steps from ``first`` on. Errors: DataError where the table itself says something else."""
    rows = plan.index - first
    inside = (rows >= 0) & (rows < len(ahead))
    planned = np.full_like(ahead, np.nan)
    planned[rows[inside]] = plan.values[inside]
    differ = ~np.isnan(ahead) & ~np.isnan(planned) & (ahead != planned)
    if differ.any():
        step, column = (int(i) for i in np.argwhere(differ)[0])
        raise DataError(
            f"the covariate {config.covariates[column]!r} of series {name!r} at {moment(step)} is "
            f"{ahead[step, column]:g} in the table and {planned[step, column]:g} in the future table; leave one out"
        )
    np.copyto(ahead, planned, where=~np.isnan(planned))


def _part(table: SeriesTable, here: slice) -> SeriesTable:
    parts = (part[here] for part in (table.index, table.times, table.values, table.covariates))
    return SeriesTable(table.name, *parts)


def require_zone(name: str, clock: Clock, zone: str | None, others: str, spacing: Frequency) -> None:
    """Errors: DataError for hours without a time zone next to hours with one: how far apart they are is unknown."""
    if zone is not None and clock.zone is None and not spacing.whole_days:
        raise DataError(f"the times of {name} have no time zone, and {others} have one ({zone}); give them theirs")


def told(time: float, spacing: Frequency, clock: Clock) -> str:
    """A time for a message."""
    if spacing.kind == "number":
        return f"{time:g}"
    moment = np.datetime64(round(on_the_wall(np.array(time), clock).item()), "s")
    return str(moment.astype("datetime64[D]") if spacing.whole_days else moment)


def pasts_of_arrays(
    x: Any, config: SeriesInputConfig | None, d_target: int, steps: int, times: Any = None
) -> list[Past]:
    """The series of values in memory: (n, length, d_target), one series (length, d_target), or a list of series.

    times: (length,) of all of them: dates, texts or numbers; None: steps from 0

    Errors:  InputError for another shape, a model that reads covariates, and one that reads the calendar without times.
    """
    series = _as_series(x, d_target)
    if config is not None and config.covariates + config.past_covariates:
        names = ", ".join(config.covariates + config.past_covariates)
        raise InputError(f"the model reads covariates ({names}) beside the targets; give a table with these columns")
    if times is None and config is not None and config.calendar:
        raise InputError(f"the model reads the calendar ({', '.join(config.calendar)}); give the times of the values")
    if times is None:
        spacing, clock = Frequency("number", 1.0), NO_ZONE
        grids = [np.arange(len(values), dtype=np.float64) for values in series]
    else:
        grid, spacing, clock = _times(times, config)
        if any(len(values) != len(grid) for values in series):
            raise InputError(
                f"there are {len(grid)} times for series of {len(series[0])} steps; give one for each step"
            )
        grids = [grid] * len(series)
    history = max(map(len, series)) if config is None else config.history
    least = 2 if config is None else config.min_history
    pasts = []
    for number, (values, grid) in enumerate(zip(series, grids)):
        known = ~np.isnan(values).all(1)
        if len(values) < least or known[-history:].sum() < 2:
            raise InputError(
                f"series {number} has {len(values)} steps, {known[-history:].sum()} of its last with a value; the "
                f"model reads at least {least}, 2 with a value"
            )
        ahead = times_after(float(grid[-1]), steps, spacing, at_month_ends=ends_months(grid))
        waves = [np.empty((len(t), 0)) if config is None else calendar(t, config) for t in (grid[-history:], ahead)]
        dates = spacing.kind != "number"
        pasts.append(Past(f"{number}", grid[-history:], values[-history:], waves[0], ahead, waves[1], dates, clock))
    return pasts


def _as_series(x: Any, d_target: int) -> list[np.ndarray]:
    ragged = isinstance(x, Sequence) and len({np.shape(one) for one in x}) > 1
    try:
        several = ragged or np.ndim(x) == 3
        parts = [np.asarray(one, np.float64) for one in (x if several else [x])]
    except (TypeError, ValueError) as error:
        raise InputError(f"the values are not an array of numbers: {error}") from None
    parts = [one[:, None] if one.ndim == 1 and d_target == 1 else one for one in parts]
    for one in parts:
        if one.ndim != 2 or one.shape[1] != d_target or not len(one):
            shape = one.shape if ragged else np.shape(x)
            raise InputError(
                f"the values have the shape {shape}; expected (n, length, {d_target}), or (length, {d_target}) of one "
                "series, or a list of those"
            )
        if np.isinf(one).any():
            raise InputError("the values hold infinity; use NaN for a missing value")
    if not parts:
        raise InputError("the list holds no series; give at least one")
    return parts


def _times(times: Any, config: SeriesInputConfig | None) -> tuple[np.ndarray, Frequency, Clock]:
    given = np.asarray(times)
    column = given if given.dtype.kind in "Miuf" else [str(one) for one in given.ravel()]
    found = Cells("times", "", {"times": column}, Notation()).times("times")
    zone = getattr(getattr(times, "dt", times), "tz", None)  # of a Series or an index of pandas
    if zone is not None and found.zoned is not None:
        found = found._replace(zoned=found.zoned._replace(zone=str(zone)))
    if config is not None and found.dates != config.dates:
        raise InputError(f"the times are {'dates' if found.dates else 'numbers'}; in training they were not")
    stamps, spacing, clock = counted(found, None if config is None else Frequency(config.unit, config.step))
    if config is not None:
        require_zone("the values", clock, config.zone, "those of the training data", spacing)
    if np.abs(np.diff(steps_after(stamps, float(stamps[0]), spacing)) - 1).max(initial=0) > 1e-3:
        raise InputError(f"the times are not one step of {spacing} apart; put NaN where a value is missing")
    return stamps, spacing, clock
