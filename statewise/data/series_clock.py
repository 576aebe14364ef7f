"""By which clock times are counted: days, weeks and months by the one on the wall of their zone, hours by UTC.

Midnights of a zone that changes its clocks are not all 24 hours apart, but they are a day apart by the calendar. Hours
are the other way round: in UTC they follow one another, and on the wall one of them is left out or comes twice.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

import numpy as np

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(NamedTuple):
    """What stamps, in seconds since 1970, stand for. zone: of the times, "Europe/Berlin" or "+02:00"; None: they have
    none that is known. wall: stamps are what a clock in the zone shows, as if that were UTC; else they are UTC.
    """

    zone: str | None = None
    wall: bool = True


NO_ZONE = Clock()


class Zoned(NamedTuple):
    """A column of times. offsets: (n,) seconds by which each clock is ahead of UTC; zone: its name, if it has one"""

    offsets: np.ndarray
    zone: str | None = None

    def clock(self, stamps: np.ndarray, wall: bool) -> Clock:
        """The clock of these times (n,) UTC: their zone by name, or by the offset that all have. If that changes, and
        nothing names the zone, hours use the last offset, and days use none.
        """
        if self.zone is not None and _by_name(self.zone) is not None:
            return Clock(self.zone, wall)
        if wall and len(np.unique(self.offsets)) > 1:
            return Clock(None, wall)
        minutes = round(float(self.offsets[stamps.argmax()]) / 60)
        return Clock(f"{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02}:{abs(minutes) % 60:02}", wall)


def zone_of(clock: Clock) -> tzinfo | None:
    """None where there is none."""
    if clock.zone is None:
        return None
    if clock.zone[0] in "+-":
        sign, hours, minutes = clock.zone[0], int(clock.zone[1:3]), int(clock.zone[4:])
        return timezone(timedelta(minutes=(60 * hours + minutes) * (-1 if sign == "-" else 1)))
    return _by_name(clock.zone)


def on_the_wall(stamps: np.ndarray, clock: Clock) -> np.ndarray:
    """The stamps as a clock in the zone shows them, as if that were UTC."""
    zone = None if clock.wall else zone_of(clock)
    if zone is None:
        return stamps
    return np.array([stamp + _offset(stamp, zone) for stamp in stamps.ravel().tolist()]).reshape(stamps.shape)


def moments(stamps: np.ndarray, clock: Clock) -> np.ndarray:
    """The stamps as datetimes of the zone, which there is: an array of objects."""
    zone = zone_of(clock)
    found = np.empty(stamps.shape, object)
    for place, stamp in np.ndenumerate(stamps):
        moment = EPOCH + timedelta(seconds=float(stamp))
        found[place] = moment.replace(tzinfo=zone) if clock.wall else moment.astimezone(zone)
    return found


def _offset(stamp: float, zone: tzinfo) -> float:
    found = (EPOCH + timedelta(seconds=stamp)).astimezone(zone).utcoffset()
    return 0.0 if found is None else found.total_seconds()


def _by_name(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (ValueError, LookupError, OSError):  # a name of another system, or no data of zones on this one
        return None
