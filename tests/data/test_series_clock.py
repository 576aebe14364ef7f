"""Times with a zone: days and months by its calendar, hours by UTC, whatever its clocks do."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

import statewise as sw
from statewise.data.series_cells import Notation
from statewise.data.series_clock import Clock, Zoned, moments, on_the_wall
from statewise.data.series_files import SeriesFile, read_series
from statewise.errors import DataError

BERLIN = ZoneInfo("Europe/Berlin")
LORD_HOWE = "Australia/Lord_Howe"  # whose clocks change by half an hour


def days(n: int, zone: ZoneInfo = BERLIN, hour: int = 0, first: str = "2024-01-01") -> list[datetime]:
    return [
        datetime.fromisoformat(first).replace(hour=hour, tzinfo=zone) + timedelta(i) for i in range(n)
    ]  # by the wall


def hours(n: int, zone: ZoneInfo = BERLIN) -> list[datetime]:
    first = datetime(2024, 3, 20, tzinfo=zone).timestamp()
    return [datetime.fromtimestamp(first + 3600 * i, zone) for i in range(n)]


def written(folder: Path, times: list[Any], name: str = "zoned.csv") -> Path:
    (folder / name).write_text("date,v\n" + "".join(f"{time},{i % 7}.5\n" for i, time in enumerate(times)))
    return folder / name


def read(source: Any, frequency: str | None = None) -> SeriesFile:
    return read_series(source, time=None, series=None, targets=(), covariates=(), frequency=frequency)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", LORD_HOWE, "UTC"])
@pytest.mark.parametrize("hour", [0, 9])
def test_days_are_days_of_the_wall(zone: str, hour: int, tmp_path: Path) -> None:
    found = read(written(tmp_path, days(400, ZoneInfo(zone), hour)))
    assert str(found.frequency) == "day"
    assert not np.isnan(found.series[0].values).any()
    assert (found.series[0].times % 86400 == 3600 * hour).all()
    assert found.clock.wall
    again = read(written(tmp_path, days(400, ZoneInfo(zone), hour)), "day")
    assert (again.series[0].index == found.series[0].index).all()


@pytest.mark.parametrize("zone", ["Europe/Berlin", LORD_HOWE])
def test_hours_are_hours_of_utc(zone: str, tmp_path: Path) -> None:
    times = hours(1000, ZoneInfo(zone))
    found = read(written(tmp_path, times))
    assert found.frequency.step == 3600
    assert found.series[0].times.tolist() == [time.timestamp() for time in times]
    assert not np.isnan(found.series[0].values).any()
    assert not found.clock.wall


def test_a_zone_by_name_and_without_one() -> None:
    autumn = np.array([datetime(2024, 10, d, tzinfo=BERLIN).timestamp() for d in (26, 28)])
    changed, same = np.array([7200.0, 3600.0]), np.array([-12600.0] * 2)
    assert Zoned(changed, "Europe/Berlin").clock(autumn, wall=True) == Clock("Europe/Berlin", True)
    assert Zoned(changed).clock(autumn, wall=True) == Clock(None, True), "nobody knows what comes after"
    assert Zoned(changed).clock(autumn, wall=False) == Clock("+01:00", False)
    assert Zoned(same, "tzfile('/x')").clock(autumn, wall=True) == Clock("-03:30", True)
    assert on_the_wall(autumn, Clock("Europe/Berlin", False)).tolist() == (autumn + changed).tolist()
    told = [str(time) for time in moments(autumn, Clock("-03:30", False))]
    assert told == ["2024-10-25 18:30:00-03:30", "2024-10-27 19:30:00-03:30"]
    assert str(moments(autumn + changed, Clock("Europe/Berlin", True))[0]) == "2024-10-26 00:00:00+02:00"


def test_some_times_with_a_zone_and_some_without_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, [*days(5), "2024-01-06 00:00:00"])
    with pytest.raises(DataError, match="line 7: the time has no time zone, and those before it have one; write all"):
        read(path)
    path = written(tmp_path, ["2024-01-01 00:00:00", *days(5, first="2024-01-02")])
    with pytest.raises(DataError, match="line 3: the time has a time zone, and those before it have none; write all"):
        read(path)


def test_a_format_with_a_zone(tmp_path: Path) -> None:
    path = written(tmp_path, [time.strftime("%d.%m.%Y %H:%M %z") for time in days(300)])
    found = read_series(
        path,
        time=None,
        series=None,
        targets=(),
        covariates=(),
        frequency=None,
        notation=Notation(date_format="%d.%m.%Y %H:%M %z"),
    )
    assert str(found.frequency) == "day"


@pytest.mark.parametrize("frequency", ["D", "W", "ME", "MS", "QS", "h", "15min"])
def test_frames_and_parquet(frequency: str, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    index = pandas.date_range("2024-02-01", periods=300, freq=frequency, tz="Europe/Berlin")
    frame = pandas.DataFrame({"date": index, "v": np.arange(300.0)})
    frame.to_parquet(tmp_path / "a.parquet")
    frame.to_csv(tmp_path / "a.csv", index=False)
    objects = frame.assign(date=frame["date"].map(lambda time: time.to_pydatetime()).astype(object))
    found = read(frame)
    assert len(found.series[0].index) == 300
    assert found.clock == Clock("Europe/Berlin", found.frequency.whole_days)
    for other in (tmp_path / "a.parquet", tmp_path / "a.csv", frame.set_index("date"), objects):
        again = read(other)
        assert again.frequency == found.frequency
        assert (again.series[0].times == found.series[0].times).all()
    mixed = objects.assign(date=[objects["date"][0].replace(tzinfo=None), *objects["date"][1:]])
    with pytest.raises(DataError, match="some times of date have a time zone and some have none"):
        read(mixed)


def test_a_run_describes_itself_by_the_wall(tmp_path: Path) -> None:
    path = written(tmp_path, hours(300))
    data = sw.open_series(sw.SeriesDataConfig(source=str(path), horizon=6, history=24))
    assert "train      2024-03-20 01:00 to" in data.describe()
    assert data.input.zone == "+02:00", "of the last hour, for nothing names the zone"
