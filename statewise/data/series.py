"""Time series to forecast: read, put on a regular grid, given a calendar, and divided in the order of time.

``open_series(SeriesDataConfig(source="co2", horizon=52, history=208))`` is all that training and evaluation call.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property

import numpy as np

from statewise.configuration.types import AtLeastTwo, Count, Fraction, Name
from statewise.data.base import DataConfig, absolute
from statewise.data.series_as_trained import as_trained, require_step, rows_apart
from statewise.data.series_cells import Notation
from statewise.data.series_clock import NO_ZONE, Clock, on_the_wall
from statewise.data.series_covariates import read_covariates, training_scales
from statewise.data.series_files import SERIES, SeriesTable, find_series, read_series
from statewise.data.series_times import Frequency
from statewise.data.series_windows import Origin, Window, ends_of_splits, origins_within
from statewise.data.splits import SPLITS, unknown_split
from statewise.errors import ConfigError, DataError, require_least
from statewise.models.series_input import CYCLES, Calendar, Columns, Decimal, Delimiter, SeriesInputConfig

DEFAULT_SEASONS = {"sunspots": 11}  # where the frequency does not tell


@dataclass(frozen=True, kw_only=True)
class SeriesDataConfig(DataConfig):
    """Which series, what is forecast from what, and how they are divided.

    source: "co2" (weekly, Mauna Loa, 1958 to 2001) or "sunspots" (yearly, 1700 to 2008), which come with statsmodels,
    or a table whose first line names its columns: text of any delimiter, compressed or not, or Parquet.
    time, series, targets, frequency: the table's columns, see :func:`read_series`. All targets of a row are forecast
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
    delimiter, decimal, date_format, day_first: how a text file is written, where it does not say so itself: the mark
    between cells; "." or ","; the letters of strptime ("%d.%m.%Y"); whether days come before months.
    """

    source: Name = "co2"
    time: str | None = None
    series: str | None = None
    targets: Columns = ()
    covariates: Columns = ()
    past_covariates: Columns = ()
    frequency: str | None = None
    calendar: Calendar = ()
    harmonics: Count = 1
    season: Count | None = None
    horizon: Count = 52
    history: AtLeastTwo = 208
    min_history: AtLeastTwo | None = None
    validation_fraction: Fraction = 0.1
    test_fraction: Fraction = 0.2
    delimiter: Delimiter | None = None
    decimal: Decimal | None = None
    date_format: str | None = None
    day_first: bool | None = None

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

    @property
    def notation(self) -> Notation:
        return Notation(self.delimiter, self.decimal, self.date_format, self.day_first)

    def with_absolute_paths(self) -> SeriesDataConfig:
        return self if self.source in SERIES else replace(self, source=absolute(self.source))


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
    input: how they were read, for a model that is to read others so.
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
    input: SeriesInputConfig
    clock: Clock = NO_ZONE

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
            raise unknown_split(name)
        begin, end = self.span(name)
        if begin == end:
            raise DataError(f"the series have no {name} split: data.{name}_fraction is 0; set it above 0")
        config = self.config
        least = config.history if config.min_history is None else config.min_history
        origins = origins_within(self.tables, (begin, end), config.history, least, config.horizon)
        if not origins:
            raise DataError(
                f"the {name} split, {end - begin:,} steps, has no window of data.history={config.history} steps before "
                f"it or in it and data.horizon={config.horizon} in it; make them smaller, or its fraction larger"
            )
        return SeriesSplit(name, self, origins)

    def span(self, name: str) -> tuple[int, int]:
        """The steps [begin, end) of a split."""
        number = SPLITS.index(name)
        return (0, *self.bounds)[number], self.bounds[number]

    @cached_property
    def naive_errors(self) -> np.ndarray:
        """What errors are scaled by: for each series and target, the mean absolute error of the seasonal-naive forecast
        in training, mean(abs(y_t - y_{t-season})), (n_series, d_target); NaN where training tells nothing.

        Source:  Hyndman & Koehler 2006, Int. J. Forecasting 22(4), sec. 3, with the season instead of 1.
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
        moment = datetime.fromtimestamp(on_the_wall(np.array(time), self.clock).item(), UTC)
        whole_days = self.frequency.kind == "months" or self.frequency.step >= 86400
        return moment.date().isoformat() if whole_days else moment.isoformat(" ", "minutes")[:16]


def open_series(config: SeriesDataConfig, trained: SeriesInputConfig | None = None) -> SeriesData:
    """Read the series and divide them.

    They are cut at two moments, the same for all series, so that nothing of the validation's or the test's time is a
    target of training, of any series. A window belongs to the split in which all its targets lie; its history may reach
    back into the split before, as it would in use. Windows with fewer than two known values in the history (they
    tell no scale), or none in the targets, are left out.

    Gaps are left as gaps: steps without a row, and empty cells, are NaN. The model reads them as such, and no forecast
    is scored against them. (``co2`` has 59 of them among 2,284 weeks.)

    trained: what a trained model says of its data: columns, steps and calendar are those, covariates are scaled by its
    numbers, and seasons are counted from its beginning. None: by the training span of these series.

    Errors:  DataError, one line: no such file, its cells or times cannot be read, covariates with gaps, a calendar
             without dates, a split that has no window, other steps than the model's. ConfigError for a config that
             names other columns, another frequency or another calendar than the model's.
    """
    if trained is not None:
        config = as_trained(config, trained)
    columns = (*config.covariates, *config.past_covariates)
    found = read_series(
        find_series(config.source),
        time=config.time,
        series=config.series,
        targets=config.targets,
        covariates=columns,
        frequency=config.frequency if trained is None else Frequency(trained.unit, trained.step),
        notation=config.notation if trained is None else config.notation._replace(usual=trained.usual),
    )
    if trained is not None:
        require_step(config.source, found.series, trained)
    if set(config.calendar) & set(CYCLES) and not found.dates:
        cycle = next(c for c in config.calendar if c in CYCLES)
        raise DataError(
            f"data.calendar has {cycle!r}, but the times of {config.source} are numbers; use 'season' or none"
        )
    season = config.season or found.frequency.season or DEFAULT_SEASONS.get(config.source) or 1
    n_steps = max(int(table.index[-1]) for table in found.series) + 1
    bounds = ends_of_splits(n_steps, config.validation_fraction, config.test_fraction)
    mean, deviation = training_scales(found.series, columns, bounds[0], config.source)
    own = SeriesInputConfig(
        time=found.time,
        series=config.series,
        targets=found.targets,
        covariates=config.covariates,
        past_covariates=config.past_covariates,
        mean=mean,
        deviation=deviation,
        unit=found.frequency.kind,
        step=found.frequency.step,
        origin=found.origin,
        every=rows_apart(found.series, found.frequency),
        zone=found.clock.zone,
        calendar=config.calendar,
        harmonics=config.harmonics,
        season=season,
        history=config.history,
        min_history=config.history if config.min_history is None else config.min_history,
        delimiter=config.delimiter,
        decimal=found.notation.decimal,
        date_format=config.date_format,
        day_first=found.notation.day_first,
    )
    scaling = own
    if trained is not None:
        scaling = replace(
            own,
            mean=trained.mean,
            deviation=trained.deviation,
            origin=trained.origin,
            every=trained.every,
            season=trained.season,
            zone=own.zone or trained.zone,
        )
    data = SeriesData(
        config,
        tuple(replace(table, covariates=read_covariates(table, scaling)) for table in found.series),
        found.targets,
        found.frequency,
        found.dates,
        season,
        d_covariates=own.d_covariates,
        d_past_covariates=len(config.past_covariates),
        bounds=bounds,
        input=scaling,
        clock=found.clock,
    )
    for name in SPLITS:
        begin, end = data.span(name)
        if begin < end or name == "train":
            data.split(name)
    return data
