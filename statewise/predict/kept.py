"""Columns of your data that are kept beside the answers, so that you can tell to which rows they belong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from statewise.errors import DataError, InputError, excerpt, few
from statewise.files.tables import Table, first_and_last


class Kept(NamedTuple):
    """columns: (n,) for each name, cells as the data have them
    places:  for each row that is asked about, which cells its steps have; None: row i has cell i
    """

    columns: dict[str, np.ndarray]
    places: Sequence[np.ndarray] | None = None

    def beside(self, row: np.ndarray, step: np.ndarray | None) -> dict[str, np.ndarray]:
        """The cells of each answer: of its row, or of its step."""
        at = row
        if self.places is not None:
            at = np.array([self.places[r][0 if step is None else step[i]] for i, r in enumerate(row)], np.int64)
        return {name: column[at] for name, column in self.columns.items()}


def kept_of_table(table: Table, names: Sequence[str], places: Sequence[np.ndarray] | None, *, by_step: bool) -> Kept:
    """These columns of a table. places: of a long table, the rows of each sequence.

    by_step: whether each step has an answer, so that cells may differ within a sequence

    Errors:  DataError for a column that is missing, one that holds lists, and one that differs within a sequence.
    """
    columns = {name: as_cells(table.column(name, "to keep"), name, str(table.path)) for name in names}
    for name, column in columns.items():
        for rows in () if places is None or by_step else places:
            other = next((i for i in rows if column[i] != column[rows[0]]), None)
            if other is not None:
                raise DataError(
                    f"{table.at(int(other))}: {excerpt(name)} is {excerpt(column[other])}, and "
                    f"{excerpt(column[rows[0]])} in another step of the same sequence, which has one answer; keep "
                    "columns that are the same in all steps of a sequence"
                )
    return Kept(columns, places)


def kept_of_values(values: Sequence[Sequence[Any]], names: Sequence[str], where: str) -> Kept:
    """Those of records: (n,) values for each name. Errors: as :func:`kept_of_table`."""
    columns = {}
    for name, cells in zip(names, values):
        columns[name] = as_cells(np.fromiter(cells, object, len(cells)), name, where)
    return Kept(columns)


def as_cells(column: np.ndarray, name: str, where: str) -> np.ndarray:
    """Plain values: a time as text, what is missing as None. Errors: DataError for lists and records."""
    if column.dtype.kind == "M":
        days = column.astype("datetime64[D]") == column
        unit: Any = "D" if days[~np.isnat(column)].all() else "auto"
        found = np.datetime_as_string(column, unit).astype(object)
        found[np.isnat(column)] = None
        return found
    if column.dtype.kind == "f" and np.isnan(column).any():
        found = column.astype(object)
        found[np.isnan(column)] = None
        return found
    if column.dtype == object:
        return np.fromiter((_cell(value, name, where) for value in column), object, len(column))
    return column


def _cell(value: Any, name: str, where: str) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, (str, int, float)):
        return None if value != value else value
    if type(value).__name__ in ("NAType", "NaTType"):  # of pandas
        return None
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise DataError(
        f"{where}: {excerpt(name)} holds values of the type {type(value).__name__}; keep columns of numbers, texts or "
        "times"
    )


def require_no_fields(names: Sequence[str], what: str) -> None:
    """Errors:  InputError if columns are to be kept of data that have none."""
    if names:
        raise InputError(f"{few(names)} cannot be kept: {what}; leave it out")


def require_fields(names: Sequence[str], known: Sequence[str], where: str) -> None:
    """Errors:  DataError for a name that is not among the known ones."""
    for name in names:
        if name not in known:
            raise DataError(f"{where} has no column {excerpt(name)} to keep; it has {first_and_last(known)}")
