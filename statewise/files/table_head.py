"""The names of a table's columns and its first rows, without reading all of it."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from statewise.errors import DataError, importing
from statewise.files.opening import refusing, unfolded
from statewise.files.sniffing import HEAD, separator_of
from statewise.files.tables import first_and_last

ROWS = 20


class TableHead(NamedTuple):
    """columns: by name, the first cells of each; texts in a table, values of any kind in Parquet and JSON lines."""

    path: Path
    columns: Mapping[str, list[Any]]

    def require(self, name: str, option: str) -> None:
        """Errors:  DataError if there is no such column; it names those that there are."""
        if name not in self.columns:
            raise DataError(
                f"{option} {name}: {self.path} has no such column; its columns are {first_and_last(self.columns)}"
            )


def table_head(path: Path, kind: str) -> TableHead:
    """The head of a "table", "parquet" or "json lines" file, which may be compressed.

    Cost:    64 KB are read; of compressed Parquet all.
    Errors:  DataError for a file that is damaged, or has no names of columns.
    """
    if kind == "parquet":
        return TableHead(path, _parquet(path))
    with unfolded(path) as file:
        data = file.read(HEAD)
    lines = data.decode("utf-8-sig", "replace").splitlines()
    if len(data) == HEAD and len(lines) > 1:
        lines.pop()
    lines = [line for line in lines if line.strip()]
    return TableHead(path, _json_lines(lines) if kind == "json lines" else _cells(path, lines))


def _cells(path: Path, lines: list[str]) -> dict[str, list[Any]]:
    separator = separator_of(lines, few=True)
    split = [line.split() for line in lines] if separator is None else list(csv.reader(lines, delimiter=separator))
    rows = [row for row in split if row][: ROWS + 1]
    if not rows:
        raise DataError(f"{path} is empty; expected a line of names, then one row a line")
    return {" ".join(name.split()): [row[i] for row in rows[1:] if i < len(row)] for i, name in enumerate(rows[0])}


def _json_lines(lines: list[str]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for line in islice(lines, ROWS):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):  # longer than the head, or damaged: who reads it all says so
            continue
        for name, cell in value.items() if isinstance(value, dict) else ():
            found.setdefault(name, []).append(cell)
    return found


def _parquet(path: Path) -> dict[str, list[Any]]:
    with importing("pyarrow", "files", f"{path}: Parquet needs", DataError):
        import pyarrow.parquet
    with refusing(f"cannot read {path}"), unfolded(path) as raw:
        file = pyarrow.parquet.ParquetFile(raw)
        names = [name for name in file.schema_arrow.names if not name.startswith("__index_level_")]
        batch = next(file.iter_batches(ROWS, columns=names), None)
        return {name: [] if batch is None else batch.column(name).to_pylist() for name in names}
