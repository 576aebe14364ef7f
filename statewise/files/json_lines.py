"""JSON lines: a document a line, read and written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from statewise.configuration.reading import unique_keys
from statewise.errors import DataError, excerpt, reason
from statewise.files.opening import unfolded


class Found(NamedTuple):
    """columns: those that were asked for   where: where a row stands   names: of all columns that there are"""

    columns: dict[str, np.ndarray]
    where: Callable[[int], str]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()


def documents(path: Path, told: Callable[[int], None] | None = None) -> Iterator[tuple[int, Any]]:
    """The number of each line, from 1, and what it holds; blank lines are skipped. Read as it goes; ``told`` is
    called with how many bytes of the file were.

    Errors:  DataError with the line, for a line that is not JSON in UTF-8, and for a key that is there twice.
    """
    with unfolded(path, told=told) as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(b"\xef\xbb\xbf")
            if not line.strip():
                continue
            try:
                yield number, json.loads(line.decode("utf-8"), object_pairs_hook=unique_keys)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is not JSON: {reason(error)}") from error


def json_line(record: Any, encoding: str | None = "utf-8") -> str:
    """A record on one line, in the letters that it has; in escapes alone where ``encoding`` is not that of Unicode, and
    for what no Unicode is, as in the name of a file.

    >>> json_line({"class": "größer"})
    '{"class": "größer"}'
    """
    text = json.dumps(record, ensure_ascii=False)
    if encoding is None or encoding.lower().replace("-", "").replace("_", "") not in ("utf8", "utf8sig"):
        return json.dumps(record)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a surrogate alone
        return json.dumps(record)
    return text


def read_json_columns(path: Path, wanted: Sequence[str] | None) -> Found:
    """Objects as columns, in the order in which their keys come; None where an object has no such key."""
    lines: list[int] = []
    columns: dict[str, list[Any]] = {}
    names: dict[str, None] = {}
    for number, value in documents(path):
        if not isinstance(value, dict):
            raise DataError(
                f'{path}, line {number}: {excerpt(value)} is not an object; expected {{"name": value, ...}}'
            )
        names.update(dict.fromkeys(value))
        for name, one in value.items():
            if wanted is None or name in wanted:
                if name not in columns:
                    columns[name] = []
                behind = len(lines) - len(columns[name])
                if behind:
                    columns[name].extend([None] * behind)
                columns[name].append(_as_array(one) if isinstance(one, list) else one)
        lines.append(number)
    for values in columns.values():
        values.extend([None] * (len(lines) - len(values)))
    read = {name: as_column(values) for name, values in columns.items()}
    return Found(read, lambda i: f"line {lines[i]}", tuple(names))


def _as_array(values: list[Any]) -> Any:
    """A list of numbers, or of lists of as many numbers each, as an array; others stay as they are. null is NaN."""
    try:
        array = np.array(values, np.float64)  # also of None, which becomes NaN
    except (TypeError, ValueError, OverflowError):
        return values
    plain = all(one is None or type(one) in (int, float, list) for one in values)
    return array if array.ndim in (1, 2) and plain else values


def as_column(values: list[Any]) -> np.ndarray:
    """Numbers, true and false, or objects as they are."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.array(values, bool)
    if kinds <= {int, float, type(None)} and kinds != {type(None)}:
        if kinds == {int} and max(map(abs, values)) < 1 << 63:
            return np.array(values, np.int64)
        try:
            return np.array([np.nan if value is None else value for value in values], np.float64)
        except OverflowError:
            return np.array([np.inf if isinstance(v, int) and abs(v) >= 1 << 1023 else v for v in values], np.float64)
    column = np.empty(len(values), object)
    column[:] = values
    return column
