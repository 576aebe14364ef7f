"""Dates as people write them, read as one column: what one cell leaves open, the others may tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from typing import NamedTuple

import numpy as np

from statewise.data.series_times import infer_frequency, steps_after
from statewise.errors import DataError, excerpt

EARLIEST, LATEST = (datetime(year, 1, 1, tzinfo=UTC).timestamp() for year in (2, 9999))
EPOCH = date(1970, 1, 1).toordinal()
NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
CELL = re.compile(r"(.+?)(?:(?:[ T]+)(\d{1,2}):(\d\d)(?::(\d\d(?:[.,]\d+)?))?\s*([AaPp]\.?[Mm]\.?)?)?")
DAYS = re.compile(r"(\d{1,4})([./-])(\d{1,2})\2(\d{1,4})")
OTHERS = (  # with the places of year, month and day in the match; 0: the first
    (re.compile(r"(\d{4})[./-](\d{1,2})"), (1, 2, 0)),
    (re.compile(r"(\d{1,2})[./-](\d{4})"), (2, 1, 0)),
    (re.compile(r"(\d{4})[-/ ]?[Qq]([1-4])"), (1, -2, 0)),
    (re.compile(r"[Qq]([1-4])[-/ ]?(\d{4})"), (2, -1, 0)),
    (re.compile(r"(\d{1,2})\.?[ -]([A-Za-z]{3,9})\.?,?[ -](\d{4}|\d\d)"), (3, 2, 1)),
    (re.compile(r"([A-Za-z]{3,9})\.?[ -](\d{1,2}),? (\d{4})"), (3, 1, 2)),
    (re.compile(r"([A-Za-z]{3,9})\.?[ -](\d{4}|\d\d)"), (2, 1, 0)),
)
ORDERS = {"day first": (2, 1, 0), "month first": (2, 0, 1), "year first": (0, 1, 2)}  # places of year, month, day


class DateFormat(NamedTuple):
    """What the user says of dates: ``date_format`` in the letters of strptime, or whether days come before months; and
    whether they usually do, for dates that leave it open.
    """

    date_format: str | None = None
    day_first: bool | None = None
    usually_day_first: bool | None = None


class Dates(NamedTuple):
    """stamps: (n,) seconds since 1970   day_first: whether days came before months; None where only one order was
    possible
    offsets: (n,) seconds by which each is ahead of UTC, where they say so
    """

    stamps: np.ndarray
    day_first: bool | None = None
    offsets: np.ndarray | None = None


def read_dates(cells: Sequence[str], given: DateFormat, place: Callable[[int], str]) -> Dates | None:
    """Dates by ISO or another notation that all cells have; None if the first is not a date at all.

    Where day and month could be either, a number above 12 tells, or that one order alone leaves no gap in the grid, or
    the dot, which has the day first; else it is asked for.

    place: "FILE, line 7" of a cell, for messages
    Cost:    O(n)
    Errors:  DataError for a cell that is not a date like the others, dates that can be read in two ways, some with a
             time zone and some without, and years before 2 or after 9998.
    """
    found: Dates | None
    if given.date_format is not None:
        found = _stamps(_by_format(cells, given.date_format, place), place)
    else:
        iso = _iso(cells)
        if iso and len(iso) == len(cells):
            found = _stamps(iso, place)
        else:
            found = _written(cells, given, place, iso_before=len(iso))
    if found is None:
        return None
    stamps = found.stamps
    wrong = ~((stamps >= EARLIEST) & (stamps < LATEST))  # beyond them the calendar ends, in one zone or another
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{place(row)}: the time {excerpt(cells[row])} is before the year 2 or after 9998")
    return found


def _by_format(cells: Sequence[str], date_format: str, place: Callable[[int], str]) -> list[datetime]:
    seen: dict[str, datetime] = {}
    for row, cell in enumerate(cells):
        if cell not in seen:
            try:
                seen[cell] = datetime.strptime(cell.strip(), date_format)
            except ValueError:
                raise DataError(
                    f"{place(row)}: the time {excerpt(cell)} is not written as data.date_format={date_format!r}"
                ) from None
    return [seen[cell] for cell in cells]


def _iso(cells: Sequence[str]) -> list[datetime]:
    """The moments of those that are ISO dates, from the first on."""
    moments: list[datetime] = []
    try:
        for cell in cells:
            moments.append(datetime.fromisoformat(cell.strip()))
    except ValueError:
        pass
    return moments


def _stamps(moments: Sequence[datetime], place: Callable[[int], str]) -> Dates:
    """Errors: DataError if some have a zone and some have none."""
    offsets = [moment.utcoffset() for moment in moments]
    known = [offset is not None for offset in offsets]
    if any(known) and not all(known):
        row = known.index(not known[0])
        one, others = ("a", "have none") if known[row] else ("no", "have one")
        raise DataError(
            f"{place(row)}: the time has {one} time zone, and those before it {others}; write all in one way"
        )
    stamps = np.array([(moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() for moment in moments])
    ahead = np.array([offset.total_seconds() for offset in offsets if offset is not None])
    return Dates(stamps, offsets=ahead if all(known) else None)


def _written(cells: Sequence[str], given: DateFormat, place: Callable[[int], str], iso_before: int) -> Dates | None:
    """Dates that are not ISO, all in one notation. Days and times of day are each looked at once."""
    days: dict[str, int] = {}
    clocks: dict[tuple[str, ...], float] = {}
    which, seconds = np.empty(len(cells), np.int64), np.empty(len(cells))
    rows: list[int] = []  # the first of each day
    for row, cell in enumerate(cells):
        match = CELL.fullmatch(cell.strip())
        day, *clock = match.groups("") if match else (cell,)
        if day not in days:
            days[day] = len(days)
            rows.append(row)
        key = tuple(clock)
        if key not in clocks:
            clocks[key] = _seconds(key)
        which[row], seconds[row] = days[day], clocks[key]
    texts = list(days)
    groups = [_groups(text) for text in texts]
    wrong = next((i for i, found in enumerate(groups) if found is None or found.kind != groups[0].kind), None)  # type: ignore[union-attr]
    if wrong is not None or np.isnan(seconds).any():
        if groups[0] is None and not iso_before:
            return None
        row = int(np.isnan(seconds).argmax()) if wrong is None else max(rows[wrong], iso_before)
        as_before = "not an ISO date, as those before it" if iso_before else "written differently from those before it"
        raise DataError(f"{place(row)}: the time {excerpt(cells[row])} is {as_before}; write all in one way")
    readings = {order: _ordinals(groups, order) for order in groups[0].orders}  # type: ignore[union-attr, arg-type]
    possible = {order: days_of[which] * 86400.0 + seconds for order, days_of in readings.items() if days_of is not None}
    if not possible:
        raise DataError(
            f"{place(0)}: the times, as {excerpt(cells[0])}, are not dates in any order of day and month; write ISO "
            "dates, 2024-03-01"
        )
    order = _order(possible, groups[0].mark, given, cells, place)  # type: ignore[union-attr]
    ways = {"day first": True, "month first": False} if len(readings) > 1 else {}
    return Dates(possible[order], ways.get(order))


def _seconds(clock: tuple[str, ...]) -> float:
    """Since midnight; NaN for a text that is not a time of day."""
    if not clock or not clock[0]:
        return 0.0 if clock else np.nan
    hour, minute, second = int(clock[0]), int(clock[1]), float((clock[2] or "0").replace(",", "."))
    if clock[3]:
        if not 1 <= hour <= 12:
            return np.nan
        hour = hour % 12 + 12 * (clock[3][0] in "pP")
    return 3600.0 * hour + 60 * minute + second if hour < 24 and minute < 60 and second < 60 else np.nan


class _Groups(NamedTuple):
    """kind: of the notation; numbers; orders in which they may stand: names of ORDERS, or ("as written",)."""

    kind: tuple[object, ...]
    numbers: tuple[int, int, int]
    orders: tuple[str, ...]
    mark: str


def _groups(text: str) -> _Groups | None:
    if match := DAYS.fullmatch(text):
        a, mark, b, c = match.groups()
        if len(a) == 4 and len(c) <= 2:
            orders: tuple[str, ...] = ("year first",)
        elif len(c) == 4 and len(a) <= 2:
            orders = ("day first", "month first")
        elif len(a) <= 2 and len(c) == 2:
            orders = tuple(ORDERS)
        else:
            return None
        return _Groups((mark, orders), (int(a), int(b), int(c)), orders, mark)
    for number, (pattern, places) in enumerate(OTHERS):
        if match := pattern.fullmatch(text):
            year, month, day = (match[abs(i)] if i else "1" for i in places)
            if month.isalpha():
                if month[:3].lower() not in NAMES:
                    return None
                month = str(1 + NAMES.index(month[:3].lower()))
            elif places[1] < 0:  # a quarter
                month = str(3 * int(month) - 2)
            return _Groups((number,), (_full_year(year), int(month), int(day)), ("as written",), "")
    return None


def _full_year(text: str) -> int:
    """Two digits are a year from 1969 to 2068, as everywhere."""
    return int(text) if len(text) > 2 else int(text) + (2000 if int(text) < 69 else 1900)


def _ordinals(groups: Sequence[_Groups], order: str) -> np.ndarray | None:
    """Days since 1970; None if one of them is not a day in this order."""
    year, month, day = ORDERS.get(order, (0, 1, 2))
    short = len(groups[0].orders) == len(ORDERS)  # a year of two digits
    try:
        return np.array(
            [
                date(_full_year(f"{n[year]:02}") if short else n[year], n[month], n[day]).toordinal() - EPOCH
                for n in (one.numbers for one in groups)
            ]
        )
    except ValueError:
        return None


def _order(
    possible: dict[str, np.ndarray],
    mark: str,
    given: DateFormat,
    cells: Sequence[str],
    place: Callable[[int], str],
) -> str:
    """The reading that is meant."""
    if given.day_first is not None and not ("as written" in possible or set(possible) == {"year first"}):
        wanted = "day first" if given.day_first else "month first"
        if wanted not in possible:
            raise DataError(
                f"{place(0)}: the times, as {excerpt(cells[0])}, are not dates with the {wanted}; leave out "
                f"data.day_first={str(given.day_first).lower()}"
            )
        return wanted
    usual = {True: "day first", False: "month first"}.get(given.usually_day_first)  # type: ignore[arg-type]
    if usual in possible:
        return usual
    if len(possible) > 1:
        whole = {order: stamps for order, stamps in possible.items() if _is_gapless(stamps)}
        possible = whole if len(whole) == 1 else possible
    if len(possible) > 1 and mark == "." and "day first" in possible and "year first" not in possible:
        return "day first"
    if len(possible) > 1:
        years = ", or data.date_format='%y-%m-%d' and the like" if "year first" in possible else ""
        raise DataError(
            f"{place(0)}: the times, as {excerpt(cells[0])}, can be read in several ways: {' or '.join(possible)}; "
            f"say which: data.day_first=true or data.day_first=false{years}"
        )
    return next(iter(possible))


def _is_gapless(stamps: np.ndarray) -> bool:
    """Whether there is a row for each step from the first to the last, at least three."""
    moments = np.unique(stamps)
    if len(moments) < 3:
        return False
    last = steps_after(moments[-1], moments[0], infer_frequency(moments, True))
    return round(float(last)) + 1 == len(moments)
