"""Numbers as people write them: with a decimal point or a decimal comma, and perhaps with marks between thousands."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from statewise.errors import DataError, excerpt
from statewise.files.delimited import MISSING

SPACES = " '\u00a0\u202f\u2019"  # between thousands
LONG = re.compile(r"\s*[+-]?\d{4,}\s*")
GROUPED = {mark: re.compile(rf"[+-]?[1-9]\d{{0,2}}(?:\{mark}\d{{3}})+") for mark in ".,"}


def decimal_mark(columns: Iterable[Sequence[str]], delimiter: str, where: str, usual: str | None = None) -> str:
    """ "." or ",": what all cells of numbers together say.

    "1.234,5" and "0,25" tell, and "1,234" below "1500". "1,234" alone does not: it may be a thousand or about one;
    neither does "1.234" in a file of semicolons, as those have it whose comma is decimal.

    usual:   what is taken where the cells leave it open
    Errors:  DataError where they do and there is no such, and where the cells contradict each other.

    >>> decimal_mark([["1.234,5", "12"]], ";", "sales.csv")
    ','
    """
    columns = [column for column in columns if any("," in cell or "." in cell for cell in column)]
    found = {cell.strip() for column in columns for cell in column if "," in cell or "." in cell}
    commas, points = ({cell for cell in found if mark in cell} for mark in ",.")
    last = {max(",.", key=cell.rfind) for cell in commas & points}
    if len(last) > 1:
        raise DataError(_mixed(where, next(iter(commas)), next(iter(points))))
    if last:
        return last.pop()
    with_mark = {",": commas, ".": points}
    whole = {mark: all(GROUPED[mark].fullmatch(cell) for cell in cells) for mark, cells in with_mark.items()}
    several = {mark: any(cell.count(mark) > 1 for cell in cells) for mark, cells in with_mark.items()}
    if commas and points:
        if whole[","] and (several[","] or not whole["."]):
            return "."
        if whole["."] and (several["."] or not whole[","]):
            return ","
        raise DataError(_mixed(where, min(commas), min(points)))
    mark, other = (",", ".") if commas else (".", ",")
    if not found or not whole[mark]:
        return mark if commas else "."
    if several[mark]:
        return other
    if any(LONG.fullmatch(cell) for column in columns for cell in column):  # a thousand without a mark
        return mark
    if commas or delimiter == ";":
        if usual is not None:
            return usual
        raise DataError(_either(where, min(found)))
    return "."


def read_numbers(cells: Sequence[str], decimal: str, complain: Callable[[int], DataError]) -> np.ndarray:
    """(n,) float64, NaN where a cell says that there is none. ``complain``: the error for a row that is not a number.

    Cost:    O(n)
    """
    found = np.empty(len(cells))
    for row, cell in enumerate(cells):
        try:
            found[row] = float(cell if decimal == "." else _with_point(cell))
        except ValueError:
            found[row] = _of(cell, decimal)
    if np.isinf(found).any():
        raise complain(int(np.isinf(found).argmax()))
    return found


def _with_point(cell: str) -> str:
    """Where the comma is decimal, and there is nothing between thousands: the quick way."""
    return "thousands" if "." in cell else cell.replace(",", ".")


def _of(cell: str, decimal: str) -> float:
    """Infinity if it is not a number."""
    text = cell.strip()
    if text.lower() in MISSING:
        return math.nan
    if thousands := re.search(rf"[{SPACES}.,]", text.replace(decimal, "")):
        mark = re.escape(thousands[0])
        if not re.fullmatch(rf"[+-]?\d{{1,3}}(?:{mark}\d{{3}})+(?:{re.escape(decimal)}\d*)?", text):
            return math.inf
        text = text.replace(thousands[0], "")
    try:
        return float(text.replace(decimal, "."))
    except ValueError:
        return math.inf


def _mixed(where: str, comma: str, point: str) -> str:
    return (
        f"{where}: some numbers have a comma, as {excerpt(comma)}, and some a point, as {excerpt(point)}; say which is "
        "decimal: data.decimal=',' or data.decimal='.'"
    )


def _either(where: str, cell: str) -> str:
    return (
        f"{where}: {excerpt(cell)} may be thousands or decimals, and no other number tells; say which mark is decimal: "
        "data.decimal=',' or data.decimal='.'"
    )
