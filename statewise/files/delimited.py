"""Cells with separators between them: CSV and its relatives, by pandas."""

from __future__ import annotations

import csv
import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.errors import DataError, excerpt, few, importing, reason
from statewise.files.json_lines import Found
from statewise.files.limits import require_within
from statewise.files.opening import unfolded
from statewise.files.sniffing import HEAD, separator_of

MISSING = ("", "na", "nan", "n/a", "null", "none", "-", "?")  # cells that hold nothing, in any case of letters
GAPS = sorted({form(word) for word in MISSING for form in (str.lower, str.upper, str.title)} | {"NaN"})
DECIMAL_COMMA = re.compile(r"[+-]?\d+(?:,\d+)?(?:[eE][+-]?\d+)?")
THOUSANDS = re.compile(r"[+-]?\d{1,3},\d{3}")
BLANKS = r"\s+"
TOO_MANY = re.compile(r"Expected (\d+) fields in line (\d+), saw (\d+)")


def read_delimited(path: Path, wanted: Sequence[str] | None, text: Sequence[str]) -> Found:
    """The columns of a file of cells; ``text`` are those that stay text."""
    with importing("pandas", "files", f"{path}: a table needs", DataError):
        import pandas
    with unfolded(path) as file:
        data = file.read().removeprefix(b"\xef\xbb\xbf")
    if b"\0" in data:
        raise DataError(f"{path} has a NUL byte, so it is not text; save it as CSV in UTF-8")
    separator, header = header_of(path, data)
    names = column_names(path, header)
    n_lines = data.count(b"\n") + data.count(b"\r") + 1
    require_within(str(path), n_lines * len(names) * 8, len(data))
    read = names if wanted is None else [name for name in names if name in wanted or not name]
    gaps = {name: [""] if name in text else GAPS for name in names}
    types = {name: str for name in names if name in text}
    try:  # without usecols, which would pass over cells beyond the last name
        with warnings.catch_warnings():
            warnings.simplefilter("error", pandas.errors.ParserWarning)
            frame = pandas.read_csv(
                io.BytesIO(data), sep=separator, header=0, names=names, index_col=False, na_values=gaps,
                keep_default_na=False, dtype=types, skipinitialspace=True, low_memory=False, encoding="utf-8",
                float_precision="round_trip",
            )  # fmt: skip
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8 (byte {error.start}); save it as UTF-8") from error
    except Exception as error:
        raise DataError(_refusal(path, error, len(names))) from error
    columns = {name: _as_column(path, name, frame[name], separator, name in text) for name in read}
    notes = []
    if names[0] == "":
        index = columns.pop("", None)
        if index is not None and not np.array_equal(index, np.arange(len(index))):
            raise DataError(f"{path}: its first column has no name; give it one")
        notes.append("the first column, which has no name and counts the rows, is left out")
    return Found(columns, lambda i: _line(data, separator, i), tuple(filter(None, names)), tuple(notes))


def header_of(path: Path, data: bytes) -> tuple[str, list[str]]:
    """What separates the cells, and the cells of the first line."""
    head = data[:HEAD].decode("utf-8", "replace")
    lines = [line for line in head.splitlines() if line.strip()]
    if len(data) > HEAD and len(lines) > 1:
        lines.pop()
    if not lines:
        raise DataError(f"{path} is empty; expected a line of names, then one row a line")
    separator = separator_of(lines, few=True)
    if separator is None:
        rows = [line.split() for line in lines]
        wide = len(rows[0]) > 1 and len(rows) > 1 and all(len(row) == len(rows[0]) for row in rows)
        separator = BLANKS if wide and any(re.fullmatch(r"[-+.\deE]+", cell) for cell in rows[-1]) else ","
    first = _lines(data.lstrip(b"\r\n" if separator == "\t" else None))
    if separator == BLANKS:
        return separator, next(first).split()
    try:
        return separator, [" ".join(cell.split()) for cell in next(csv.reader(first, delimiter=separator))]
    except csv.Error as error:
        raise DataError(f"{path}: its first line names no columns: {reason(error)}") from error


def _lines(data: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(data), "utf-8", "replace", newline="")


def column_names(path: Path, header: list[str]) -> list[str]:
    if "" in header[1:] or header == [""] or len(set(header)) < len(header):
        raise DataError(f"{path}: its first line must give each column a different name, got {few(header)}")
    numbers = [_number(cell) for cell in header]
    if None not in numbers and sorted(set(numbers)) != numbers:  # type: ignore[type-var]
        raise DataError(
            f"{path}: its first line must name the columns, but holds the numbers {few(header)}; put names above them"
        )
    return header


def _number(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


def _as_column(path: Path, name: str, series: Any, separator: str, is_text: bool) -> np.ndarray:
    """Numbers also where they have decimal commas; text as Python's strings, None where there is none."""
    if series.dtype.kind in "biuf" and not is_text:
        found: np.ndarray = series.to_numpy()
        return found
    missing = series.isna().to_numpy()
    column = np.empty(len(series), object)
    column[:] = series.to_numpy(object)
    column[missing] = None
    if is_text or missing.all():
        return column if is_text else np.full(len(column), np.nan)
    known = [str(value).strip() for value in column[~missing]]
    sure = {";": True, ",": None}.get(separator, False)
    found_numbers = None if sure is None else comma_numbers(known, f"{path}, column {excerpt(name)}", sure=sure)
    if found_numbers is not None:
        numbers = np.full(len(column), np.nan)
        numbers[~missing] = found_numbers
        return numbers
    column[~missing] = [value if isinstance(value, str) else str(value) for value in column[~missing]]
    return column


def comma_numbers(cells: list[str], where: str, *, sure: bool = False) -> list[float] | None:
    """Cells that are numbers with decimal commas; None if they are none.

    sure:    whether a comma can only be a decimal one, as in a file whose cells semicolons separate
    Errors:  DataError that begins with ``where``, if each comma may also separate thousands.
    """
    if not all(map(DECIMAL_COMMA.fullmatch, cells)):
        return None
    commas = [cell for cell in cells if "," in cell]
    if commas and not sure and all(map(THOUSANDS.fullmatch, commas)):
        raise DataError(
            f"{where}: {excerpt(commas[0])} may use its comma for thousands or for decimals; write it with a point, "
            "or without the comma"
        )
    return [float(cell.replace(",", ".")) for cell in cells]


def _refusal(path: Path, error: Exception, n_columns: int) -> str:
    many = TOO_MANY.search(str(error))
    if many is not None:
        return f"{path}, line {many[2]}, has {many[3]} cells; the first line names {n_columns} columns"
    if "Length of header" in str(error):
        return f"{path}: its lines have more cells than its first line has names; give each column a name"
    return f"{path} cannot be read as a table: {reason(error)}"


def _line(data: bytes, separator: str, row: int) -> str:
    """In which line of the file a row ends; a cell in quotes may have several."""
    if separator == BLANKS:
        lines = [number for number, line in enumerate(_lines(data), 1) if line.strip()]
        return f"line {lines[row + 1]}"
    reader, seen = csv.reader(_lines(data), delimiter=separator), -2
    try:
        for cells in reader:
            seen += bool(cells) and (len(cells) > 1 or bool(cells[0].strip()))
            if seen == row:
                return f"line {reader.line_num}"
    except csv.Error:  # a cell longer than it reads
        pass
    return f"row {row + 1}"
