"""Time series to forecast: read, put on a regular grid, given a calendar, and divided in the order of time.

``open_series(SeriesDataConfig(source="co2", horizon=52, history=208))`` is all that training and evaluation call.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, NamedTuple

import numpy as np

from statewise.configuration.types import EACH_ONCE, AtLeastTwo, Count, Fraction, Name, OneOf
from statewise.data.base import DataConfig, absolute
from statewise.data.series_files import SERIES, Frequency, SeriesTable, find_series, read_series
from statewise.data.splits import SPLITS
from statewise.errors import ConfigError, DataError, require_least

CYCLES = {"day": 86400.0, "week": 7 * 86400.0, "year": 365.2425 * 86400.0}  # in seconds
DEFAULT_SEASONS = {"sunspots": 11}  # where the frequency does not tell


Columns = Annotated[tuple[str, ...], EACH_ONCE]


@dataclass(frozen=True, kw_only=True)
class SeriesDataConfig(DataConfig):
    """Which series, what is forecast from what, and how they are divided.

    source: "co2" (weekly, Mauna Loa, 1958 to 2001) or "sunspots" (yearly, 1700 to 2008), which come with statsmodels,
    or a CSV file whose first line names its columns.
    time, series, targets, frequency: the file's columns, see :func:`read_series`. All targets of a row are forecast
    together; several series, one below the other, are forecast by one model, each from its own past.
    covariates: columns that are known over the horizon too, and past_covariates: columns that are not. They may have no
    gaps, and are standardised by their mean and deviation in training. The targets may have gaps.
    calendar: further covariates, sine and cosine of cycles, with ``harmonics`` of each: "day", "week" and "year" where
    times are dates, and "season", which counts steps.
    horizon: steps to forecast. history: steps to forecast them from, fewer at the beginning of a series down to
    ``min_history`` (None: ``history``); at least 2, for one value tells no scale.
    season: in steps, for the seasonal-naive forecast and the scaled error; None: 52 for weeks, 12 for months, 7 for
    days and so on, 11 for sunspots, otherwise 1.
    validation_fraction, test_fraction: of the span of time, the test last. A split of fraction 0 does not exist.
    """

    source: Name = "co2"
    time: str | None = None
    series: str | None = None
    targets: Columns = ()
    covariates: Columns = ()
    past_covariates: Columns = ()
    frequency: str | None = None
    calendar: Annotated[tuple[Annotated[str, OneOf(("season", *CYCLES))], ...], EACH_ONCE] = ()
    harmonics: Count = 1
    season: Count | None = None
    horizon: Count = 52
    history: AtLeastTwo = 208
    min_history: AtLeastTwo | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.2

    def __post_init__(self) -> None:
        if self.min_history is not None and self.min_history > self.history:
            raise ConfigError(
                f"SeriesDataConfig.min_history={self.min_history} is above history={self.history}; use from 2 to "
                "history, or None"
            )
        columns = [*self.targets, *self.covariates, *self.past_covariates]
        if len(set(columns)) < len(columns):
            twice = next(c for c in columns if columns.count(c) > 1)
            raise ConfigError(f"SeriesDataConfig names the column {twice!r} twice among targets and covariates")
        if self.validation_fraction + self.test_fraction >= 1:
            raise ConfigError(
                f"SeriesDataConfig.validation_fraction={self.validation_fraction} and test_fraction="
                f"{self.test_fraction} leave nothing to train on; their sum must be below 1"
            )

    def with_absolute_paths(self) -> SeriesDataConfig:
        return self if self.source in SERIES else replace(self, source=absolute(self.source))


class Origin(NamedTuple):
    """A place to forecast from: the history of series ``series`` ends before row ``row``, where the targets begin."""

    series: int
    row: int


class Window(NamedTuple):
    """What is read and what is forecast at an origin, float64. history: (n, d_target), n at most ``history``;
    covariates: (n, d_covariates + d_past_covariates); targets: (horizon, d_target), NaN where unknown;
    future_covariates: (horizon, d_covariates).
    """

    history: np.ndarray
    covariates: np.ndarray
    targets: np.ndarray
    future_covariates: np.ndarray


@dataclass(frozen=True)
class SeriesSplit:
    """The origins of one split: those whose targets all lie within its span of time. Histories may begin before it."""

    name: str
    data: SeriesData
    origins: tuple[Origin, ...]

    def __len__(self) -> int:
        return len(self.origins)

    def window(self, origin: Origin) -> Window:
        table, config = self.data.tables[origin.series], self.data.config
        past = slice(max(0, origin.row - config.history), origin.row)
        future = slice(origin.row, origin.row + config.horizon)
        return Window(
            table.values[past],
            table.covariates[past],
            table.values[future],
            table.covariates[future, : self.data.d_covariates],
        )

    def every(self, stride: int) -> tuple[Origin, ...]:
        """The origins whose time is a multiple of ``stride`` steps after the split's first."""
        require_least(ConfigError, stride=(stride, 1))
        tables = self.data.tables
        times = [int(tables[o.series].index[o.row]) for o in self.origins]
        return tuple(o for o, time in zip(self.origins, times) if (time - min(times)) % stride == 0)


@dataclass(frozen=True)
class SeriesData:
    """Opened series. ``split`` gives "train", "validation" and "test".

    tables: the series, their covariates standardised, the calendar first. bounds: the steps at which the splits end.
    """

    config: SeriesDataConfig
    tables: tuple[SeriesTable, ...]
    targets: tuple[str, ...]
    frequency: Frequency
    dates: bool
    season: int
    d_covariates: int
    d_past_covariates: int
    bounds: tuple[int, int, int]

    @property
    def d_target(self) -> int:
        return len(self.targets)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for two only if they hold the same numbers in the same splits and windows."""
        config = self.config
        windows = [config.horizon, config.history, config.min_history, self.season, self.d_covariates, self.bounds]
        digest = hashlib.sha256(json.dumps(windows).encode())
        for table in self.tables:
            digest.update(table.name.encode())
            for array in (table.index, table.values, table.covariates):
                digest.update(repr(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def split(self, name: str) -> SeriesSplit:
        """One of "train", "validation", "test".

        Errors:  DataError if its fraction is 0 or no window fits in; ConfigError for another name.
        """
        if name not in SPLITS:
            raise ConfigError(f"there is no split {name!r}; use one of {list(SPLITS)}")
        begin, end = self.span(name)
        if begin == end:
            raise DataError(f"the series have no {name} split: data.{name}_fraction is 0; set it above 0")
        config = self.config
        least = config.history if config.min_history is None else config.min_history
        origins = []
        for number, table in enumerate(self.tables):
            first = max(begin - int(table.index[0]), least)
            last = min(end - int(table.index[0]), len(table.index)) - config.horizon
            known = ~np.isnan(table.values).all(1)
            counts = np.concatenate([[0], known.cumsum()])
            origins += [
                Origin(number, row)
                for row in range(first, last + 1)
                if counts[row] > counts[max(0, row - config.history)] + 1 and counts[row + config.horizon] > counts[row]
            ]
        if not origins:
            raise DataError(
                f"the {name} split, {end - begin:,} steps, has no window of data.history={config.history} steps before "
                f"it or in it and data.horizon={config.horizon} in it; make them smaller, or its fraction larger"
            )
        return SeriesSplit(name, self, tuple(origins))

    def span(self, name: str) -> tuple[int, int]:
        """The steps [begin, end) of a split."""
        number = SPLITS.index(name)
        return (0, *self.bounds)[number], self.bounds[number]

    @cached_property
    def naive_errors(self) -> np.ndarray:
        """What errors are scaled by: for each series and target, the mean absolute error of the seasonal-naive forecast
        in training, mean(abs(y_t - y_{t-season})), (n_series, d_target); NaN where training tells nothing.

        Source:  Hyndman & Koehler 2006, Int. J. Forecasting 22(4), sec. 3, with the season in the place of 1.
        """
        end = self.span("train")[1]
        scales = np.full((len(self.tables), self.d_target), np.nan)
        for row, table in zip(scales, self.tables):
            values = table.values[table.index < end]
            changes = np.abs(values[self.season :] - values[: -self.season])
            seen = ~np.isnan(changes)
            total = np.where(seen, changes, 0).sum(0)
            np.divide(total, seen.sum(0), out=row, where=total > 0)
        return scales

    def describe(self) -> str:
        """What was found and how it is divided: a few lines to print."""
        config = self.config
        n_values = sum(table.values.size for table in self.tables)
        n_missing = sum(int(np.isnan(table.values).sum()) for table in self.tables)
        n_steps = sum(len(table.index) for table in self.tables)
        several = f"{len(self.tables):,} series, " if len(self.tables) > 1 else ""
        lines = [
            f"series     {config.source}: {several}{n_steps:,} steps of {self.frequency}, season {self.season}",
            f"targets    {', '.join(self.targets)}; {n_missing:,} of {n_values:,} values are missing",
            f"forecast   {config.horizon} steps from the {config.history} before them",
        ]
        if self.d_covariates or self.d_past_covariates:
            lines.append(f"covariates {self.d_covariates} known ahead, {self.d_past_covariates} of the past only")
        for name in SPLITS:
            begin, end = self.span(name)
            if begin < end:
                times = [t for table in self.tables for t in table.times[(table.index >= begin) & (table.index < end)]]
                lines.append(
                    f"{name:<10} {self._moment(min(times))} to {self._moment(max(times))}, "
                    f"{len(self.split(name).origins):,} windows"
                )
        return "\n".join(lines)

    def _moment(self, time: float) -> str:
        if not self.dates:
            return f"{time:g}"
        moment = datetime.fromtimestamp(time, UTC)
        whole_days = self.frequency.kind == "months" or self.frequency.step >= 86400
        return moment.date().isoformat() if whole_days else moment.isoformat(" ", "minutes")[:16]


def open_series(config: SeriesDataConfig) -> SeriesData:
    """Read the series and divide them.

    They are cut at two moments, the same for all series, so that nothing of the validation's or the test's time is a
    target of training, of any series. A window belongs to the split in which all its targets lie; its history may reach
    back into the split before, as it would in use. Windows with fewer than two known values in the history (they
    tell no scale), or none in the targets, are left out.

    Gaps are left as gaps: steps without a row, and empty cells, are NaN. The model reads them as such, and no forecast
    is scored against them. (``co2`` has 59 of them among 2,284 weeks.)

    Errors:  DataError, one line: no such file, its cells or times cannot be read, covariates with gaps, a calendar
             without dates, a split that has no window.
    """
    path = find_series(config.source)
    columns = (*config.covariates, *config.past_covariates)
    found = read_series(
        path,
        time=config.time,
        series=config.series,
        targets=config.targets,
        covariates=columns,
        frequency=config.frequency,
    )
    if set(config.calendar) & set(CYCLES) and not found.dates:
        cycle = next(c for c in config.calendar if c in CYCLES)
        raise DataError(
            f"data.calendar has {cycle!r}, but the times of {config.source} are numbers; use 'season' or none"
        )
    season = config.season or found.frequency.season or DEFAULT_SEASONS.get(config.source) or 1
    n_steps = max(int(table.index[-1]) for table in found.series) + 1
    train_end = round(n_steps * (1 - config.validation_fraction - config.test_fraction))
    bounds = (train_end, round(n_steps * (1 - config.test_fraction)), n_steps)
    tables = _standardise(found.series, columns, train_end, config.source)
    tables = tuple(
        replace(t, covariates=np.concatenate([_calendar(t, config, season), t.covariates], 1)) for t in tables
    )
    data = SeriesData(
        config,
        tables,
        found.targets,
        found.frequency,
        found.dates,
        season,
        d_covariates=2 * config.harmonics * len(config.calendar) + len(config.covariates),
        d_past_covariates=len(config.past_covariates),
        bounds=bounds,
    )
    for name in SPLITS:
        begin, end = data.span(name)
        if begin < end or name == "train":
            data.split(name)
    return data


def _calendar(table: SeriesTable, config: SeriesDataConfig, season: int) -> np.ndarray:
    """(n, 2 * harmonics * cycles): sine and cosine of each cycle, known for any time."""
    waves = []
    for cycle in config.calendar:
        phase = table.index / season if cycle == "season" else table.times / CYCLES[cycle]
        for k in range(1, config.harmonics + 1):
            waves += [np.sin(2 * np.pi * k * phase), np.cos(2 * np.pi * k * phase)]
    return np.stack(waves, 1) if waves else np.empty((len(table.index), 0))


def _standardise(
    tables: tuple[SeriesTable, ...], columns: tuple[str, ...], train_end: int, source: str
) -> tuple[SeriesTable, ...]:
    """Covariates less their mean over their deviation, both of the training span alone."""
    if not columns:
        return tables
    for table in tables:
        row, column = next(zip(*np.nonzero(np.isnan(table.covariates))), (None, None))
        if row is not None and column is not None:
            raise DataError(
                f"{source}: the covariate {columns[column]!r} of series {table.name!r} is missing at its step "
                f"{row + 1}; fill it: only targets may have gaps"
            )
    training = np.concatenate([table.covariates[table.index < train_end] for table in tables])
    mean, deviation = (training.mean(0), training.std(0)) if len(training) else (0.0, 1.0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    return tuple(replace(table, covariates=(table.covariates - mean) / deviation) for table in tables)
