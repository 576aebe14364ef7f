"""Time series data: the files read, the grid, the calendar, splits without leakage, batches, refusals."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from statewise.configuration import from_dict, to_dict
from statewise.data.series import SeriesDataConfig, open_series
from statewise.data.series_batches import SeriesBatches, collate
from statewise.data.series_times import Frequency, parse_frequency
from statewise.errors import ConfigError, DataError

needs_statsmodels = pytest.mark.skipif(importlib.util.find_spec("statsmodels") is None, reason="no statsmodels here")
SMALL: dict[str, Any] = {"horizon": 3, "history": 5}


def write(folder: Path, *lines: str) -> str:
    path = folder / "data.csv"
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return str(path)


def days(n: int, columns: str = "y", row: Any = lambda i: f"{i}", step: int = 1) -> list[str]:
    first = date(2024, 1, 1)
    return [f"day,{columns}", *(f"{first + timedelta(step * i)},{row(i)}" for i in range(n))]


# ---- what comes with statsmodels


@needs_statsmodels
def test_co2() -> None:
    data = open_series(SeriesDataConfig(calendar=("year",), harmonics=2))
    (table,) = data.tables
    assert data.targets == ("co2",)
    assert (str(data.frequency), data.season, data.dates) == ("week", 52, True)
    assert table.values.shape == (2284, 1)
    assert np.isnan(table.values).sum() == 59
    assert table.values[0, 0] == 316.1
    assert table.values[-1, 0] == 371.5
    assert data.d_covariates == table.covariates.shape[1] == 4
    # One year later the calendar is where it was, although 52 weeks are not a year
    year = np.arctan2(table.covariates[:, 0], table.covariates[:, 1])
    assert abs(year[0] - year[4 * 365 // 7 + 1]) < 2 * math.pi * 7 / 365
    lines = data.describe().splitlines()
    assert lines[1] == "targets    co2; 59 of 2,284 values are missing"
    assert lines[-1] == "test       1993-04-03 to 2001-12-29, 406 windows"


@needs_statsmodels
def test_sunspots() -> None:
    data = open_series(SeriesDataConfig(source="sunspots", horizon=11, history=66, calendar=("season",)))
    assert data.targets == ("SUNACTIVITY",)
    assert (data.season, data.dates, data.tables[0].values.shape) == (11, False, (309, 1))
    assert "train      1700 to 1915, 140 windows" in data.describe()
    assert np.allclose(data.tables[0].covariates[:11], data.tables[0].covariates[11:22])


def test_without_statsmodels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DataError, match=r'pip install "statewise\[tasks\]"'):
        open_series(SeriesDataConfig())


# ---- splits


def test_splits_in_order_of_time_and_targets_apart(tmp_path: Path) -> None:
    data = open_series(SeriesDataConfig(source=write(tmp_path, *days(100)), **SMALL))
    assert [data.span(name) for name in ("train", "validation", "test")] == [(0, 70), (70, 80), (80, 100)]
    scored = {}
    for name in ("train", "validation", "test"):
        split = data.split(name)
        scored[name] = {int(v) for origin in split.origins for v in split.window(origin).targets.ravel()}
        for origin in split.origins:
            window = split.window(origin)
            assert window.history.ravel().tolist() == list(range(origin.row - 5, origin.row))
            assert window.targets.ravel().tolist() == list(range(origin.row, origin.row + 3))
    assert scored["train"] == set(range(5, 70))
    assert scored["validation"] == set(range(70, 80))
    assert scored["test"] == set(range(80, 100))
    assert len(data.split("train").origins) == 63
    assert data.split("test").origins[0].row == 80  # its history lies before the split


def test_nothing_of_the_future_is_in_a_window_or_in_a_scale(tmp_path: Path) -> None:
    options = {"covariates": ("a",), "past_covariates": ("b",), "calendar": ("week",), "season": 7, **SMALL}
    rows = lambda future: days(60, "y,a,b", lambda i: f"{i % 9},{i % 5},{i % 4}" if i < 42 else future)  # noqa: E731
    one = open_series(SeriesDataConfig(source=write(tmp_path, *rows("7,8,9")), **options))
    two = open_series(SeriesDataConfig(source=write(tmp_path, *rows("-99,1000,3")), **options))
    assert one.span("train") == (0, 42)
    assert one.fingerprint != two.fingerprint
    assert np.array_equal(one.naive_errors, two.naive_errors)
    for origin in one.split("train").origins:
        for mine, other in zip(one.split("train").window(origin), two.split("train").window(origin)):
            assert np.array_equal(mine, other)
    window = one.split("train").window(one.split("train").origins[0])
    assert window.covariates.shape == (5, 4)
    assert window.future_covariates.shape == (3, 3)  # what is known of the past only is not there
    past = one.tables[0].covariates[:42]
    assert np.allclose(past[:, 2:].mean(0), 0, atol=1e-12)
    assert np.allclose(past[:, 2:].std(0), 1)


def test_several_series_are_cut_at_the_same_moment(tmp_path: Path) -> None:
    lines = ["time,which,y", *(f"{t},late,{t}" for t in range(50, 100)), *(f"{t},early,{-t}" for t in range(80))]
    data = open_series(SeriesDataConfig(source=write(tmp_path, *lines), series="which", **SMALL))
    assert [table.name for table in data.tables] == ["late", "early"]
    for name, (begin, end) in {"train": (0, 70), "validation": (70, 80), "test": (80, 100)}.items():
        split = data.split(name)
        times = {abs(int(v)) for origin in split.origins for v in split.window(origin).targets.ravel()}
        assert min(times) >= begin
        assert max(times) == end - 1
    assert {origin.series for origin in data.split("test").origins} == {0}
    assert "2 series, 130 steps of 1" in data.describe()
    for origin in data.split("train").every(4):
        assert (data.tables[origin.series].index[origin.row] - 5) % 4 == 0


def test_shorter_histories_where_they_are_allowed(tmp_path: Path) -> None:
    source = write(tmp_path, *days(40))
    data = open_series(SeriesDataConfig(source=source, min_history=2, **SMALL))
    split = data.split("train")
    assert [origin.row for origin in split.origins[:4]] == [2, 3, 4, 5]
    batch = collate(split, split.origins[:4])
    assert batch.lengths.tolist() == [2, 3, 4, 5]
    assert batch.history.isnan().sum(1).flatten().tolist() == [3, 2, 1, 0]
    assert batch.history[1, :3, 0].tolist() == [0, 1, 2]


def test_windows_that_tell_no_scale_or_have_nothing_to_forecast_are_left_out(tmp_path: Path) -> None:
    gap = range(20, 30)
    source = write(tmp_path, *days(60, row=lambda i: "" if i in gap else f"{i}"))
    data = open_series(SeriesDataConfig(source=source, **SMALL))
    rows = [origin.row for origin in data.split("train").origins]
    assert rows == [
        r for r in range(5, 40) if len({*range(r - 5, r)} - {*gap}) > 1 and not {*range(r, r + 3)} <= {*gap}
    ]


# ---- reading


def test_missing_rows_and_cells_are_gaps(tmp_path: Path) -> None:
    lines = days(30, "y,z", lambda i: f"{i},{'NA' if i == 3 else -i}")
    del lines[11:13]
    lines[1:] = reversed(lines[1:])  # rows in any order
    data = open_series(SeriesDataConfig(source=write(tmp_path, *lines), **SMALL))
    assert data.targets == ("y", "z")
    expected = np.stack([np.arange(30.0), -np.arange(30.0)], 1)
    expected[10:12] = np.nan
    expected[3, 1] = np.nan
    assert np.array_equal(data.tables[0].values, expected, equal_nan=True)
    assert (str(data.frequency), data.season) == ("day", 7)


@pytest.mark.parametrize(
    ("times", "frequency", "season"),
    [
        ([f"{2000 + i // 12}-{i % 12 + 1:02}-01" for i in range(30)], "month", 12),
        (["2020-01-31", "2020-02-29", "2020-03-31", "2020-05-31", *(f"2021-{m:02}-28" for m in (2,))], "month", 12),
        ([f"{2000 + i // 4}-{3 * (i % 4) + 1:02}-15" for i in range(30)], "quarter", 4),
        ([f"{1990 + i}-12-31" for i in range(30)], "year", 1),
        ([f"2024-01-0{1 + i // 24}T{i % 24:02}:00" for i in range(48)], "hour", 24),
        ([f"2024-01-01 {i // 4:02}:{15 * (i % 4):02}:00+02:00" for i in range(48)], "15 minutes", 96),
        ([f"2024{1 + i // 28:02}{1 + i % 28:02}" for i in range(28)], "day", 7),
        ([str(date(2023, 12, 30) + timedelta(14 * i)) for i in range(30)], "2 weeks", 26),
        ([str(0.5 * i) for i in range(30)], "0.5", 1),
    ],
)
def test_frequencies_are_found(tmp_path: Path, times: list[str], frequency: str, season: int) -> None:
    source = write(tmp_path, "time,y", *(f"{t},{i}" for i, t in enumerate(times)))
    data = open_series(
        SeriesDataConfig(source=source, horizon=1, history=2, validation_fraction=0.0, test_fraction=0.0)
    )
    assert str(data.frequency) == frequency
    assert data.season == season
    values = data.tables[0].values.ravel()
    assert values[~np.isnan(values)].tolist() == list(range(len(times)))


def test_frequency_and_columns_by_name(tmp_path: Path) -> None:
    lines = ["a,when,b", *(f"{i},{2 * i},{-i}" for i in range(30))]
    config = SeriesDataConfig(source=write(tmp_path, *lines), time="when", targets=("b",), frequency="1", **SMALL)
    data = open_series(config)
    assert data.targets == ("b",)
    assert len(data.tables[0].index) == 59
    assert parse_frequency("3 months", True) == Frequency("months", 3)


def test_fingerprint_and_config(tmp_path: Path) -> None:
    config = SeriesDataConfig(source=write(tmp_path, *days(60)), **SMALL)
    data = open_series(config)
    assert data.fingerprint == open_series(config).fingerprint
    for change in ({"horizon": 2}, {"history": 4}, {"season": 5}, {"calendar": ("week",)}, {"test_fraction": 0.3}):
        assert open_series(replace(config, **change)).fingerprint != data.fingerprint
    assert from_dict(SeriesDataConfig, to_dict(config)) == config
    assert SeriesDataConfig().with_absolute_paths() == SeriesDataConfig()
    relative = replace(config, source="data.csv").with_absolute_paths().source
    assert Path(relative).is_absolute()


# ---- batches


def test_batches_are_a_function_of_seed_and_step_and_an_epoch_has_each_window_once(tmp_path: Path) -> None:
    split = open_series(SeriesDataConfig(source=write(tmp_path, *days(60)), **SMALL)).split("train")
    batches = SeriesBatches(split, 4, seed=1)
    assert batches.steps_per_epoch == len(split.origins) // 4
    first = [int(v) for step in range(batches.steps_per_epoch) for v in batches[step].targets[:, 0, 0]]
    second = [int(batches[batches.steps_per_epoch + step].targets[0, 0, 0]) for step in range(3)]
    assert len(set(first)) == len(first) == 4 * batches.steps_per_epoch
    assert second != first[:12:4]
    for step in (40, 0, 7):
        other = SeriesBatches(split, 4, seed=1)[step]
        assert all(torch.equal(a, b) for a, b in zip(other, batches[step]))
        assert [x.dtype for x in other] == [torch.float64, torch.int64, torch.float64, *[torch.float32] * 2]
    rest = len(split.origins) % 4
    assert rest
    every = SeriesBatches(split, 4, seed=1, drop_last=False)
    assert every.steps_per_epoch == batches.steps_per_epoch + 1
    whole = [int(v) for step in range(every.steps_per_epoch) for v in every[step].targets[:, 0, 0]]
    assert whole[:-rest] == first
    assert len(set(whole)) == len(whole) == len(split.origins)
    assert not torch.equal(SeriesBatches(split, 4, seed=2)[0].targets, batches[0].targets)
    with pytest.raises(IndexError):
        batches[-1]
    with pytest.raises(ConfigError, match="batch_size=0"):
        SeriesBatches(split, 0, seed=1)
    with pytest.raises(DataError, match="fewer than batch_size 1000"):
        SeriesBatches(split, 1000, seed=1)


# ---- refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon=0"),
        ({"history": 1}, "history=1 is out of range; expected an integer of at least 2"),
        ({"min_history": 300}, "from 2 to history"),
        ({"min_history": 1}, "min_history=1 is out of range; expected an integer of at least 2"),
        ({"season": 0}, "season=0"),
        ({"calendar": ("moon",)}, "calendar.0='moon' is unknown; use one of: season, day, week, year"),
        ({"calendar": ("year", "year")}, "has a value twice; expected"),
        ({"targets": ("y",), "covariates": ("y",)}, "names the column 'y' twice"),
        ({"test_fraction": 1.0}, "below 1"),
        ({"test_fraction": 0.5, "validation_fraction": 0.5}, "leave nothing to train on"),
        ({"source": ""}, "source='' is empty"),
    ],
)
def test_config_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SeriesDataConfig(**options)


@pytest.mark.parametrize(
    ("lines", "options", "message"),
    [
        (["t,y"], {}, "0 rows"),
        (["1,2", "2,3", "3,4"], {}, "its first line must name the columns, but begins with the value '1'"),
        (["2024-01-01,2", "2024-01-02,3", "2024-01-03,3"], {}, "begins with the value '2024-01-01'"),
        (["t,y,z", "1,2,", "2,3,NA"], {}, "every value of the column 'z' is missing"),
        (["t,t", "1,2", "2,3"], {}, "its own name"),
        (["t,y", "1,2", "2"], {}, "line 3, has 1 cells"),
        (["t,y", "1,2", "2,x"], {}, "line 3: y='x' is not a finite number"),
        (["t,y", "1,2", "2,inf"], {}, "line 3: y='inf' is not a finite number"),
        (["t,y", "1,2", "soon,3"], {}, "line 3: the time 'soon' is neither"),
        (["t,y", "2024-01-01,2", "soon,3"], {}, "line 3: the time 'soon' is not an ISO date"),
        (["t,y", "1,2", "2,3", "1,4"], {}, "line 4: a time is there twice"),
        (["t,y", "1,2", "2,3", "3.5,4"], {}, "line 4: its time is not a whole number of steps of 1"),
        (["t,y", "0,2", "1,3", "5000,4"], {}, "its times are not regular"),
        (days(30), {"time": "when"}, r"no column 'when' \(data.time\); its columns are: day, y"),
        (days(30), {"targets": ("z",)}, "no column 'z'"),
        (days(30), {"targets": ("day",)}, "is a target and something else"),
        (days(30), {"covariates": ("y",)}, "no columns left to forecast"),
        (days(30), {"frequency": "fortnight"}, "frequency='fortnight' is unknown"),
        (days(30), {"frequency": "3 days"}, "line 3: its time is not a whole number"),
        (["t,y", *(f"{i},{i}" for i in range(30))], {"frequency": "day"}, "expected a number above 0"),
        (["t,y", *(f"{i},{i}" for i in range(30))], {"calendar": ("year",)}, "times of .* are numbers"),
        (days(30, "y,c", lambda i: f"{i},{'' if i == 4 else 1}"), {"covariates": ("c",)}, "'c' of .* at its step 5"),
        (days(20), {}, "the validation split, 2 steps, has no window"),
        (days(30, row=lambda i: "" if i < 22 else i), {}, "the train split, 21 steps, has no window"),
    ],
)
def test_data_refusals(tmp_path: Path, lines: list[str], options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        open_series(SeriesDataConfig(source=write(tmp_path, *lines), **{**SMALL, **options}))


def test_refusals_of_places_and_splits(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="there is no file"):
        open_series(SeriesDataConfig(source=str(tmp_path / "none.csv")))
    (tmp_path / "data.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        open_series(SeriesDataConfig(source=str(tmp_path / "data.csv")))
    data = open_series(SeriesDataConfig(source=write(tmp_path, *days(40)), validation_fraction=0.0, **SMALL))
    with pytest.raises(DataError, match=r"no validation split: data\.validation_fraction is 0"):
        data.split("validation")
    with pytest.raises(ConfigError, match="the split 'dev' is unknown"):
        data.split("dev")
    with pytest.raises(ConfigError, match="stride=0"):
        data.split("test").every(0)
