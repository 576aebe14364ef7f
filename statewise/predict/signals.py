"""A signal as text, a step a line: which of its numbers the model reads, and that none is read as another.

A comma may separate two numbers, or mark decimals. A line of names says which it is, and so do other separators, and
numbers that can be read in only one way. If nothing says it, the signal is refused.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isinf
from pathlib import Path

import numpy as np

from statewise.data.own.tables import seconds_of
from statewise.errors import DataError, excerpt, few, reading
from statewise.files.delimited import BLANKS
from statewise.files.opening import unfolded
from statewise.files.sniffing import SEPARATORS
from statewise.models.encoder import SequenceModelConfig
from statewise.predict.rows import files_of

NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?(?:nan|inf|infinity)", re.ASCII | re.IGNORECASE)
# Numbers that Python does not read: "−1" with a true minus, "1_000", "1'000"
AS_PEOPLE_WRITE = re.compile(r"[−–+-]?\d{1,3}(?:[_'’]\d{3})*(?:[.,]\d+)?")
WHOLE = re.compile(r"[+-]?\d+", re.ASCII)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}", re.ASCII)
DECIMALS = re.compile(r"[+-]?\d+,0\d.*|[+-]0,.*", re.ASCII)  # two whole numbers are not written so


def read_signal(path: Path, config: SequenceModelConfig, keep: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """(length, d_input) of a file, compressed or not, and (length, ...) its cells to keep.

    Errors:  DataError, as :func:`read_steps`.
    """
    with reading(path), unfolded(path) as file:
        data = file.read()
    try:
        lines = list(io.StringIO(data.decode("utf-8-sig"), newline=None))
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not in UTF-8 (byte {error.start}); save it as UTF-8") from error
    steps = list(read_steps(lines, str(path), config, lines, keep))
    if not steps:
        raise DataError(f"{path} holds no numbers; expected a step on each line")
    return np.array([step for step, _ in steps]), np.array([cells for _, cells in steps], object)


def read_steps(
    lines: Iterable[str], where: str, config: SequenceModelConfig, known: Sequence[str] = (), keep: Sequence[str] = ()
) -> Iterator[tuple[list[float], list[str]]]:
    """The numbers of each step that the model reads, and its cells in the columns to ``keep``, which a line of names
    has to name. Blank lines are skipped.

    A first line names the columns if it holds something else than numbers. If the model knows what its columns are
    called, they are found by these names, and others are skipped; if not, or if there are no names, there are as
    many columns as it reads, in its order. Commas, semicolons, tabs, bars or blanks separate them, in all lines alike.

    known:   all lines, if they are there already; else the first one with numbers says how the others are written

    Errors:  DataError with the line: a column that is missing, others than the model reads, a cell that is not a
             number, or may be two; a step of another sequence than the first one, or one that is not after the one
             before it.
    """
    names: str | None = None
    form: _Form | None = None
    first: tuple[str, str] | None = None  # without names above it
    for number, given in enumerate(lines, 1):
        line, place = given.removeprefix("\ufeff").strip(), f"{where}, line {number}"
        if not line:
            continue
        if form is None and names is None and _is_of_names(line, config, place):
            names = line.removeprefix("#").strip()
            continue
        if form is None:
            body = [text for text in map(str.strip, known) if text][names is not None :] or [line]
            form = _unnamed(body, config, place) if names is None else _named(names, body, config, where, keep)
            if keep and names is None:
                raise DataError(f"{where} has no line of names, and so no column {excerpt(keep[0])} to keep; write one")
            form.settle(body)
            first = (line, place) if names is None else None
        elif first is not None:
            _require_no_counted_names(*first, line, form)
            first = None
        yield form.step(line, place)


# -- what stands above -------------------------------------------------------------------------------------------------


def _is_of_names(line: str, config: SequenceModelConfig, place: str) -> bool:
    """Whether a first line names the columns. Errors: DataError where names and numbers would look alike."""
    cells = [_name(cell) for cell in re.split(r"[,;|\s]+", line) if cell]
    if not all(map(NUMBER.fullmatch, cells)):
        return True
    columns = columns_of(config)
    if columns and {*columns} <= {*cells}:
        raise DataError(_either(line, place))
    return False


def _require_no_counted_names(first: str, place: str, second: str, form: _Form) -> None:
    """pandas calls columns 0, 1 and so on. Errors: DataError for such a first line, above numbers with decimals."""
    counted = [str(i) for i in range(form.n_cells)]
    below = form.split(second)
    if form.split(first) == counted and any(not WHOLE.fullmatch(cell) for cell in below):
        raise DataError(_either(first, place))


def _either(line: str, place: str) -> str:
    return (
        f"{place}: {excerpt(line)} may be names of columns, or a step; remove it, or write names that are not numbers "
        "above the steps"
    )


def columns_of(config: SequenceModelConfig) -> tuple[str, ...]:
    """What the numbers of a step are called, where the model knows it."""
    files = files_of(config)
    return files.columns if files is not None and files.kind == "long table" else ()


def _name(cell: str) -> str:
    return " ".join(cell.strip().strip('"').split())


# -- how a signal is written -------------------------------------------------------------------------------------------


@dataclass
class _Form:
    """separator: of the cells; None: there is one in a line   n_cells: in each line   places: of those that are read
    decimal:   "." or ",", as soon as a number says it
    row, time: the places of what sequence a step belongs to, and when it is; None: not there
    kept:      the places of cells that are kept as they stand
    """

    separator: str | None
    n_cells: int
    places: Sequence[int]
    row: int | None = None
    time: int | None = None
    decimal: str | None = None
    sequence: str | None = None  # the first step's
    latest: float = -np.inf
    kept: Sequence[int] = ()

    def split(self, line: str) -> list[str]:
        return _split(line, self.separator)

    def step(self, line: str, place: str) -> tuple[list[float], list[str]]:
        cells = self.split(line)
        if len(cells) != self.n_cells:
            raise DataError(f"{place}: {excerpt(line)} has {_counted(len(cells), 'cell')}; expected {self.n_cells}")
        if self.row is not None:
            self._require_same(cells[self.row], place)
        if self.time is not None:
            self._require_later(cells[self.time], place)
        return [self._number(cells[i], line, place) for i in self.places], [cells[i] for i in self.kept]

    def settle(self, body: Sequence[str]) -> None:
        """Looks for a number that says which mark is decimal."""
        for line in body:
            cells = self.split(line)
            for cell in (cells[i] for i in self.places if i < len(cells)):
                if DECIMAL_COMMA.fullmatch(cell) and not THOUSANDS.fullmatch(cell):
                    self.decimal = ","
                elif NUMBER.fullmatch(cell) and "." in cell:
                    self.decimal = "."
                if self.decimal is not None:
                    return

    def _number(self, cell: str, line: str, place: str) -> float:
        mark = "." if "." in cell and NUMBER.fullmatch(cell) else "," if DECIMAL_COMMA.fullmatch(cell) else None
        if mark is None and not NUMBER.fullmatch(cell):
            raise DataError(
                f"{place}: {excerpt(line)} is not a step of numbers, because of {excerpt(cell)}; write numbers alone"
            )
        if mark is not None and self.decimal not in (None, mark):
            raise DataError(f"{place}: {excerpt(cell)} has a different decimal mark from the others; use one mark")
        if mark == "," and self.decimal is None and self.separator != ";" and THOUSANDS.fullmatch(cell):
            raise DataError(
                f"{place}: {excerpt(cell)} may have thousands or decimals behind its comma; write it with a point, or "
                "without a comma"
            )
        self.decimal = mark or self.decimal
        number = float(cell.replace(",", "."))
        if isinf(number) and cell.lstrip("+-")[:1].isdigit():
            raise DataError(f"{place}: {excerpt(cell)} is too large for a number; write numbers up to 1e308")
        return number

    def _require_same(self, name: str, place: str) -> None:
        if self.sequence is None:
            self.sequence = name
        if name != self.sequence:
            raise DataError(
                f"{place}: the step is of {excerpt(name)}, and those before it are of {excerpt(self.sequence)}; a "
                "signal is one sequence, and a table of several is given as a file"
            )

    def _require_later(self, cell: str, place: str) -> None:
        time = float(cell) if NUMBER.fullmatch(cell) else seconds_of(cell)
        if time is None and DECIMAL_COMMA.fullmatch(cell):
            time = float(cell.replace(",", "."))
        if time is None:
            raise DataError(f"{place}: its time is {excerpt(cell)}, neither an ISO date (2024-03-01) nor a number")
        if not time > self.latest:
            raise DataError(f"{place}: its time, {excerpt(cell)}, is not after the one before; give steps in order")
        self.latest = time


def _split(line: str, separator: str | None) -> list[str]:
    if separator is None:
        return [line]
    if separator == BLANKS:
        return line.split()
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=separator, skipinitialspace=True), [])]
    except csv.Error:  # of what is no text: it is no number, either
        return [line]


def _unnamed(body: Sequence[str], config: SequenceModelConfig, place: str) -> _Form:
    """Columns by their order. Errors: DataError for others than the model reads, in number."""
    separator = _separator(body, config.d_input, place)
    n_cells = len(_split(body[0], separator))
    if config.d_input not in (None, n_cells):
        above = ", and no names are above it" if columns_of(config) else ""
        raise DataError(
            f"{place}: {excerpt(body[0])} is {_counted(n_cells, 'number')}{above}; this model reads {_expected(config)}"
        )
    return _Form(separator, n_cells, range(n_cells))


def _named(names: str, body: Sequence[str], config: SequenceModelConfig, where: str, keep: Sequence[str]) -> _Form:
    """Columns by the names above them, as far as the model knows any. Errors: DataError, as :func:`read_steps`."""
    columns, files = columns_of(config), files_of(config)
    separator = _separator_below(names, body, columns, where)
    cells = [_name(cell) for cell in _split(names, separator)]
    line = f"{where}: its first line, {excerpt(names)},"
    missing = [name for name in keep if name not in cells]
    if missing:
        raise DataError(f"{line} has no column {excerpt(missing[0])} to keep; it has {few(cells)}")
    kept = [cells.index(name) for name in keep]
    if not columns or files is None:
        read = [i for i in range(len(cells)) if i not in kept]
        if config.d_input not in (None, len(read)):
            n = _counted(len(read), "column")
            raise DataError(f"{line} names {n}; give only those that this model reads, {_expected(config)}")
        if any(map(NUMBER.fullmatch, cells)) or any(map(AS_PEOPLE_WRITE.fullmatch, cells)):
            raise DataError(f"{line} is neither a step of numbers nor a line of names; expected {_expected(config)}")
        return _Form(separator, len(cells), read, kept=kept)
    lacking = [name for name in columns if name not in cells]
    if lacking:
        raise DataError(f"{line} has no column {excerpt(lacking[0])}; this model reads {_expected(config)}")
    twice = [name for name in files.every_column if cells.count(name) > 1]
    if twice:
        raise DataError(f"{line} names {excerpt(twice[0])} twice; give each column its own name")
    row, time = (cells.index(name) if name in cells else None for name in (files.row_field, files.time_field))
    return _Form(separator, len(cells), [cells.index(name) for name in columns], row, time, kept=kept)


def _separator_below(names: str, body: Sequence[str], columns: Sequence[str], where: str) -> str | None:
    """What separates cells that have names: the mark that gives names and numbers as many cells, and the model its
    columns."""
    found: dict[str, tuple[bool, int, bool]] = {}
    for mark in (*SEPARATORS, BLANKS):
        above, below = _split(names, mark), _split(body[0], mark)
        if len(above) > 1:
            known = sum(_name(cell) in columns for cell in above)
            numbers = all(NUMBER.fullmatch(cell) or DECIMAL_COMMA.fullmatch(cell) for cell in below)
            found[mark] = (len(above) == len(below), known, numbers)
    best = max(found, key=lambda mark: found[mark], default=None)
    if best == BLANKS and not found[best][0]:  # one name of several words
        return None
    spaced = best == "," and ", " in names and not columns
    if spaced and all(map(DECIMAL_COMMA.fullmatch, body)):
        raise DataError(_two(names, where))
    return best


def _separator(body: Sequence[str], d_input: int | None, place: str) -> str | None:
    """What separates numbers that nothing is written above. Errors: DataError where a comma may do so, or may not."""
    for mark in (";", "\t", "|"):
        if any(mark in line for line in body):
            return mark
    if any(re.search(r"\s", line) for line in body):
        return "," if any(re.search(r",\s|\s,", line) for line in body) else BLANKS
    commas = [line for line in body if "," in line]
    if not commas:
        return None
    if not all(map(DECIMAL_COMMA.fullmatch, commas)):
        return ","
    if len(commas) < len(body) or any(map(DECIMALS.fullmatch, commas)):
        return None
    if d_input is not None and d_input > 2:  # whatever it is, it is refused
        return ","
    raise DataError(_two(body[0], place))


def _two(line: str, place: str) -> str:
    return (
        f"{place}: {excerpt(line)} may be one number with decimals, or two; write decimals with a point, or put "
        "semicolons between numbers, or a line above them with a name for each"
    )


def _expected(config: SequenceModelConfig) -> str:
    """What a model reads, in words."""
    columns, files = columns_of(config), files_of(config)
    said = "tokens" if config.d_input is None else _counted(config.d_input, "number")
    hint = " (give a table with a sequence in each row as a file)" if files and files.kind == "wide table" else ""
    return f"{said} a step{f': {few(columns)}' if columns else ''}{hint}"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}{'s' * (n != 1)}"
