"""StatewiseForecaster: one series, several, of several targets, with and without times."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import statewise as sw

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import pandas
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils import estimator_checks


def wave(n: int, level: float = 100.0) -> np.ndarray:
    return level + 10 * np.sin(np.arange(n) * 2 * np.pi / 12)


def forecaster(**more: Any) -> sw.StatewiseForecaster:
    small = {"horizon": 6, "season": 12, "d_model": 8, "n_layers": 1, "dropout": 0.0, "lr": 0.01, "steps": 3}
    return sw.StatewiseForecaster(**(small | {"random_state": 0} | more))


def test_the_next_steps() -> None:
    y = wave(150)
    found = forecaster(steps=80).fit(y[:120])
    assert np.abs(found.predict() - y[120:126]).mean() < 3
    low, high = found.predict_interval(9).T
    assert found.predict(9).shape == low.shape == (9,)
    assert (low <= high).all()
    later = found.predict(6, y=y[:140])
    assert np.abs(later - y[140:146]).mean() < 3
    again = pickle.loads(pickle.dumps(found))
    assert (again.predict(9) == found.predict(9)).all()
    assert (clone(found).fit(y[:120]).predict() == found.predict()).all()


def test_several_series_and_targets() -> None:
    ys = [wave(60 + i, 10.0 * i) for i in range(3)]
    several = forecaster().fit(ys)
    assert several.predict().shape == (3, 6)
    assert several.predict(8, y=ys[:2]).shape == (2, 8)
    assert several.predict(y=wave(80)).shape == (6,)
    assert several.predict_interval().shape == (3, 6, 2)
    both = forecaster().fit(np.stack([wave(60), wave(60, 0.0)], 1))
    assert both.predict().shape == (6, 2)
    assert both.predict_interval(7).shape == (7, 2, 2)
    assert forecaster().fit([np.ones((50, 2)), wave(120).reshape(60, 2)]).predict().shape == (2, 6, 2)


@pytest.mark.parametrize("kind", ["stamps", "periods"])
def test_times_come_from_the_index(kind: str, tmp_path: Path) -> None:
    index = pandas.date_range("2015-01-01", periods=72, freq="MS")
    y = pandas.Series(wave(72), index if kind == "stamps" else index.to_period("M"), name="time")
    y.iloc[30] = np.nan  # a gap
    found = forecaster(season=None, out=tmp_path / "run").fit(y)
    assert found.model_.config.series.season == 12
    ahead = found.forecast(3)
    assert ahead.times[0].astype("datetime64[M]").astype(str).tolist() == ["2021-01", "2021-02", "2021-03"]
    kept = sw.predictor(tmp_path / "run").forecast(found.frame_, 3)
    assert (kept.values == ahead.values).all()
    table = pandas.DataFrame({"sold": wave(72), "bought": wave(72, 5.0)}, index)
    assert forecaster().fit(table).forecast().targets == ("sold", "bought")


def test_refusals() -> None:
    with pytest.raises(NotFittedError):
        forecaster().predict()
    for y, message in (
        (np.zeros((2, 3, 4)), r"a series has the shape \(2, 3, 4\)"),
        ([], r"a series has the shape \(0,\)"),
        ([wave(60), np.zeros((60, 2))], "series 1 is .length, d_target., the first is not"),
        ([np.zeros((60, 1)), np.zeros((60, 2))], "the series have the columns"),
        (wave(5), "steps"),
    ):
        with pytest.raises(ValueError, match=message):
            forecaster().fit(y)
    found = forecaster(quantiles=(0.5,)).fit(wave(60))
    with pytest.raises(sw.InputError, match="has no lowest and highest one"):
        found.predict_interval()
    with pytest.raises(sw.InputError, match="y has several series of value; expected one of value, as in fit"):
        found.predict(y=[wave(60), wave(50)])
    with pytest.raises(sw.InputError, match="y has one series of value 0, value 1; expected one of value"):
        found.predict(y=np.zeros((60, 2)))


@pytest.mark.parametrize(
    "check",
    [
        "check_estimator_cloneable",
        "check_estimator_repr",
        "check_get_params_invariance",
        "check_no_attributes_set_in_init",
        "check_parameters_default_constructible",
        "check_set_params",
    ],
)
def test_those_of_scikit_learns_checks_that_need_no_table(check: str) -> None:
    getattr(estimator_checks, check)("StatewiseForecaster", forecaster())
