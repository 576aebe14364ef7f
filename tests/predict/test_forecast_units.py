"""A series in other units, or higher, is forecast alike by everything that forecasts, up to its own rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forecast_models import LAYERS, OPTIONS, example, forecaster
from training_runs import train_config

import statewise as sw
from statewise.estimation.structural import Irregular, Seasonal, Trend
from statewise.evaluate.forecasting import evaluate_forecasts
from statewise.models.structural import StructuralForecasterConfig
from statewise.training import BudgetConfig, TrainConfig

CHANGES = [(7.0, -1500.0), (1.0, 1e6), (1.0, 1e8), (0.01, 1e6), (1e-30, 0.0), (1e30, 0.0)]
S4D = sw.S4DConfig(d_state=4)


def wave(n: int = 90) -> np.ndarray:
    return np.sin(np.arange(n) * 2 * np.pi / 12) + 0.1 * np.random.default_rng(0).normal(size=n) + 0.01 * np.arange(n)


def within(unit: float, level: float, layers: float = 3e-5) -> float:
    """What rounding may come to, in units of ``wave``: of the layers, in float32, and of the data, in float64."""
    return layers + 500 * np.finfo(np.float64).eps * abs(level) / unit


def network(**options: Any) -> sw.Forecaster:
    """Forecasts of the size of the series itself, parameters drawn."""
    return forecaster(torch.float32, layers=(S4D,), quantiles=(0.1, 0.5, 0.9), scaling_steps=12, **options).eval()


def data(folder: Path, unit: float, level: float) -> sw.SeriesDataConfig:
    path = folder / f"{unit}{level}.csv"
    rows = [f"{i},{value!r}" for i, value in enumerate((unit * wave() + level).tolist())]
    path.write_text("\n".join(["step,v", *rows]))
    return sw.SeriesDataConfig(source=str(path), horizon=5, history=30, season=12)


@pytest.mark.parametrize(("unit", "level"), CHANGES)
def test_a_call(unit: float, level: float) -> None:
    inputs = example()
    inputs["history"] -= 300
    moved = {**inputs, "history": unit * inputs["history"] + level}
    for dtype, layers in ((torch.float32, 1e-4), (torch.float64, 1e-12)):
        model = forecaster(dtype, **OPTIONS, layers=LAYERS)
        plain, found = model(**inputs)[0], model(**moved)[0]
        assert found.dtype == torch.float64
        assert ((found - level) / unit - plain).abs().max() < within(unit, level, layers)
        state = model.initial_state(3)
        for begin, end in ((0, 4), (4, 5), (5, 23)):
            piece = {name: moved[name][:, begin:end] for name in ("history", "covariates")}
            pieces, state = model(**piece, future_covariates=inputs["future_covariates"], state=state)
        assert ((pieces - found) / unit).abs().max() < within(unit, level, layers)


@pytest.mark.parametrize(("unit", "level"), CHANGES)
def test_a_predictor(unit: float, level: float) -> None:
    predictor = sw.predictor(network())
    plain = predictor.forecast(wave(), 12).values  # beyond the horizon too
    found = predictor.forecast(unit * wave() + level, 12).values
    assert np.abs((found - level) / unit - plain).max() < within(unit, level)
    assert np.allclose(predictor.predict(unit * wave() + level).values, found[:, :5], rtol=0, atol=0)


@pytest.mark.parametrize(("unit", "level"), CHANGES)
def test_an_evaluation(unit: float, level: float, tmp_path: Path) -> None:
    model = network()
    plain = evaluate_forecasts(model, sw.open_series(data(tmp_path, 1.0, 0.0)).split("test"))
    found = evaluate_forecasts(model, sw.open_series(data(tmp_path, unit, level)).split("test"))
    bound = within(unit, level)
    assert found.model.mase == pytest.approx(plain.model.mase, abs=bound)
    assert found.loss == pytest.approx(plain.loss, abs=bound)
    assert found.model.mae == pytest.approx(unit * plain.model.mae, abs=unit * bound)
    assert found.coverage == plain.coverage


@pytest.mark.parametrize(("unit", "level"), CHANGES)
def test_a_run(unit: float, level: float, tmp_path: Path) -> None:
    def trained(unit: float, level: float) -> tuple[dict[str, Any], np.ndarray]:
        config = sw.ForecasterConfig(horizon=5, d_model=8, layers=(S4D,), quantiles=(0.1, 0.5, 0.9), scaling_steps=12)
        series = data(tmp_path, unit, level)
        train = train_config(steps=4, batch_size=8)
        run = sw.train(sw.RunConfig(model=config, data=series, train=train), out=tmp_path / f"run{unit}{level}")
        return run.evaluate("test"), (run.predict(series.source).values - level) / unit

    (plain, answers), (found, moved) = trained(1.0, 0.0), trained(unit, level)
    assert np.abs(moved - answers).max() < 10 * within(unit, level)
    assert found["mase"] == pytest.approx(plain["mase"], abs=10 * within(unit, level))


@pytest.mark.parametrize(("unit", "level"), CHANGES)
def test_a_structural_run(unit: float, level: float, tmp_path: Path) -> None:
    def trained(unit: float, level: float) -> tuple[dict[str, Any], np.ndarray]:
        parts = (Trend(), Seasonal(period=12, harmonics=1), Irregular())
        config = StructuralForecasterConfig(horizon=5, components=parts, scale=unit)
        series = data(tmp_path, unit, level)
        train = TrainConfig(budget=BudgetConfig(steps=1))
        run = sw.train(sw.RunConfig(model=config, data=series, train=train), out=tmp_path / f"run{unit}{level}")
        return run.evaluate("test"), (run.predict(series.source).values - level) / unit

    (plain, answers), (found, moved) = trained(1.0, 0.0), trained(unit, level)
    assert np.abs(moved - answers).max() < within(unit, level)
    assert found["mase"] == pytest.approx(plain["mase"], abs=within(unit, level))


@pytest.mark.parametrize(("unit", "level"), CHANGES)
def test_an_estimator(unit: float, level: float) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    pytest.importorskip("pandas", reason="pandas is not installed")

    def fitted(y: np.ndarray) -> np.ndarray:
        small: dict[str, Any] = {"horizon": 6, "season": 12, "d_model": 8, "n_layers": 1, "dropout": 0.0}
        return sw.StatewiseForecaster(**small, steps=3, random_state=0).fit(y).predict(9)

    found = (fitted(unit * wave() + level) - level) / unit
    assert np.abs(found - fitted(wave())).max() < 10 * within(unit, level)
