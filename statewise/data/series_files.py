"""Time series from a CSV file: its columns as numbers, its times on a regular grid."""

from __future__ import annotations

import csv
import importlib.util
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import reduce
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.errors import DataError, excerpt, few, reason

SERIES = {"co2": "co2/co2.csv", "sunspots": "sunspots/sunspots.csv"}  # sources by name: CSV files of statsmodels
MISSING = frozenset({"", "na", "nan", "n/a", "null", "none", "-", "?"})
SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
MONTHS = {"month": 1, "quarter": 3, "year": 12}
EARLIEST, LATEST = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2, 9999))
MAX_GAPS = 20  # a grid with more than this many empty steps for each row is no grid


class Frequency(NamedTuple):
    """How far apart two steps are: in calendar months, in seconds, or as plain numbers."""

    kind: str  # "months", "seconds" or "number"
    step: float

    def __str__(self) -> str:
        if self.kind == "number":
            return f"{self.step:g}"
        units = MONTHS if self.kind == "months" else SECONDS
        unit = max((u for u in units if self.step % units[u] == 0), key=lambda u: units[u], default="second")
        n = self.step / units[unit]
        return unit if n == 1 else f"{n:g} {unit}s"

    @property
    def season(self) -> int | None:
        """The usual season: a day of hours or minutes, a week of days, a year of weeks, months or quarters."""
        if self.kind == "months":
            return int(12 // self.step) if self.step < 12 and 12 % self.step == 0 else None
        if self.kind == "seconds":
            for low, season in ((SECONDS["week"], 365.25 * 86400), (SECONDS["day"], SECONDS["week"]), (0, 86400)):
                if self.step >= low:
                    n = round(season / self.step)
                    return n if n >= 2 else None
        return None


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
    """What a file holds: its series, the names of their columns, and how far apart two steps are."""

    series: tuple[SeriesTable, ...]
    targets: tuple[str, ...]
    frequency: Frequency
    dates: bool  # whether times are dates, or plain numbers


def find_series(source: str) -> Path:
    """The CSV file of a source: "co2" and "sunspots" come with the package statsmodels, which is found, not imported.

    Errors:  DataError where there is no such file, or statsmodels is not installed.
    """
    if source in SERIES:
        spec = importlib.util.find_spec("statsmodels")
        if spec is None or spec.origin is None:
            raise DataError(f'the source {source!r} comes with statsmodels; pip install "statewise[tasks]"')
        path = Path(spec.origin).parent / "datasets" / SERIES[source]
    else:
        path = Path(source).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}; expected one of {list(SERIES)} or the path of a CSV file")
    return path


def read_series(
    path: Path,
    *,
    time: str | None,
    series: str | None,
    targets: Sequence[str],
    covariates: Sequence[str],
    frequency: str | None,
) -> SeriesFile:
    """Read a CSV file whose first line names its columns.

    time: the column of times, the first one if None: ISO dates ("2024-03-01", "2024-03-01T12:00", also "20240301"),
    or numbers. Rows may stand in any order. series: the column that names the series where there are several, one
    below the other. targets: what to forecast; empty: every other column. frequency: see :func:`parse_frequency`; None:
    the widest grid that all times lie on. Steps without a row are gaps (NaN).

    Errors:  DataError with the line: a missing column, a cell that is no number or no time, a time given twice, times
             that lie on no grid, a target without a value, a first line of numbers.
    """
    header, rows = _read_rows(path)
    time = header[0] if time is None else time
    named = [("time", time), *(("targets", c) for c in targets), *(("covariates", c) for c in covariates)]
    if series is not None:
        named.append(("series", series))
    for field, column in named:
        if column not in header:
            raise DataError(f"{path} has no column {column!r} (data.{field}); its columns are: {few(header)}")
    taken = {time, series, *covariates}
    targets = tuple(targets) or tuple(column for column in header if column not in taken)
    if not targets:
        raise DataError(f"{path} has no column left to forecast; its columns are: {few(header)}")
    clash = [column for column in targets if column in taken]
    if clash:
        raise DataError(f"{path}: the column {excerpt(clash[0])} is a target and something else; name it once")

    at = {column: i for i, column in enumerate(header)}
    stamps, dates = _times(path, [row[at[time]] for _, row in rows], [line for line, _ in rows])
    columns = [*targets, *covariates]
    cells = np.array([[_number(path, line, c, row[at[c]]) for c in columns] for line, row in rows])
    for column, known in zip(targets, ~np.isnan(cells).all(0)):
        if not known:
            raise DataError(
                f"{path}: every value of the column {excerpt(column)} is missing; name the columns to forecast "
                "in data.targets"
            )
    names = ["" if series is None else row[at[series]].strip() for _, row in rows]
    spacing = _infer(stamps, dates) if frequency is None else parse_frequency(frequency, dates)
    index = _grid(path, stamps, spacing, [line for line, _ in rows])

    tables = []
    for name in dict.fromkeys(names):
        mine = np.array([i for i, other in enumerate(names) if other == name])
        tables.append(_on_grid(path, name or path.stem, stamps, index, cells, mine, spacing, len(targets), rows))
    return SeriesFile(tuple(tables), tuple(targets), spacing, dates)


def parse_frequency(text: str, dates: bool) -> Frequency:
    """ "week", "15 minutes", "3 months"; a number where times are numbers.

    >>> parse_frequency("2 weeks", True)
    Frequency(kind='seconds', step=1209600)
    """
    if not dates:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise DataError(f"data.frequency={text!r}: the times are numbers, so expected a number above 0")
        return Frequency("number", number)
    match = re.fullmatch(r"(\d{0,9})\s*([a-z]+?)s?", text.strip().lower())
    unit = match[2] if match else ""
    n = int(match[1] or 1) if match else 0
    if n < 1 or unit not in {*SECONDS, *MONTHS}:
        raise DataError(
            f"data.frequency={text!r} is unknown; write for example one of {[*SECONDS, *MONTHS]}, or '2 days'"
        )
    return Frequency("months", n * MONTHS[unit]) if unit in MONTHS else Frequency("seconds", n * SECONDS[unit])


def _read_rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and each row with its line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file, strict=True)
            lines = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} cannot be read as a CSV file in UTF-8: {reason(error)}") from error
    if len(lines) < 3:
        raise DataError(f"{path} has {max(0, len(lines) - 1)} rows; expected a line of names and at least two rows")
    header = [cell.strip() for cell in lines[0][1]]
    separator = next((mark for mark in ";\t|" if mark in header[0]), None)
    if len(header) == 1 and separator:
        raise DataError(f"{path} is separated by {separator!r}, it seems; expected commas (and decimal points)")
    if _is_value(header[0]):
        raise DataError(
            f"{path}: its first line must name the columns, but begins with the value {excerpt(header[0])}; "
            "put a line of names above it"
        )
    if len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path}: its first line must give each column a name of its own, got {few(header)}")
    for line, row in lines[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}, has {len(row)} cells; the first line names {len(header)} columns")
    return header, lines[1:]


def _is_value(cell: str) -> bool:
    """Whether it is a number or a date."""
    for read in (float, datetime.fromisoformat):
        try:
            read(cell)
        except ValueError:
            continue
        return True
    return False


def _number(path: Path, line: int, column: str, cell: str) -> float:
    text = cell.strip()
    if text.lower() in MISSING:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.inf
    if math.isinf(value):
        raise DataError(
            f"{path}, line {line}: {few([column])}={excerpt(text)} is no finite number; leave a missing value empty, "
            "or name the columns to use in data.targets"
        )
    return value


def _times(path: Path, cells: list[str], lines: list[int]) -> tuple[np.ndarray, bool]:
    """All of them dates, as seconds since 1970, or all of them numbers."""
    stamps, dates = [], True
    for cell, line in zip(cells, lines):
        try:
            moment = datetime.fromisoformat(cell.strip())
            stamps.append((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
        except ValueError:
            if stamps:
                raise DataError(
                    f"{path}, line {line}: the time {excerpt(cell)} is no ISO date, as those before it"
                ) from None
            dates = False
            break
        if not EARLIEST <= stamps[-1] < LATEST:  # beyond them the calendar ends, in one zone or another
            raise DataError(f"{path}, line {line}: the time {excerpt(cell)} is before the year 2 or after 9998")
    if not dates:
        for cell, line in zip(cells, lines):
            try:
                stamps.append(float(cell))
            except ValueError:
                stamps.append(math.nan)
            if not math.isfinite(stamps[-1]):
                raise DataError(
                    f"{path}, line {line}: the time {excerpt(cell)} is neither an ISO date (2024-03-01) nor a number; "
                    "name the column of times in data.time"
                )
    return np.array(stamps), dates


def _month(stamp: float) -> int:
    moment = datetime.fromtimestamp(stamp, UTC)
    return 12 * moment.year + moment.month - 1


def _within_month(stamp: float) -> tuple[Any, ...]:
    """What monthly times have in common: the day and hour, or that they are a month's last day."""
    moment = datetime.fromtimestamp(stamp, UTC)
    tomorrow = datetime.fromtimestamp(stamp + 86400, UTC)
    day = "last" if tomorrow.month != moment.month else moment.day
    return day, moment.hour, moment.minute, moment.second


def _infer(stamps: np.ndarray, dates: bool) -> Frequency:
    """The widest grid on which all times lie."""
    moments = np.unique(stamps)
    if len(moments) < 2:
        return Frequency("seconds", 86400) if dates else Frequency("number", 1.0)
    if not dates:
        return Frequency("number", float(np.diff(moments).min()))
    if np.diff(moments).min() >= 28 * 86400:
        apart = np.diff([_month(t) for t in moments])
        first_days = {_within_month(t) for t in moments}
        if len(first_days) == 1 and apart.min() > 0:
            return Frequency("months", int(np.gcd.reduce(apart)))
    steps = np.round(np.diff(moments) * 1000).astype(np.int64)
    return Frequency("seconds", reduce(math.gcd, steps.tolist()) / 1000)


def _grid(path: Path, stamps: np.ndarray, spacing: Frequency, lines: list[int]) -> np.ndarray:
    """The step of each time, the earliest being step 0."""
    if spacing.kind == "months":
        months = np.array([_month(t) for t in stamps])
        exact = (months - months.min()) / spacing.step
    else:
        with np.errstate(over="ignore"):
            exact = (stamps - stamps.min()) / spacing.step
    index = np.round(np.clip(exact, 0, 1 << 60)).astype(np.int64)
    off = ~(np.abs(exact - index) <= 1e-3)
    if off.any():
        line = lines[int(off.argmax())]
        raise DataError(f"{path}, line {line}: its time is not a whole number of steps of {spacing} after the first")
    if index.max() + 1 > (MAX_GAPS + 1) * len(set(index.tolist())):
        raise DataError(
            f"{path}: its times are not regular: {len(set(index.tolist())):,} of them on a grid of {index.max() + 1:,} "
            f"steps of {spacing}; resample the series, or set data.frequency"
        )
    return index


def _on_grid(
    path: Path,
    name: str,
    stamps: np.ndarray,
    index: np.ndarray,
    cells: np.ndarray,
    mine: np.ndarray,
    spacing: Frequency,
    n_targets: int,
    rows: list[tuple[int, list[str]]],
) -> SeriesTable:
    """The rows ``mine`` of a file as one series, NaN where there is none."""
    order = mine[np.argsort(index[mine], kind="stable")]
    again = np.flatnonzero(np.diff(index[order]) == 0)
    if len(again):
        line = max(rows[order[again[0]]][0], rows[order[again[0] + 1]][0])
        raise DataError(
            f"{path}, line {line}: a time is there twice in one series; one row for each step of {spacing}, "
            "or name the column that tells the series apart in data.series"
        )
    begin = index[order[0]]
    steps = np.arange(begin, index[order[-1]] + 1)
    filled = np.full((len(steps), cells.shape[1]), math.nan)
    filled[index[order] - begin] = cells[order]
    times = np.interp(steps, index[order], stamps[order])  # exact where there is a row
    return SeriesTable(name, steps, times, filled[:, :n_targets], filled[:, n_targets:])
