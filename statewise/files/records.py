"""Records of a file, a few of their fields, one after the other: JSON lines, CSV and its relatives, Parquet.

A table of any size is read as it goes, so that what is in memory at once is a record, or some rows of a Parquet file.
``statewise.files.tables`` reads whole columns.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from statewise.errors import DataError, excerpt, few, importing, reason
from statewise.files.delimited import BLANKS, column_names, header_of
from statewise.files.json_lines import documents
from statewise.files.limits import most, too_much
from statewise.files.opening import refusing, unfolded
from statewise.files.sniffing import HEAD

RECORDS = ("json lines", "table", "parquet")  # kinds of files that hold records
LONGEST_CELL = 1 << 27
PARQUET_ROWS = 256  # in memory at once

Told = Callable[[int], None]  # how many bytes of the file are read
Record = tuple[int, tuple[Any, ...]]  # its number from 1 (of a line, or of a row of Parquet), and the fields


def read_records(path: Path, kind: str, fields: Sequence[str], told: Told | None = None) -> Iterator[Record]:
    """The ``fields`` of each record. One is named by its key, one within another by both: "meta.text".

    kind: what ``statewise.files.sniffing`` found, one of RECORDS

    Values are what JSON has; of a CSV file strings, of Parquet what pyarrow makes of its values. None is what is not
    given: null.

    Errors:  DataError with the line or the row, for a record without such a field, with the names that it has; for a
             file of another kind, a damaged file, and one that is larger than its bytes allow.
    """
    read = {"json lines": _json_lines, "table": _cells, "parquet": _parquet}[kind]
    return read(path, fields, told)


def place_of(kind: str, number: int) -> str:
    """Where a record stands: "line 7"."""
    return f"{'row' if kind == 'parquet' else 'line'} {number}"


def fields_of(path: Path, kind: str) -> dict[str, bool]:
    """The fields of the first record of a file, and whether each holds text (of CSV, all do).

    Errors:  DataError for a damaged file.
    """
    if kind == "parquet":
        return dict(_parquet_fields(_open_parquet(path).schema_arrow))
    if kind == "json lines":
        first = next((value for _, value in documents(path)), None)
        return dict(_fields_of(first)) if isinstance(first, dict) else {}
    return dict.fromkeys(_cell_names(path)[1], True)


def pick(record: Mapping[str, Any], name: str) -> Any:
    """A field of a record, or of what a field of it holds.

    >>> pick({"meta": {"text": "soon"}}, "meta.text")
    'soon'

    Errors:  KeyError.
    """
    if name in record:
        return record[name]
    outer, _, inner = name.partition(".")
    value = record[outer]
    if not inner or not isinstance(value, Mapping):
        raise KeyError(name)
    return pick(value, inner)


def picked(record: Any, fields: Sequence[str], where: str) -> tuple[Any, ...]:
    """Several.

    Errors:  DataError that begins with ``where``, for anything but a record, and for a missing field.
    """
    if not isinstance(record, Mapping):
        raise DataError(f'{where}: {excerpt(record)} is not an object; expected {{"name": value, ...}}')
    found = []
    for name in fields:
        try:
            found.append(pick(record, name))
        except KeyError:
            has = f"it has {few(record)}" if record else "it is empty"
            raise DataError(f"{where} has no field {excerpt(name)}; {has}") from None
    return tuple(found)


def _json_lines(path: Path, fields: Sequence[str], told: Told | None) -> Iterator[Record]:
    for number, record in documents(path, told):
        yield number, picked(record, fields, f"{path}, line {number}")


def _fields_of(record: Mapping[str, Any]) -> Iterator[tuple[str, bool]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from ((f"{name}.{inner}", is_text) for inner, is_text in _fields_of(value))
        else:
            yield name, isinstance(value, str)


# -- cells -------------------------------------------------------------------------------------------------------------


def _cell_names(path: Path) -> tuple[str, list[str]]:
    """What separates the cells, and the names of the columns."""
    with unfolded(path) as file:
        separator, header = header_of(path, file.read(HEAD + 1).removeprefix(b"\xef\xbb\xbf"))
    if separator == BLANKS:
        raise DataError(f"{path} separates its cells by blanks, like text; separate them by commas or tabs")
    return separator, column_names(path, header)


def _cells(path: Path, fields: Sequence[str], told: Told | None) -> Iterator[Record]:
    separator, names = _cell_names(path)
    for name in fields:
        if name not in names:
            raise DataError(f"{path} has no column {excerpt(name)}; its columns are {few(names)}")
    places = [names.index(name) for name in fields]
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    with unfolded(path, told=told) as file:
        reader = csv.reader(_decoded(path, file), delimiter=separator, skipinitialspace=True, strict=True)
        try:
            for cells in islice((row for row in reader if row), 1, None):
                if len(cells) != len(names):
                    raise DataError(
                        f"{path}, line {reader.line_num}, has {len(cells)} cells; the first line names {len(names)} "
                        "columns"
                    )
                yield reader.line_num, tuple(cells[place] for place in places)
        except csv.Error as error:
            raise DataError(f"{path}, line {reader.line_num}: {reason(error)}") from error


def _decoded(path: Path, lines: Iterable[bytes]) -> Iterator[str]:
    for number, line in enumerate(lines, 1):
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{path}, line {number} is not in UTF-8 (byte {error.start} of it); save it as UTF-8"
            ) from error


# -- Parquet -----------------------------------------------------------------------------------------------------------


def _open_parquet(path: Path) -> Any:
    with importing("pyarrow", "files", f"{path}: Parquet needs", DataError):
        import pyarrow.parquet
    with refusing(f"cannot read {path}"):
        return pyarrow.parquet.ParquetFile(path, memory_map=True)


def _parquet_fields(fields: Any) -> Iterator[tuple[str, bool]]:
    import pyarrow.types as types

    for field in fields:
        kind = field.type.value_type if types.is_dictionary(field.type) else field.type
        if types.is_struct(kind):
            yield from ((f"{field.name}.{name}", is_text) for name, is_text in _parquet_fields(kind))
        else:
            yield field.name, types.is_string(kind) or types.is_large_string(kind)


def _parquet(path: Path, fields: Sequence[str], told: Told | None) -> Iterator[Record]:
    """Some rows at a time; what they expand to is held against the bytes of the file as it goes."""
    file, n_bytes, unfolded_to, number = _open_parquet(path), path.stat().st_size, 0, 0
    known = file.schema_arrow.names
    columns = [name if name in known else name.partition(".")[0] for name in fields]
    for column, name in zip(columns, fields):
        if column not in known:
            raise DataError(f"{path} has no column {excerpt(name)}; its columns are {few(known)}")
    with refusing(f"cannot read {path}"):
        n_rows = max(file.metadata.num_rows, 1)
        for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
            unfolded_to += batch.nbytes
            if unfolded_to > most(n_bytes):
                raise DataError(too_much(str(path), f"more than {most(n_bytes):,} bytes", n_bytes))
            for record in batch.to_pylist():
                number += 1
                yield number, picked(record, fields, f"{path}, row {number}")
            if told is not None:
                told(n_bytes * number // n_rows)
