"""A table as it was stored, its columns by name: a text file of any delimiter, Parquet, or a DataFrame of pandas."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.data.decimals import decimal_mark, read_numbers
from statewise.data.in_memory_tables import series_frame
from statewise.data.series_clock import Zoned
from statewise.data.series_dates import DateFormat, read_dates
from statewise.errors import DataError, excerpt, few, importing, reason
from statewise.files.opening import refusing, unfolded
from statewise.files.parquet import checked_parquet
from statewise.files.sniffing import SEPARATORS, in_words, kind_within

HEAD = 200  # lines that the delimiter is found by
Column = list[str] | np.ndarray  # cells of text; numbers; moments
JSON_ADVICE = "make a table of it: pandas.read_json(FILE, lines=True).to_csv(OTHER, index=False)"


class Notation(NamedTuple):
    """What the user says of a text file; None: it is found. The fields are those of a SeriesDataConfig; ``usual`` has a
    decimal mark and whether days stand first for files that leave it open.
    """

    delimiter: str | None = None
    decimal: str | None = None
    date_format: str | None = None
    day_first: bool | None = None
    usual: tuple[str | None, bool | None] = (None, None)


class Times(NamedTuple):
    """stamps: (n,) float64, seconds since 1970 if ``dates``, else numbers; day_first: as of :class:`Dates`; zoned: if
    they have a time zone, and the stamps are UTC
    """

    stamps: np.ndarray
    dates: bool
    day_first: bool | None = None
    zoned: Zoned | None = None


@dataclass(frozen=True)
class Cells:
    """where: what messages call it   name: of its series where it is one   columns: in their order
    lines: of the rows of a text file   delimiter: of a text file, else ""
    zones: of moments that have one, by their column
    """

    where: str
    name: str
    columns: dict[str, Column]
    notation: Notation
    lines: Sequence[int] = ()
    delimiter: str = ""
    zones: Mapping[str, Zoned] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int) -> str:
        return f"{self.where}, line {self.lines[row]}" if self.lines else f"{self.where}, row {row + 1}"

    def require(self, field: str, column: str) -> None:
        if column not in self.columns:
            raise DataError(
                f"{self.where} has no column {column!r} (data.{field}); its columns are: {few(self.columns)}"
            )

    def texts(self, column: str) -> list[str]:
        """(n,): the cells as they would be written."""
        return [str(cell).strip() for cell in self.columns[column]]

    def decimal(self, columns: Sequence[str]) -> str:
        """The decimal mark of these columns. Errors: as :func:`decimal_mark`."""
        texts = [cells for name in columns if isinstance(cells := self.columns[name], list)]
        return self.notation.decimal or decimal_mark(texts, self.delimiter, self.where, self.notation.usual[0])

    def numbers(self, columns: Sequence[str], decimal: str) -> np.ndarray:
        """(n, k) float64, NaN for what is missing. Errors: DataError for a cell that is not a finite number."""
        found = np.empty((len(self), len(columns)))
        for place, name in enumerate(columns):
            cells = self.columns[name]

            def complain(row: int, name: str = name, cells: Column = cells) -> DataError:
                return DataError(
                    f"{self.place(row)}: {few([name])}={excerpt(str(cells[row]))} is not a finite number; leave a "
                    "missing value empty, or name the columns to use in data.targets"
                )

            if isinstance(cells, list):
                found[:, place] = read_numbers(cells, decimal, complain)
                continue
            if cells.dtype.kind == "M" or np.isinf(cells).any():
                raise complain(0 if cells.dtype.kind == "M" else int(np.isinf(cells).argmax()))
            found[:, place] = cells
        return found

    def times(self, column: str) -> Times:
        """All of them dates, or all of them numbers.

        Errors:  DataError for a cell that is neither, or not what the others are; and as :func:`read_dates`.
        """
        cells = self.columns[column]
        if isinstance(cells, np.ndarray):
            stamps = cells.astype("datetime64[us]").astype(np.int64) / 1e6 if cells.dtype.kind == "M" else cells
            missing = np.isnat(cells) if cells.dtype.kind == "M" else ~np.isfinite(cells)
            if missing.any():
                raise DataError(f"{self.place(int(missing.argmax()))}: the time is missing; leave the row out")
            if cells.dtype.kind == "M":
                return Times(np.asarray(stamps, np.float64), True, zoned=self.zones.get(column))
            if self.notation.date_format is None:
                return Times(self._plain(np.asarray(stamps, np.float64), column), False)
            cells = [f"{cell:g}" if cell % 1 else f"{int(cell)}" for cell in cells.tolist()]
        given = DateFormat(self.notation.date_format, self.notation.day_first, self.notation.usual[1])
        dates = read_dates(cells, given, self.place)
        if dates is not None:
            zoned = None if dates.offsets is None else Zoned(dates.offsets)
            return Times(dates.stamps, True, dates.day_first, zoned)

        def complain(row: int) -> DataError:
            return DataError(
                f"{self.place(row)}: the time {excerpt(cells[row])} is neither a date (2024-03-01) nor a number; name "
                "the column of times in data.time, or say how they are written in data.date_format, as '%d %b %Y'"
            )

        decimal = self.notation.decimal or ("," if self.delimiter not in (",", "") and "," in "".join(cells) else ".")
        numbers = read_numbers(cells, decimal, complain)
        if np.isnan(numbers).any():
            raise complain(int(np.isnan(numbers).argmax()))
        return Times(self._plain(numbers, column), False)

    def _plain(self, numbers: np.ndarray, column: str) -> np.ndarray:
        """Errors:  DataError for what looks like months, 202401 and so on."""
        years, months = np.divmod(numbers, 100)
        if ((numbers % 1 == 0) & (years >= 1800) & (years < 2200) & (months >= 1) & (months <= 12)).all():
            raise DataError(
                f"{self.where}: {few([column])} holds numbers that look like months, as {numbers[0]:.0f}; say "
                "data.date_format='%Y%m' if they are, and rename them to dates or steps if they are not"
            )
        return numbers


def read_cells(source: Any, notation: Notation) -> Cells:
    """The table of a path, or of a DataFrame.

    A text file is UTF-8, compressed or not, and its first line names the columns. Its delimiter is the one of comma,
    semicolon, tab and bar that gives all lines as many cells. The index of a DataFrame is its first column if it has a
    name, or holds dates; that of a Series in any case.

    Errors:  DataError, one line, for a file that is not a table, for Parquet that expands to more than its size allows,
             and for Parquet without pandas.
    """
    if not isinstance(source, (str, Path)):
        return _of_frame(source, "the table", "series", notation)
    path = Path(source).expanduser()
    if not path.is_file():
        raise DataError(f"there is no file {str(path)!r}")
    kind = kind_within(path)
    if kind == "parquet":
        with importing("pandas", "files", f"{path} is Parquet, which needs", DataError):
            import pandas  # noqa: F401
        file = checked_parquet(path)
        with refusing(f"cannot read {path}"):
            frame = file.read().to_pandas()
        return _of_frame(frame, str(path), path.name.split(".")[0] or path.name, notation)
    if kind not in ("table", "text", "empty"):
        advice = JSON_ADVICE if kind == "json lines" else "give CSV, TSV or Parquet, a row for each time and series"
        what = in_words(kind) if ";" in in_words(kind) else f"{in_words(kind)}; {advice}"
        raise DataError(f"{path} cannot be read as a table: it is {what}")
    return _of_text(path, notation)


def _of_text(path: Path, notation: Notation) -> Cells:
    with unfolded(path) as file, io.TextIOWrapper(file, encoding="utf-8-sig", newline="") as text:
        try:
            head = [line for _, line in zip(range(HEAD), text)]
            delimiter = notation.delimiter or _delimiter(path, head)
            reader = csv.reader(chain(head, text), delimiter=delimiter, strict=True)
            rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
        except (UnicodeDecodeError, csv.Error) as error:
            raise DataError(f"{path} cannot be read as a table in UTF-8: {reason(error)}") from error
    if len(rows) < 2:
        raise DataError(f"{path} has 0 rows; expected a line of names, and below it a row for each time and series")
    if not rows[0][1][-1].strip() and all(len(row) == len(rows[0][1]) and not row[-1].strip() for _, row in rows):
        rows = [(line, row[:-1]) for line, row in rows]  # every line ends with a delimiter
    header = [cell.strip() for cell in rows[0][1]]
    if _is_value(header[0]):
        raise DataError(
            f"{path}: its first line must name the columns, but begins with the value {excerpt(header[0])}; "
            "put a line of names above it"
        )
    if len(set(header)) < len(header) or "" in header:
        raise DataError(f"{path}: its first line must give each column its own name, got {few(header)}")
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise DataError(f"{path}, line {line}, has {len(row)} cells; the first line names {len(header)} columns")
    columns: dict[str, Column] = dict(zip(header, map(list, zip(*(row for _, row in rows[1:])))))
    name = path.name.split(".")[0] or path.name
    return Cells(str(path), name, columns, notation, [line for line, _ in rows[1:]], delimiter)


def _delimiter(path: Path, head: list[str]) -> str:
    """The one that gives the first lines as many cells each; of several the one that gives the most.

    Errors:  DataError where two give as many.
    """
    widths: dict[str, list[int]] = {}
    for mark in SEPARATORS:
        try:
            widths[mark] = [len(row) for row in csv.reader(head, delimiter=mark) if any(cell.strip() for cell in row)]
        except csv.Error:  # a cell that is too long: who reads it says so
            continue
    several = {mark: rows for mark, rows in widths.items() if rows and rows[0] > 1}
    even = {mark: rows[0] for mark, rows in several.items() if len(set(rows)) == 1}
    best = [mark for mark, width in even.items() if width == max(even.values())]
    if len(best) > 1:
        raise DataError(
            f"{path} may be separated by {' or '.join(map(repr, best))}; say which: data.delimiter={best[0]!r}"
        )
    return best[0] if best else max(several, key=lambda mark: several[mark][0], default=",")


def _is_value(cell: str) -> bool:
    """Whether it is a number or a date."""
    try:
        float(cell.replace(",", "."))
    except ValueError:
        try:
            return read_dates([cell], DateFormat(day_first=True), lambda row: "") is not None
        except DataError:  # 31/31/2024
            return True
    return True


def _of_frame(frame: Any, where: str, name: str, notation: Notation) -> Cells:
    with importing("pandas", "files", "a table in memory needs", DataError):
        import pandas
    if isinstance(frame, pandas.Series):
        frame = series_frame(frame)
    if not isinstance(frame, pandas.DataFrame):
        raise DataError(f"the table is a {type(frame).__name__}; give a path or a DataFrame of pandas")
    index = frame.index
    if index.nlevels > 1 or index.name is not None or isinstance(index, (pandas.DatetimeIndex, pandas.PeriodIndex)):
        index = index if index.nlevels > 1 or index.name is not None else index.rename("time")
        frame = pandas.concat([index.to_frame(index=False), frame.reset_index(drop=True)], axis=1)
    names = [str(name).strip() for name in frame.columns]
    if len(set(names)) < len(names) or "" in names:
        raise DataError(f"{where} must give each column its own name, got {few(names)}")
    if not len(frame) or not names:
        raise DataError(f"{where} has no rows; give at least one")
    columns = {column: _column(frame.iloc[:, i], pandas) for i, column in enumerate(names)}
    zones = {column: zoned for i, column in enumerate(names) if (zoned := _zoned(frame.iloc[:, i], where))}
    return Cells(where, name, columns, notation, zones=zones)


def _zoned(values: Any, where: str) -> Zoned | None:
    """The zone of a pandas column that holds times with a zone, by its dtype or as objects; None for another."""
    zone = getattr(values.dtype, "tz", None)
    if zone is not None:
        ahead = values.dt.tz_localize(None) - values.dt.tz_convert("UTC").dt.tz_localize(None)
        return Zoned(ahead.dt.total_seconds().to_numpy(np.float64), str(zone))
    if values.dtype != object:
        return None
    clocks = [cell.utcoffset() for cell in values.dropna().tolist() if hasattr(cell, "utcoffset")]
    if not any(clock is not None for clock in clocks):
        return None
    if None in clocks:
        raise DataError(
            f"{where}: some times of {few([values.name])} have a time zone and some have none; give all one"
        )
    return Zoned(np.array([clock.total_seconds() for clock in clocks]))


def _column(values: Any, pandas: Any) -> Column:
    kinds = pandas.api.types
    if isinstance(values.dtype, pandas.CategoricalDtype):
        values = values.astype(values.cat.categories.dtype)
    if isinstance(values.dtype, pandas.PeriodDtype):
        values = values.dt.to_timestamp()
    first = values.dropna().iloc[:1].tolist()
    if kinds.is_datetime64_any_dtype(values.dtype) or (first and hasattr(first[0], "toordinal")):
        moments = pandas.to_datetime(values, utc=True, errors="coerce").dt.tz_localize(None)
        found: np.ndarray = moments.to_numpy("datetime64[us]")
        return found
    if kinds.is_numeric_dtype(values.dtype):
        whole = kinds.is_integer_dtype(values.dtype) and not values.isna().any()
        found = values.to_numpy(np.int64) if whole else values.to_numpy(np.float64, na_value=np.nan)
        return found
    return ["" if gone else str(cell) for cell, gone in zip(values.tolist(), values.isna().tolist())]
