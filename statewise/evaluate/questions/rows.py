"""Rows of data: lines of JSON whose place is known, so that what is wrong with one can be said."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from statewise.configuration import DuplicateKeyError, unique_keys
from statewise.errors import DataError, few, reading

KINDS = {str: "a text", int: "an integer", list: "a list", dict: "an object"}


class Row(NamedTuple):
    """values: of one row; place: where it stands, for errors."""

    values: Mapping[str, Any]
    place: str

    def text(self, name: str) -> str:
        """Errors: DataError if there is no text under this name; as the others."""
        value: str = self._get(name, str)
        self._require_unicode(value, f'"{name}"')
        return value

    def integer(self, name: str) -> int:
        value: int = self._get(name, int)
        return value

    def row(self, name: str) -> Row:
        return Row(self._get(name, dict), f"{self.place}, {name}")

    def rows(self, name: str) -> list[Row]:
        found = [Row(value, f"{self.place}, {name}[{i}]") for i, value in enumerate(self._get(name, list))]
        for row in found:
            if not isinstance(row.values, Mapping):
                raise DataError(f"{row.place} is {shown(row.values)}; expected an object")
        return found

    def texts(self, name: str) -> list[str]:
        values: list[Any] = self._get(name, list)
        for i, value in enumerate(values):
            if not isinstance(value, str):
                raise DataError(f"{self.place}: {name}[{i}] is {shown(value)}; expected a text")
            self._require_unicode(value, f"{name}[{i}]")
        return values

    def _require_unicode(self, text: str, name: str) -> None:
        """JSON can hold half of a pair of code units, which no tokenizer can."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise DataError(
                f"{self.place}: {name} is not valid Unicode: {error.reason} at character {error.start}; write the "
                "character itself"
            ) from error

    def _get(self, name: str, kind: type) -> Any:
        if name not in self.values:
            raise DataError(f'{self.place} has no "{name}"; it has {few(self.values) or "nothing"}')
        value = self.values[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise DataError(f'{self.place}: "{name}" is {shown(value)}; expected {KINDS[kind]}')
        return value


def read_rows(path: Path) -> Iterator[Row]:
    """The objects of a file of JSON lines; empty lines are skipped.

    Errors:  DataError for a file that cannot be read or is empty, and for a line that is not a JSON object.
    """
    try:
        with reading(path), open(path, encoding="utf-8-sig") as file:  # some editors begin it with a byte order mark
            yield from parse_rows(file, str(path))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error.reason}; give a file of JSON lines") from error


def parse_rows(lines: Iterable[str], name: str) -> Iterator[Row]:
    """As :func:`read_rows`, of the lines of a file of this name."""
    found = False
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        try:
            values = json.loads(line, object_pairs_hook=unique_keys)
        except json.JSONDecodeError as error:
            raise DataError(
                f"{place} is not JSON ({error.msg} at character {error.colno}); write one object a line"
            ) from error
        except DuplicateKeyError as error:
            raise DataError(f"{place}: {error}; write each once") from error
        except (RecursionError, ValueError) as error:
            what = "brackets too deep" if isinstance(error, RecursionError) else "a number of too many digits"
            raise DataError(f"{place} has {what} to be read; write one object a line") from error
        if not isinstance(values, dict):
            raise DataError(f"{place} is {shown(values)}; write one object a line")
        found = True
        yield Row(values, place)
    if not found:
        raise DataError(f"{name} is empty; write one JSON object a line")


def shown(value: Any) -> str:
    """A value of a row, for a message."""
    if isinstance(value, (dict, list)) and len(value) > 4:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    text = json.dumps(value, default=str)
    return text if len(text) <= 40 else text[:37] + "..."
