"""Tables as people have them: CSV with any separator, TSV, Parquet and JSON lines, each as it is or compressed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from statewise.errors import DataError, excerpt, few
from statewise.files.delimited import read_delimited
from statewise.files.json_lines import read_json_columns
from statewise.files.parquet import read_parquet
from statewise.files.sniffing import checked_kind, in_words


@dataclass(frozen=True)
class Table:
    """The columns of a file, (n,) each, in its order.

    kind:    "table" (cells with separators), "parquet" or "json lines"
    columns: numbers (int64, float64 with NaN where there is none; of Parquet any), bool, datetime64, or Python objects:
             text, None where there is none, and lists as arrays of numbers (length,) or (length, d)
    where:   the place of row i: "line 7", "row 3"
    names:   of all columns of the file, also of those that were not read
    notes:   what was skipped, for the reader
    """

    path: Path
    kind: str
    columns: dict[str, np.ndarray]
    where: Callable[[int], str]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def column(self, name: str, option: str) -> np.ndarray:
        """The column that ``option`` ("data.label_field") names.

        Errors:  DataError, which names the columns that there are.
        """
        if name not in self.columns:
            raise DataError(
                f"{self.path} has no column {excerpt(name)} ({option}); its columns are: {first_and_last(self.names)}"
            )
        return self.columns[name]

    def at(self, i: int) -> str:
        """Row i, to begin a message with: "sales.csv, line 7"."""
        return f"{self.path}, {self.where(i)}"


def first_and_last(names: Iterable[str]) -> str:
    """
    >>> first_and_last(map(str, range(100)))
    '0, 1, 2, 3, 4, 5, ..., 95, 96, 97, 98, 99'
    """
    shown = list(names)
    return few(shown if len(shown) <= 12 else [*shown[:6], "...", *shown[-5:]])


def is_text(column: np.ndarray) -> bool:
    """Whether all that is there are strings."""
    return column.dtype == object and all(value is None or isinstance(value, str) for value in column)


def is_numeric(column: np.ndarray) -> bool:
    """Whether it is one of numbers or of true and false."""
    return column.dtype.kind in "biuf"


def read_table(path: Path | str, *, columns: Sequence[str] | None = None, text: Sequence[str] = ()) -> Table:
    """All of a table, in memory: what it is says its content, and its name has to agree.

    columns: the only ones that are read, of those that there are; None: all
    text:    columns that stay text in a CSV file, whatever is in them: names, labels, documents. "NA" and "None"
             are words there, and gaps elsewhere

    A CSV file is in UTF-8, and its first line names its columns; commas, semicolons, tabs, bars or blanks separate the
    cells; a number may have a decimal comma where no comma separates. A first column without a name that counts the
    rows, as pandas writes it, is left out.

    Errors:  DataError, one line, with the line of the file: for what is none of these, another format than its name
             says, damaged, or larger than its bytes allow; for rows of unlike lengths, names that are there twice, and
             numbers that may be read in two ways; if pandas or pyarrow is not installed.
    """
    path = Path(path)
    kind = checked_kind(path)
    if kind == "json lines":
        found = read_json_columns(path, columns)
    elif kind == "parquet":
        found = read_parquet(path, columns)
    elif kind in ("table", "text"):
        kind, found = "table", read_delimited(path, columns, text)
    else:
        raise DataError(f"{path} is {in_words(kind)}; expected a table: CSV, Parquet or JSON lines")
    if not found.columns and columns and found.names:
        raise DataError(
            f"{path} has none of the columns {first_and_last(columns)}; its columns are: {first_and_last(found.names)}"
        )
    if not found.columns or not len(next(iter(found.columns.values()))):
        raise DataError(f"{path} has no {'rows' if found.columns else 'columns'}; expected some")
    return Table(path, kind, *found)
