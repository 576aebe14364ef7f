"""Forecasts of times with a zone: told in that zone, in arrays, rows, tables, files and pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from training_runs import train_config

import statewise as sw
from statewise import cli
from statewise.errors import DataError
from statewise.training import RunConfig, train_run

pandas = pytest.importorskip("pandas", reason="pandas is not installed")
pytest.importorskip("pyarrow", reason="pyarrow is not installed")

BERLIN = "Europe/Berlin"


def frame(frequency: str, first: str = "2024-01-31", n: int = 260, zone: str | None = BERLIN) -> Any:
    index = pandas.date_range(first, periods=n, freq=frequency, tz=zone)
    return pandas.DataFrame({"date": index, "v": np.arange(n) % 7, "plan": np.arange(n) % 5})


def run(folder: Path, table: Any, covariates: tuple[str, ...] = ()) -> Path:
    table.to_parquet(folder / "own.parquet")
    data = sw.SeriesDataConfig(
        source=str(folder / "own.parquet"), targets=("v",), covariates=covariates, horizon=4, history=12
    )
    model = sw.ForecasterConfig(
        horizon=4, d_model=4, layers=(sw.S4DConfig(d_state=2),), d_covariates=len(covariates), quantiles=(0.1, 0.5, 0.9)
    )
    train_run(RunConfig(model=model, data=data, train=train_config(steps=1, batch_size=4)), folder / "run")
    return folder / "run"


@pytest.mark.parametrize("frequency", ["D", "W", "ME", "MS", "h", "30min"])
def test_what_comes_next_is_what_pandas_says(frequency: str, tmp_path: Path) -> None:
    """Where the clocks change within the horizon as well."""
    n = {"D": 300, "W": 60, "ME": 60, "MS": 60, "h": 300, "30min": 500}[frequency]
    first = {"D": "2024-01-03", "h": "2024-10-14 14:00", "30min": "2024-10-16 15:30"}.get(frequency, "2022-01-31")
    whole = frame(frequency, first, n + 4)
    predictor = sw.predictor(run(tmp_path, whole[:n]))
    answers = predictor.forecast(whole[:n])
    assert (answers.to_frame()["time"].to_numpy() == whole["date"][n:].to_numpy()).all()
    assert str(answers.to_frame()["time"].dt.tz) == BERLIN
    told = [row["time"] for row in answers.rows()]
    if frequency in ("h", "30min"):
        assert told == [time.isoformat() for time in whole["date"][n:]]
        assert len({time[-6:] for time in told}) == 2, "the clocks change"
    else:
        assert told == [time.date().isoformat() for time in whole["date"][n:]]
    arrays = predictor.forecast(whole["v"][:n].to_numpy()[:, None], times=whole["date"][:n])
    assert (arrays.times == answers.times).all()
    assert (arrays.values == answers.values).all()


def test_a_time_of_day_keeps_its_zone(tmp_path: Path) -> None:
    whole = frame("D", "2024-01-03 09:00", 304)
    answers = sw.predictor(run(tmp_path, whole[:300])).forecast(whole[:300])
    assert [time.isoformat() for time in answers.times[0]] == [time.isoformat() for time in whole["date"][300:]]


def test_files_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    whole = frame("h", "2024-10-14 11:00", 304)
    folder = str(run(tmp_path, whole[:300]))
    last = whole["date"][303]
    assert cli.run(["forecast", folder, "--out", str(tmp_path / "a.csv"), "--plot", str(tmp_path / "a.png")]) == 0
    assert f",{last}," in (tmp_path / "a.csv").read_text().splitlines()[-1], "as it is written in a table"
    assert cli.run(["forecast", folder, "--out", str(tmp_path / "a.jsonl")]) == 0
    assert json.loads((tmp_path / "a.jsonl").read_text().splitlines()[-1])["time"] == last.isoformat()
    assert cli.run(["forecast", folder, "--out", str(tmp_path / "a.parquet")]) == 0
    read = pandas.read_parquet(tmp_path / "a.parquet")["time"]
    assert str(read.dt.tz) == BERLIN
    assert read.iloc[-1] == last
    capsys.readouterr()


def test_hours_without_a_zone_beside_hours_with_one_are_refused(tmp_path: Path) -> None:
    whole = frame("h", "2024-10-14", 304)
    naive = whole.assign(date=whole["date"].dt.tz_localize(None))
    predictor = sw.predictor(run(tmp_path, whole[:300], covariates=("plan",)))
    assert len(predictor.forecast(whole[:300], future=whole[300:])) == 4
    with pytest.raises(
        DataError, match="times of the future table have no time zone, and those of the other table hav"
    ):
        predictor.forecast(whole[:300], future=naive[300:])
    with pytest.raises(DataError, match=r"times of the table have no time zone, and .* one .Europe/Berlin.; give them"):
        predictor.forecast(naive[:300], future=naive[300:])
    with pytest.raises(DataError, match=r"'plan' of series .* is missing at 2024-10-26T12:00:00, step 1 of 4"):
        predictor.forecast(whole[:300])


def test_days_of_a_plan_need_no_zone(tmp_path: Path) -> None:
    whole = frame("D", "2024-01-03", 304)
    naive = whole.assign(date=whole["date"].dt.tz_localize(None))
    predictor = sw.predictor(run(tmp_path, whole[:300], covariates=("plan",)))
    one, other = (predictor.forecast(whole[:300], future=plan[300:]) for plan in (whole, naive))
    assert (one.values == other.values).all()


def test_an_estimator(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    whole = frame("D", "2024-01-03", 304).set_index("date")["v"]
    found = sw.StatewiseForecaster(horizon=4, d_model=8, n_layers=1, steps=2).fit(whole[:300]).forecast()
    assert (found.to_frame()["time"].to_numpy() == whole.index[300:].to_numpy()).all()
