"""The grid that the times of series lie on: how far apart its steps are, which step a time is, and what comes after."""

from __future__ import annotations

import math
import re
from functools import reduce
from typing import NamedTuple

import numpy as np

from statewise.errors import DataError

SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
MONTHS = {"month": 1, "quarter": 3, "year": 12}


class Frequency(NamedTuple):
    """How far apart two steps are: in calendar months, in seconds, or as plain numbers."""

    kind: str  # "months", "seconds" or "number"
    step: float

    def __str__(self) -> str:
        if self.kind == "number":
            return f"{self.step:g}"
        units = MONTHS if self.kind == "months" else SECONDS
        unit = max((u for u in units if self.step % units[u] == 0), key=lambda u: units[u], default="second")
        n = self.step / units[unit]
        return unit if n == 1 else f"{n:g} {unit}s"

    @property
    def season(self) -> int | None:
        """The usual season: a day of hours or minutes, a week of days, a year of weeks, months or quarters."""
        if self.kind == "months":
            return int(12 // self.step) if self.step < 12 and 12 % self.step == 0 else None
        if self.kind == "seconds":
            for low, season in ((SECONDS["week"], 365.25 * 86400), (SECONDS["day"], SECONDS["week"]), (0, 86400)):
                if self.step >= low:
                    n = round(season / self.step)
                    return n if n >= 2 else None
        return None

    @property
    def whole_days(self) -> bool:
        """Whether times need no hour."""
        return self.kind == "months" or (self.kind == "seconds" and self.step % 86400 == 0)


def parse_frequency(text: str, dates: bool) -> Frequency:
    """ "week", "15 minutes", "3 months"; a number where times are numbers.

    >>> parse_frequency("2 weeks", True)
    Frequency(kind='seconds', step=1209600)
    """
    if not dates:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise DataError(f"data.frequency={text!r}: the times are numbers, so expected a number above 0")
        return Frequency("number", number)
    match = re.fullmatch(r"(\d{0,9})\s*([a-z]+?)s?", text.strip().lower())
    unit = match[2] if match else ""
    n = int(match[1] or 1) if match else 0
    if n < 1 or unit not in {*SECONDS, *MONTHS}:
        raise DataError(
            f"data.frequency={text!r} is unknown; write for example one of {[*SECONDS, *MONTHS]}, or '2 days'"
        )
    return Frequency("months", n * MONTHS[unit]) if unit in MONTHS else Frequency("seconds", n * SECONDS[unit])


def infer_frequency(stamps: np.ndarray, dates: bool) -> Frequency:
    """The widest grid on which all times lie: seconds since 1970, or numbers."""
    moments = np.unique(stamps)
    if len(moments) < 2:
        return Frequency("seconds", 86400) if dates else Frequency("number", 1.0)
    if not dates:
        return Frequency("number", float(np.diff(moments).min()))
    if np.diff(moments).min() >= 28 * 86400:
        months, within = _months(moments)
        alike = len(np.unique(within)) == 1 or (ends_months(moments) and len(np.unique(moments % 86400)) == 1)
        if alike and np.diff(months).min() > 0:
            return Frequency("months", int(np.gcd.reduce(np.diff(months))))
    steps = np.round(np.diff(moments) * 1000).astype(np.int64)
    return Frequency("seconds", reduce(math.gcd, np.unique(steps).tolist()) / 1000)


def steps_after(stamps: np.ndarray | float, origin: float, spacing: Frequency) -> np.ndarray:
    """How many steps each time lies after ``origin``: whole numbers for times of one grid."""
    if spacing.kind == "months":
        found: np.ndarray = (_months(np.asarray(stamps))[0] - _months(np.asarray(origin))[0]) / spacing.step
        return found
    with np.errstate(over="ignore"):
        return np.asarray((stamps - origin) / spacing.step)


def times_after(last: float, n: int, spacing: Frequency, *, at_month_ends: bool = False) -> np.ndarray:
    """(n,): the times of the n steps after the one at ``last``.

    at_month_ends: months go from last day to last day; else from day to the same day, or the last where there is none.

    >>> last = float(np.datetime64("2024-01-31", "s").astype(int))
    >>> times_after(last, 2, Frequency("months", 1)).astype("datetime64[s]").astype("datetime64[D]").tolist()
    [datetime.date(2024, 2, 29), datetime.date(2024, 3, 31)]
    """
    ahead = np.arange(1, n + 1)
    if spacing.kind != "months":
        return np.asarray(last + spacing.step * ahead)
    month, within = (x.item() for x in _months(np.asarray(last)))
    months = month + (spacing.step * ahead).astype(np.int64)
    begin, end = _month_begin(months), _month_begin(months + 1)
    time_of_day = within % 86400
    last_day = end - 86400 + time_of_day
    return np.asarray(last_day if at_month_ends else np.minimum(begin + within, last_day), dtype=np.float64)


def ends_months(stamps: np.ndarray) -> bool:
    """Whether every time lies on the last day of a month."""
    return bool((_months(stamps)[0] != _months(stamps + 86400)[0]).all())


def _months(stamps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The month of each time, counted from January 1970, and the seconds since it began."""
    months = np.floor(stamps).astype("datetime64[s]").astype("datetime64[M]")
    return months.astype(np.int64), stamps - months.astype("datetime64[s]").astype(np.int64)


def _month_begin(months: np.ndarray) -> np.ndarray:
    return months.astype("datetime64[M]").astype("datetime64[s]").astype(np.float64)
