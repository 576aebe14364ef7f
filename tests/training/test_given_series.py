"""One series as somebody has it in Python, a Series of pandas or an array: trained on, asked, and refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise.errors import ConfigError, InputError

QUICK: dict[str, Any] = {"steps": 1, "progress": False, "set": {"model.d_model": 8}}


def wave(n: int = 120) -> np.ndarray:
    return np.sin(np.arange(n) * 2 * np.pi / 12) + np.random.default_rng(0).normal(size=n)


def train(folder: Path, data: Any, model: Any = "forecaster", **more: Any) -> sw.Trained:
    return sw.train(model, data, out=folder / f"run{len(list(folder.iterdir()))}", **{"horizon": 3, **QUICK, **more})


def test_numbers_in_a_row(tmp_path: Path) -> None:
    x = wave()
    x[5] = np.nan
    run = train(tmp_path, x)
    answers = run.predictor.forecast(x)
    assert answers.times[0].tolist() == [120, 121, 122]
    assert answers.values.shape == (1, 3, 1, 3)
    assert run.evaluate("test")["windows"] > 0
    kept = np.genfromtxt(tmp_path / "run0" / "data" / "series.csv", delimiter=",", names=True)
    assert np.array_equal(kept["value"], x, equal_nan=True), "every bit of it"
    for other in (x.tolist(), torch.from_numpy(x), x[:, None][:, 0]):
        assert (train(tmp_path, other).predictor.forecast(x).values == answers.values).all()
    assert (train(tmp_path, x, None).predictor.forecast(x).values == answers.values).all(), "what else could it be"
    assert train(tmp_path, np.arange(120)).predictor.forecast(x).values.shape == (1, 3, 1, 3)


@pytest.mark.parametrize("index", ["days", "months", "periods", "numbers", "years", "texts"])
@pytest.mark.parametrize("named", [False, True])
def test_a_series_of_pandas(index: str, named: bool, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    days = pandas.date_range("2024-01-01", periods=123)
    months = pandas.date_range("2012-01-31", periods=123, freq="ME")
    whole = {
        "days": days,
        "months": months,
        "periods": months.to_period("M"),
        "numbers": pandas.RangeIndex(123),
        "years": pandas.Index(range(1900, 2023)),
        "texts": pandas.Index(days.strftime("%d.%m.%Y")),
    }[index]
    series = pandas.Series(wave(), whole[:120])
    if named:
        series = series.rename("sold").rename_axis("when")
    run = train(tmp_path, series)
    answers = run.predictor.forecast(series)
    table = answers.to_frame()
    ahead = {"periods": whole.to_timestamp() if index == "periods" else whole, "texts": days}.get(index, whole)[120:]
    assert table["time"].tolist() == ahead.tolist()
    assert ("sold" if named else "value") in table
    config = sw.load(run.folder).config.series
    assert config.time == ("when" if named else "step" if index in ("numbers", "years") else "time")
    later = run.predictor.forecast(series[:100])
    assert later.times[0, 0] != answers.times[0, 0]


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"the shape .60, 30.; give one series, .length,., or several in a DataFrame"):
        train(tmp_path, np.zeros((60, 30)))
    with pytest.raises(InputError, match=r"data are a ndarray; give .* to forecast, one series .length,. as well"):
        sw.train("classifier", np.zeros(60), out=tmp_path / "no")
    with pytest.raises(InputError, match="validation= is for arrays; of a series the end is held out"):
        train(tmp_path, wave(), validation=wave())
    with pytest.raises(ConfigError, match="learns from"):
        sw.train(sw.SequenceClassifierConfig(d_model=4, n_classes=2, d_input=1, layers=(sw.S4DConfig(),)), wave())
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    with pytest.raises(InputError, match="the Series and its index are both called 'a'; rename one of them"):
        train(tmp_path, pandas.Series(wave(), name="a").rename_axis("a"))
    assert not list(tmp_path.iterdir())
