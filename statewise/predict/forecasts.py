"""Forecasts as answers: a row for each series and time, with the point forecast and its quantiles in columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from statewise.data.series_ahead import Past
from statewise.data.series_clock import NO_ZONE, Clock, moments, on_the_wall, zone_of
from statewise.models.quantiles import interval_name
from statewise.predict.answers import Answers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Forecasts(Answers):
    """The forecasts of n series, ``steps`` ahead each; ``row`` says which series an answer is of, and ``step`` how far
    ahead, from 1.

    names:     (n,) str, the series
    times:     (n, steps) datetime64, or float64 where the times of the series are numbers, or datetimes with the time
               zone of the series, where it is known; a day of a zone is a date
    values:    (n, steps, d_target, n_quantiles) float64, in the units of the series; of a model of the mean 1 quantile
    targets:   the names of the d_target columns
    quantiles: which they are; None: the mean
    pasts:     (n,) what each forecast was made from
    """

    names: np.ndarray
    times: np.ndarray
    values: np.ndarray
    targets: tuple[str, ...]
    quantiles: tuple[float, ...] | None
    pasts: np.ndarray = field(repr=False)

    @property
    def point(self) -> np.ndarray:
        """(n, steps, d_target): the median, or the mean."""
        found: np.ndarray = self.values[..., self._point]
        return found

    @property
    def interval(self) -> str | None:
        """What lies between the outer quantiles: "80 % interval"; None where there are none."""
        return interval_name(self.quantiles)

    @property
    def _point(self) -> int:
        return 0 if self.quantiles is None else self.quantiles.index(0.5)

    def own_columns(self) -> dict[str, np.ndarray]:
        """For each target its point forecast under its name, and its quantiles, such as "sold 10%"."""
        found = {}
        for d, target in enumerate(self.targets):
            name = f"{target} forecast" if target in ("series", "time") else target
            found[name] = self.point[..., d].ravel()
            for i, q in enumerate(self.quantiles or ()):
                if i != self._point:
                    found[f"{name} {percent(q)}"] = self.values[..., d, i].ravel()
        return found

    def columns(self) -> dict[str, np.ndarray]:
        """(n * steps,) for each name: "series", "time", the targets and their quantiles."""
        n_steps = self.times.shape[1]
        return {"series": np.repeat(self.names, n_steps), "time": self.times.ravel(), **self.own_columns()}

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dict of plain values for each answer; a date is text, as "2024-03-01"."""
        for row in super().rows():
            time = row["time"]
            yield {**row, "time": time.isoformat() if hasattr(time, "isoformat") else time}

    def to_frame(self) -> Any:
        """A table of pandas, which has to be installed: "time" has the time zone of the series, where it is known."""
        import pandas

        frame, clock = super().to_frame(), self.pasts[0].clock
        zone = zone_of(clock)
        if zone is None:
            return frame
        if self.times.dtype == object:
            frame["time"] = pandas.to_datetime(frame["time"], utc=True).dt.tz_convert(zone)
        else:  # where there is no midnight the day begins an hour later, and of two it is the first
            first = np.ones(len(frame), bool)
            frame["time"] = frame["time"].dt.tz_localize(zone, ambiguous=first, nonexistent="shift_forward")
        return frame

    def figure(self, *, most: int = 4, n_series: int | None = None) -> Figure:
        """The ends of the series and their forecasts, a panel for each target of the first ``most`` series.

        n_series: how many there are, if these are not all
        Errors:   InputError without matplotlib.
        """
        from statewise.plots.forecasts import Forecasted, forecasts

        shown, n_steps = [], self.times.shape[1]
        last = slice(-max(3 * n_steps, 24), None)
        for name, past, values in zip(self.names[:most], self.pasts, self.values):
            seen, ahead = (
                as_times(on_the_wall(stamps, past.clock), past.dates) for stamps in (past.times, past.times_ahead)
            )
            shown.append(Forecasted(str(name), seen[last], past.values[last], [(ahead, values)]))
        n_series = len(self.names) if n_series is None else n_series
        return forecasts(shown, self.targets, self.quantiles, n_series=n_series)

    def plot(self, path: Path | str, *, most: int = 4, n_series: int | None = None) -> None:
        """Draws :meth:`figure` into a file, whose ending sets the format. Arguments and errors are the same."""
        from statewise.plots.style import save

        save(self.figure(most=most, n_series=n_series), path)


def percent(quantile: float) -> str:
    """
    >>> percent(0.1), percent(0.025)
    ('10%', '2.5%')
    """
    return f"{100 * quantile:.6g}%"


def as_times(stamps: np.ndarray, dates: bool, clock: Clock = NO_ZONE) -> np.ndarray:
    """Seconds since 1970 as dates, to the day, second or microsecond as they need, or if they need more than the day as
    datetimes of the clock's zone; numbers as they are.
    """
    if not dates:
        return stamps
    if clock.zone is not None and not (clock.wall and (stamps % 86400 == 0).all()):
        return moments(stamps, clock)
    for unit, per_second in (("D", 1 / 86400), ("s", 1.0)):
        if (np.abs(stamps * per_second - np.round(stamps * per_second)) < 1e-9).all():
            return np.round(stamps * per_second).astype(np.int64).astype(f"datetime64[{unit}]")
    return np.round(stamps * 1e6).astype(np.int64).astype("datetime64[us]")


def forecasts_of(
    pasts: list[Past],
    numbers: range,
    values: np.ndarray,
    targets: tuple[str, ...],
    quantiles: tuple[float, ...] | None,
) -> Forecasts:
    """The series ``numbers`` of ``pasts`` with their forecasts."""
    mine = [pasts[i] for i in numbers]
    held = np.empty(len(mine), object)
    for place, past in enumerate(mine):
        held[place] = past
    steps = values.shape[1]
    return Forecasts(
        row=np.repeat(np.array(numbers), steps),
        step=np.tile(np.arange(1, steps + 1), len(mine)),
        names=np.array([past.name for past in mine]),
        times=as_times(np.stack([past.times_ahead for past in mine]), mine[0].dates, mine[0].clock),
        values=values,
        targets=targets,
        quantiles=quantiles,
        pasts=held,
    )
