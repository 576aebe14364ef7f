"""Time series from a table: its columns as numbers, its times on a regular grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.data.series_cells import Cells, Notation, Times, read_cells
from statewise.data.series_clock import NO_ZONE, Clock
from statewise.data.series_times import (
    Frequency,
    ends_months,
    infer_frequency,
    parse_frequency,
    steps_after,
    times_after,
)
from statewise.errors import DataError, excerpt, few, package_folder

SERIES = {"co2": "co2/co2.csv", "sunspots": "sunspots/sunspots.csv"}  # sources by name: CSV files of statsmodels
MAX_GAPS = 20  # a grid with more than this many empty steps for each row is no grid


@dataclass(frozen=True)
class SeriesTable:
    """One series on its grid. index: (n,) int64, the steps since the beginning of all series of the file, one after
    the other without a gap; times: (n,) float64, seconds since 1970, or the number that the file has; values: (n,
    d_target) and covariates: (n, d) float64, NaN where the file has nothing.
    """

    name: str
    index: np.ndarray
    times: np.ndarray
    values: np.ndarray
    covariates: np.ndarray


class SeriesFile(NamedTuple):
    """What a table holds: its series, the names of their columns, and how far apart two steps are."""

    series: tuple[SeriesTable, ...]
    targets: tuple[str, ...]
    frequency: Frequency
    dates: bool  # whether times are dates, or plain numbers
    time: str  # the column of times
    origin: float  # the time of step 0
    notation: Notation  # as it was given, and what was found
    clock: Clock = NO_ZONE


def find_series(source: str) -> Path:
    """The file of a source: "co2" and "sunspots" come with the package statsmodels, which is found, not imported.

    Errors:  DataError where there is no such file, or statsmodels is not installed.
    """
    if source in SERIES:
        folder = package_folder("statsmodels", "tasks", f"the source {source!r} comes with", DataError)
        path = folder / "datasets" / SERIES[source]
    else:
        path = Path(source).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}; expected one of {list(SERIES)} or the path of a table")
    return path


def read_series(
    source: Any,
    *,
    time: str | None,
    series: str | None,
    targets: Sequence[str],
    covariates: Sequence[str],
    frequency: str | Frequency | None,
    notation: Notation = Notation(),  # noqa: B008 (it cannot change)
    origin: float | None = None,
) -> SeriesFile:
    """Read a table: the path of a text file or of Parquet, or a DataFrame; see :func:`read_cells`.

    time: the column of times, the first one if None: dates, in any notation that :func:`read_dates` reads, or numbers.
    Rows may be in any order. series: the column that names the series where there are several, one below the other.
    targets: what to forecast; empty: every other column. frequency: see :func:`parse_frequency`; None: the widest grid
    that all times lie on. Times with a zone are counted by its calendar where steps are whole days or longer, else in
    UTC. origin: the time of step 0; None: the earliest. Steps without a row are gaps (NaN).

    Cost:    O(n) for n rows, however many series they are.
    Errors:  DataError with the line: a missing column, a cell that is not a number or a time, a time given twice, times
             that lie on no grid, a target without a value, a first line of numbers.
    """
    cells = read_cells(source, notation)
    time = next(iter(cells.columns)) if time is None else time
    taken = {time, series, *covariates}
    targets = tuple(targets) or tuple(column for column in cells.columns if column not in taken)
    named = [("time", time), *(("targets", c) for c in targets), *(("covariates", c) for c in covariates)]
    for field, column in [*named, ("series", series)]:
        if column is not None:
            cells.require(field, column)
    if not targets:
        raise DataError(f"{cells.where} has no columns left to forecast; its columns are: {few(cells.columns)}")
    clash = [column for column in targets if column in taken]
    if clash:
        raise DataError(f"{cells.where}: the column {excerpt(clash[0])} is a target and something else; name it once")

    times = cells.times(time)
    decimal = cells.decimal([*targets, *covariates])
    values = cells.numbers([*targets, *covariates], decimal)
    for column, known in zip(targets, ~np.isnan(values).all(0)):
        if not known:
            raise DataError(
                f"{cells.where}: every value of the column {excerpt(column)} is missing; name the columns to forecast "
                "in data.targets"
            )
    as_trained = isinstance(frequency, Frequency)
    if isinstance(frequency, str):
        frequency = parse_frequency(frequency, times.dates)
    elif frequency is not None and times.dates != (frequency.kind != "number"):
        given, needed = ("dates", "numbers") if times.dates else ("numbers", "dates")
        raise DataError(f"{cells.where}: its times are {given}, but those of the training data were {needed}")
    stamps, spacing, clock = counted(times, frequency)
    if as_trained:
        _require_as_wide(cells, stamps, spacing)
    begin = float(stamps.min()) if origin is None else origin
    index = _grid(cells, stamps, spacing, begin)
    groups = _groups(cells, series)
    tables = [
        _on_grid(cells, name, stamps, index, values, rows, spacing, len(targets)) for name, rows in groups.items()
    ]
    found = notation._replace(
        decimal=decimal, day_first=times.day_first if notation.day_first is None else notation.day_first
    )
    return SeriesFile(tuple(tables), targets, spacing, times.dates, time, begin, found, clock)


def counted(times: Times, spacing: Frequency | None) -> tuple[np.ndarray, Frequency, Clock]:
    """The stamps that are to lie on a grid, its steps (found if ``spacing`` is None), and what the stamps stand for."""
    zoned = times.zoned
    if zoned is None:
        return times.stamps, spacing or infer_frequency(times.stamps, times.dates), NO_ZONE
    wall = times.stamps + zoned.offsets
    on_wall = spacing or infer_frequency(wall, times.dates)
    if on_wall.whole_days:
        return wall, on_wall, zoned.clock(times.stamps, wall=True)
    in_utc = spacing or infer_frequency(times.stamps, times.dates)
    return times.stamps, in_utc, zoned.clock(times.stamps, wall=False)


def _require_as_wide(cells: Cells, stamps: np.ndarray, spacing: Frequency) -> None:
    """Errors:  DataError for hours where a model of days is to read them, or days where one of months is."""
    usual = float(np.median(np.diff(np.unique(stamps)))) if len(stamps) > 1 else math.inf
    least = 28 * 86400 * spacing.step if spacing.kind == "months" else spacing.step
    if usual < least * 0.99:
        found = infer_frequency(stamps, spacing.kind != "number")
        raise DataError(
            f"{cells.where}: its steps are of {found}, but those of the training data were of {spacing}; resample the "
            "series, or train a new model"
        )


def _groups(cells: Cells, series: str | None) -> dict[str, np.ndarray]:
    """The rows of each series, the series in the order in which they begin."""
    if series is None:
        return {cells.name: np.arange(len(cells))}
    names = cells.texts(series)
    if "" in names:
        raise DataError(f"{cells.place(names.index(''))}: the cell of {few([series])}, the series, is empty; name it")
    numbers = {name: i for i, name in enumerate(dict.fromkeys(names))}
    which = np.array([numbers[name] for name in names])
    order = np.argsort(which, kind="stable")
    return dict(zip(numbers, np.split(order, np.cumsum(np.bincount(which))[:-1])))


def _grid(cells: Cells, stamps: np.ndarray, spacing: Frequency, origin: float) -> np.ndarray:
    """The step of each time, that of ``origin`` being 0."""
    exact = steps_after(stamps, origin, spacing)
    index = np.round(np.clip(exact, -(1 << 60), 1 << 60)).astype(np.int64)
    off = ~(np.abs(exact - index) <= 1e-3)
    if off.any():
        raise DataError(
            f"{cells.place(int(off.argmax()))}: its time is not a whole number of steps of {spacing} after the first; "
            "set data.frequency, or resample the series"
        )
    n_moments, length = len(np.unique(index)), int(index.max() - index.min()) + 1
    if length > (MAX_GAPS + 1) * n_moments:
        raise DataError(
            f"{cells.where}: its times are not regular: {n_moments:,} of them on a grid of {length:,} steps of "
            f"{spacing}; resample the series, or set data.frequency"
        )
    return index


def _on_grid(
    cells: Cells,
    name: str,
    stamps: np.ndarray,
    index: np.ndarray,
    values: np.ndarray,
    mine: np.ndarray,
    spacing: Frequency,
    n_targets: int,
) -> SeriesTable:
    """The rows ``mine`` of a table as one series, NaN where there is none."""
    order = mine[np.argsort(index[mine], kind="stable")]
    again = np.flatnonzero(np.diff(index[order]) == 0)
    if len(again):
        raise DataError(
            f"{cells.place(max(order[again[0]], order[again[0] + 1]))}: a time is there twice in one series; give one "
            f"row for each step of {spacing}, or name the column that tells the series apart in data.series"
        )
    begin = index[order[0]]
    steps = np.arange(begin, index[order[-1]] + 1)
    filled = np.full((len(steps), values.shape[1]), math.nan)
    filled[index[order] - begin] = values[order]
    first = float(stamps[order[0]])
    after = times_after(first, len(steps) - 1, spacing, at_month_ends=spacing.kind == "months" and ends_months(stamps))
    times = np.concatenate([[first], after])
    times[index[order] - begin] = stamps[order]
    return SeriesTable(name, steps, times, filled[:, :n_targets], filled[:, n_targets:])
