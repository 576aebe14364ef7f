"""Sequences of a table: one in each row, one in each cell, or a step in each row."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import numpy as np

from statewise.errors import ConfigError, DataError, excerpt, few
from statewise.files.tables import Table, first_and_last, is_numeric
from statewise.models.file_input import FilesConfig

LABEL = "label"  # the column of labels where none is named
SEPARATORS = re.compile(r"[,;\s]+")
IDENTIFIER = re.compile(r"(?i:id|uid|.*[_ .-]id)|.*[a-z](?:Id|ID)")  # "PassengerId", and no "liquid"
NUMBERING = re.compile(r"index|idx|row|(.*[_ .-])?(nr\.?|no\.?|number)|#|level_0|unnamed: ?\d+", re.IGNORECASE)
EITHER = re.compile(r"(?!.*(?:,\s|\[))(?=.*\d,\d)(?=.*\d[;\s]).*", re.DOTALL)  # commas, and other marks beside them
MOST_FLOAT = float(np.finfo(np.float32).max)


class Fields(NamedTuple):
    """What a user says of the columns; see ``LabelledDataConfig``."""

    label: str | None = None
    sequence: str | None = None
    row: str | None = None
    time: str | None = None
    ignored: tuple[str, ...] = ()

    @property
    def text(self) -> list[str]:
        """Columns of names."""
        return [name for name in (self.label or LABEL, self.row) if name is not None]


class Sequences(NamedTuple):
    """values: (length, d_input) each   where: the place of sequence i, for messages
    names: of long tables, what they are called there
    rows: of long tables, (length,) each: the rows of the table that its steps are
    """

    values: list[np.ndarray]
    where: Callable[[int], str]
    names: list[str] | None = None
    rows: list[np.ndarray] | None = None


def decide_columns(table: Table, fields: Fields) -> tuple[FilesConfig, str]:
    """How a table holds the sequences, and the column of their labels. Columns that number the rows are left out.

    Errors:  DataError, which names the columns, if one is missing, or none of numbers is left; with the line, for a
             column of steps with a cell that is not a number. ConfigError for fields that contradict each other.
    """
    if fields.sequence is not None and (fields.row or fields.time or fields.ignored):
        raise ConfigError(
            "data.sequence_field holds whole sequences; leave out row_field, time_field and ignored_fields"
        )
    if fields.time is not None and fields.row is None:
        raise ConfigError("data.time_field sorts the steps of a long table; set data.row_field, or leave it out")
    label = fields.label or LABEL
    for option, name in (
        ("label_field", label), ("sequence_field", fields.sequence), ("row_field", fields.row),
        ("time_field", fields.time), *(("ignored_fields", name) for name in fields.ignored),
    ):  # fmt: skip
        if name is not None:
            table.column(name, f"data.{option}")
    taken = [label, fields.row, fields.time, *fields.ignored]
    if len(set(taken) - {None}) < len([name for name in taken if name is not None]):
        raise ConfigError(f"data: a column is named twice among {few(str(name) for name in taken if name)}")
    rest = tuple(name for name in table.columns if name not in taken and not counts_rows(name, table.columns[name]))
    if fields.sequence is not None or (fields.row is None and len(rest) == 1 and _has_lists(table.columns[rest[0]])):
        name = fields.sequence or rest[0]
        return FilesConfig(kind="lists", columns=(name,)), label
    if not rest:
        raise DataError(
            f"{table.path} has no columns of numbers left to learn from; its columns are: "
            f"{first_and_last(table.columns)}"
        )
    _require_numbers(table, rest, to_train=True)
    if fields.row is None:
        return FilesConfig(kind="wide table", columns=rest), label
    return FilesConfig(kind="long table", columns=rest, row_field=fields.row, time_field=fields.time), label


def read_sequences(table: Table, files: FilesConfig) -> Sequences:
    """The sequences of a table that are described by ``files``, in its order; of a long table in the order in which
    they begin.

    Errors:  DataError with the line, for a column that is missing, a cell that is not a finite number, a time that is
             there twice, a row that belongs to no sequence, lists of different widths.
    """
    if files.kind == "lists":
        (name,) = files.columns
        column = table.column(name, "data.sequence_field")
        return Sequences([_sequence(table, name, i, cell) for i, cell in enumerate(column)], table.at)
    for name in files.columns:
        table.column(name, "a column of the steps")
    _require_numbers(table, files.columns)
    columns = [table.columns[name] for name in files.columns]
    kind = np.float32 if all(column.dtype in (np.float32, np.float16) for column in columns) else np.float64
    block = np.stack([column.astype(kind) for column in columns], 1)
    bad = ~(np.abs(block) <= MOST_FLOAT)
    if bad.any():
        i, j = np.argwhere(bad)[0]
        what = "is missing" if np.isnan(block[i, j]) else "is not finite in float32"
        hint = (
            "; put sequences of different lengths into lists (data.sequence_field)"
            if files.kind == "wide table"
            else ""
        )
        raise DataError(f"{table.at(i)}: {excerpt(files.columns[j])} {what}; fill it, or leave the row out{hint}")
    if files.kind == "wide table":
        return Sequences([row[:, None] for row in block], table.at)
    return _grouped(table, files, block)


def _grouped(table: Table, files: FilesConfig, block: np.ndarray) -> Sequences:
    """A step a row."""
    assert files.row_field is not None
    ids = table.column(files.row_field, "data.row_field")
    given = [_name(value) for value in ids.tolist()]
    if None in given:
        i = given.index(None)
        what = "is missing" if _is_missing(ids[i]) else f"is {excerpt(ids[i])}"
        raise DataError(f"{table.at(i)}: {excerpt(files.row_field)} {what}; each step needs the name of its sequence")
    number: dict[str, int] = {}
    groups = np.array([number.setdefault(name, len(number)) for name in given if name is not None])
    keys = (groups,)
    if files.time_field is not None:
        times = _times(table, files.time_field)
        keys = (times, groups)  # type: ignore[assignment]
    order = np.lexsort(keys)
    if files.time_field is not None:
        again = (np.diff(times[order]) == 0) & (np.diff(groups[order]) == 0)
        if again.any():
            i = int(order[1:][again][0])
            raise DataError(
                f"{table.at(i)}: the sequence {excerpt(given[i])} has this {excerpt(files.time_field)} twice; give "
                "each step a row of its own"
            )
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    names = list(number)
    where = lambda i: f"{table.path}, sequence {excerpt(names[i])}"  # noqa: E731
    return Sequences(np.split(block[order], ends), where, names, np.split(order, ends))


def labels_of(table: Table, files: FilesConfig, label: str) -> np.ndarray:
    """(n,) of the sequences. Errors: DataError with the line, where a sequence has two."""
    labels = table.column(label, "data.label_field")
    if files.kind != "long table":
        return labels
    assert files.row_field is not None
    first: dict[str, int] = {}
    for i, name in enumerate(map(str, table.columns[files.row_field].tolist())):
        before = first.setdefault(name, i)
        same = np.array_equal(labels[before], labels[i]) or (_is_missing(labels[before]) and _is_missing(labels[i]))
        if not same:
            raise DataError(
                f"{table.at(i)}: the sequence {excerpt(name)} has the label {excerpt(labels[i])}, and "
                f"{excerpt(labels[before])} before; give each sequence one label"
            )
    return labels[np.array(list(first.values()))]


def _name(value: Any) -> str | None:
    return str(value) if isinstance(value, (str, int, float)) and not _is_missing(value) else None


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _is_text(column: np.ndarray) -> bool:
    return column.dtype == object and all(isinstance(value, str) for value in column)


def _has_lists(column: np.ndarray) -> bool:
    return column.dtype == object and any(isinstance(value, np.ndarray) for value in column)


def counts_rows(name: str, column: np.ndarray) -> bool:
    """Whether a column names or numbers the rows, by its name and by its values: "id" or "customer_id" of texts or
    whole numbers that are all different; "index", "Nr." or "Unnamed: 0" of whole numbers that also ascend, since what
    is measured may be called so.

    >>> counts_rows("id", np.array([7, 3, 5])), counts_rows("index", np.array([7, 3, 5]))
    (True, False)
    >>> counts_rows("id", np.array(["A7", "A3"], object)), counts_rows("id", np.array(["A7", "A7"], object))
    (True, False)
    """
    if len(column) < 2:
        return False
    if IDENTIFIER.fullmatch(name.strip()) and (column.dtype.kind in "iu" or _is_text(column)):
        return len({*column.tolist()}) == len(column)
    if column.dtype.kind not in "iu":
        return False
    return bool(NUMBERING.fullmatch(name.strip()) and (column[1:] > column[:-1]).all())


def _require_numbers(table: Table, names: Sequence[str], to_train: bool = False) -> None:
    """Errors:  DataError with the line, for the first column with a cell that is not a number."""
    wrong = [name for name in names if not is_numeric(table.columns[name])]
    if not wrong:
        return
    column = table.columns[wrong[0]]
    if _has_lists(column):
        raise DataError(
            f"{table.path}: the column {excerpt(wrong[0])} holds lists; name it: --set data.sequence_field="
            f"{shlex.quote(wrong[0])}"
        )
    i, value = 0, column[0]
    if column.dtype == object:
        i = next((i for i, value in enumerate(column) if not _is_number(value)), 0)
        value = column[i]
    flags = " ".join(f"--ignore-field {shlex.quote(name)}" for name in wrong)
    remedy = f"write a number, or leave out columns that are not steps: {excerpt(flags, 300, quoted=False)}"
    if len(wrong) == len(names):
        remedy = f"to learn from text, add --text-field {shlex.quote(wrong[0])}"
    raise DataError(
        f"{table.at(i)}: {excerpt(wrong[0])} is {excerpt(str(value))}, not a number; "
        f"{remedy if to_train else 'write one'}"
    )


def _is_number(value: Any) -> bool:
    try:
        return value is None or isinstance(float(value), float)
    except (TypeError, ValueError):
        return False


def _sequence(table: Table, name: str, i: int, cell: Any) -> np.ndarray:
    """(length, d) of a list, or of numbers in a text."""
    if isinstance(cell, str):
        if EITHER.fullmatch(cell.strip()):
            raise DataError(
                f"{table.at(i)}: {excerpt(name)} is {excerpt(cell)}, whose commas may mark decimals or separate "
                "numbers; write decimals with a point, or use commas only between numbers"
            )
        try:
            values = json.loads(cell) if cell.lstrip().startswith("[") else SEPARATORS.split(cell.strip())
            cell = np.array(values, np.float64)
        except (ValueError, TypeError, RecursionError):
            raise DataError(
                f"{table.at(i)}: {excerpt(name)} is {excerpt(cell)}, not a list of numbers; write one"
            ) from None
    if not isinstance(cell, np.ndarray) or cell.ndim not in (1, 2) or not cell.size or cell.dtype.kind not in "biuf":
        what = "missing or empty" if cell is None or np.size(cell) == 0 else excerpt(cell)
        raise DataError(f"{table.at(i)}: {excerpt(name)} is {what}; expected a list of numbers")
    if not (np.abs(cell.astype(np.float64)) <= MOST_FLOAT).all():
        raise DataError(
            f"{table.at(i)}: {excerpt(name)} has numbers that are missing or not finite in float32; fill them"
        )
    values = cell[:, None] if cell.ndim == 1 else cell
    return values.astype(np.float32 if values.dtype in (np.float32, np.float16) else np.float64)


def _times(table: Table, name: str) -> np.ndarray:
    """As numbers that grow."""
    column = table.column(name, "data.time_field")
    if column.dtype.kind == "M":
        missing = np.isnat(column)
        if not missing.any():
            return column.astype("datetime64[ns]").astype(np.int64)
        column = np.where(missing, np.nan, 0.0)
    elif column.dtype == object:
        column = _stamps(table, name, column)
    column = column.astype(np.float64)
    if not np.isfinite(column).all():
        raise DataError(f"{table.at(int((~np.isfinite(column)).argmax()))}: {excerpt(name)} is missing; write a time")
    return column


def _stamps(table: Table, name: str, column: np.ndarray) -> np.ndarray:
    """Seconds since 1970 of ISO dates."""
    stamps = [seconds_of(value) for value in column]
    if None in stamps:
        wrong = next(
            i for i, value in enumerate(column) if seconds_of(value) is None and not _is_number(value or "missing")
        )
        raise DataError(
            f"{table.at(wrong)}: {excerpt(name)} is {excerpt(column[wrong])}, neither an ISO date (2024-03-01) nor a "
            "number"
        )
    return np.array(stamps, np.float64)


def seconds_of(value: Any) -> float | None:
    """Since 1970, of an ISO date; None for what is none."""
    try:
        moment = datetime.fromisoformat(value.strip())
    except (AttributeError, ValueError):
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
