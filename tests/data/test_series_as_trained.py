"""Series for a model that is trained already: in evaluation, forecasts and further training."""

from __future__ import annotations

from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forecast_runs import sales_run

import statewise as sw
from statewise.data.series import SeriesDataConfig, SeriesTable, open_series
from statewise.data.series_ahead import read_pasts
from statewise.data.series_as_trained import rows_apart
from statewise.data.series_times import Frequency
from statewise.errors import ConfigError, DataError
from statewise.training import open_task, train_run

FIRST = date(2024, 1, 1)
SMALL: dict[str, Any] = {"horizon": 3, "history": 5}


def table(folder: Path, name: str, times: list[str], columns: str = "day,v", row: Any = lambda t, i: f"{t},{i}") -> str:
    (folder / name).write_text("\n".join([columns, *(row(t, i) for i, t in enumerate(times))]) + "\n")
    return str(folder / name)


def days(n: int = 60, step: int = 1) -> list[str]:
    return [f"{FIRST + timedelta(step * i)}" for i in range(n)]


def months(n: int = 60) -> list[str]:
    return [f"{2015 + i // 12}-{i % 12 + 1:02}-01" for i in range(n)]


def hours(n: int = 60) -> list[str]:
    return [f"2024-01-0{1 + i // 24} {i % 24:02}:00" for i in range(n)]


def test_the_columns_are_found_by_name(tmp_path: Path) -> None:
    """Another column of dates before them is not the time, and another number is no target."""
    config = SeriesDataConfig(source=table(tmp_path, "own.csv", days()), **SMALL)
    own = open_series(config)
    later = {t: f"{date.fromisoformat(t) + timedelta(300 - 2 * i)}" for i, t in enumerate(days())}
    other = table(tmp_path, "other.csv", days(), "loaded,n,v,day", lambda t, i: f"{later[t]},{-i},{i},{t}")
    found = open_series(replace(config, source=other), own.input)
    assert found.targets == ("v",)
    assert found.fingerprint == replace(own, tables=(replace(own.tables[0], name=found.tables[0].name),)).fingerprint
    for columns, missing in (("date,v", "day"), ("day,w", "v")):
        strange = table(tmp_path, "strange.csv", days(), columns)
        with pytest.raises(DataError, match=f"has no column '{missing}'"):
            open_series(replace(config, source=strange), own.input)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (hours(), "its steps are of hour, but those of the training data were of day"),
        (days(step=7), "a value at most every 7 steps of day, but the model was trained on every step"),
        (days(step=2), "a value at most every 2 steps of day"),
        (months(), "60 of them on a grid of 1,796 steps of day"),
        ([f"{i}" for i in range(60)], "its times are numbers, but those of the training data were dates"),
    ],
)
def test_other_steps_are_refused_by_evaluation_and_forecast(tmp_path: Path, times: list[str], message: str) -> None:
    config = SeriesDataConfig(source=table(tmp_path, "own.csv", days()), **SMALL)
    trained = open_series(config).input
    other = table(tmp_path, "other.csv", times)
    for call in (lambda: open_series(replace(config, source=other), trained), lambda: read_pasts(other, trained, 3)):
        with pytest.raises(DataError, match=message) as error:
            call()
        assert "\n" not in str(error.value)


def test_a_model_of_months_reads_no_days_quarters_or_years(tmp_path: Path) -> None:
    trained = open_series(SeriesDataConfig(source=table(tmp_path, "own.csv", months()), **SMALL)).input
    for times in (days(), days(step=7), months(180)[::3], [f"{1950 + i}-01-01" for i in range(60)]):
        with pytest.raises(DataError, match=r"steps? (are )?of (day|week|month)"):
            read_pasts(table(tmp_path, "other.csv", times), trained, 3)


def test_gaps_are_no_other_step(tmp_path: Path) -> None:
    """And a model that was trained on weeks in a grid of days, as somebody asked for, reads such tables."""
    config = SeriesDataConfig(source=table(tmp_path, "own.csv", days()), **SMALL)
    trained = open_series(config).input
    assert trained.every == 1
    gaps = [t for i, t in enumerate(days()) if i % 7 not in (2, 3, 6)]
    assert read_pasts(table(tmp_path, "gaps.csv", gaps), trained, 3)
    sparse = table(tmp_path, "weeks.csv", days(step=7))
    on_days = replace(config, source=sparse, frequency="day", history=50)
    trained = open_series(on_days).input
    assert (trained.step, trained.every) == (86400, 7)
    assert open_series(on_days, trained).input == trained
    assert read_pasts(sparse, trained, 3)


def test_rows_apart() -> None:
    def series(*times: float) -> SeriesTable:
        return SeriesTable("a", np.arange(len(times)), np.array(times), np.ones((len(times), 1)), np.ones((0, 0)))

    number = Frequency("number", 1.0)
    assert rows_apart([series(0, 4, 8, 14)], number) == 2
    assert rows_apart([series(0, 4, 8, 14), series(3, 6, 9), series(0, 9)], number) == 2
    assert rows_apart([series(0, 9)], number) == 1, "two rows tell no regular step"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"time": "month", "series": "shop"}, None),
        ({"targets": ("back", "sold")}, r"data\.targets=\['back', 'sold'\], but .* with targets=\['sold', 'back'\]"),
        ({"time": "promo"}, r"data\.time='promo', but the model was trained with time='month'"),
        ({"calendar": ("year",)}, r"data\.calendar=\['year'\], but .* with calendar=\['year', 'season'\]"),
        ({"harmonics": 2}, "data.harmonics=2, but the model was trained with harmonics=1"),
        ({"season": 6}, "data.season=6, but the model was trained with season=12"),
        ({"frequency": "quarter"}, "data.frequency='quarter', but the model was trained on steps of month"),
    ],
)
def test_training_further_on_needs_the_same_series(
    tmp_path: Path, changes: dict[str, Any], message: str | None
) -> None:
    run = sales_run(tmp_path)
    model = open_task(run).run.model
    further = replace(run, model=model, data=replace(run.data, **changes))
    if message is None:
        assert open_task(further).run.model == model
        return
    with pytest.raises(ConfigError, match=message) as error:
        open_task(further)
    assert "\n" not in str(error.value)


def test_parameters_to_begin_with_bring_their_series(tmp_path: Path) -> None:
    """Also where only train.initial names them; windows and notation are those of the new data."""
    run = sales_run(tmp_path)
    train_run(run, tmp_path / "run")
    trained = sw.load(tmp_path / "run").config.series
    begun = replace(run, train=replace(run.train, initial=str(tmp_path / "run")))
    assert open_task(begun).run.model.series == trained  # type: ignore[attr-defined]
    swapped = replace(begun, data=replace(run.data, targets=("back", "sold")))  # type: ignore[type-var]
    with pytest.raises(ConfigError, match="the model was trained with targets"):
        open_task(swapped)
    longer = replace(begun, data=replace(run.data, history=20))  # type: ignore[type-var]
    assert open_task(longer).run.model.series == replace(trained, history=20, min_history=20)  # type: ignore[attr-defined]


def test_sw_train_goes_on_with_the_columns_of_the_run(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    wave = np.sin(np.arange(120) * 2 * np.pi / 7)
    frame = pandas.DataFrame({"t": pandas.date_range("2024-01-01", periods=120), "v": wave, "w": -wave})
    quick: dict[str, Any] = {"steps": 1, "progress": False, "time": "t", "horizon": 3}
    first = sw.train("forecaster", frame, targets=("w", "v"), out=tmp_path / "a", set={"model.d_model": 8}, **quick)
    more = sw.train(tmp_path / "a", frame, out=tmp_path / "b", **quick)
    assert more.model.config.series.targets == ("w", "v")
    assert more.model.config.series.calendar == first.model.config.series.calendar
    weekly = frame.assign(t=pandas.date_range("2014-01-01", periods=120, freq="W"))
    for other, options, message in (
        (frame, {"targets": ("v", "w")}, "data.targets"),
        (frame.rename(columns={"v": "x"}), {}, "has no column 'v'"),
        (weekly, {}, "a value at most every 7 steps of day"),
    ):
        with pytest.raises((ConfigError, DataError), match=message):
            sw.train(tmp_path / "a", other, out=tmp_path / "c", **options, **quick)
    assert not (tmp_path / "c").exists()
