"""Structural time series as a kind of model: built, streamed, fitted, resumed, scored, saved and drawn."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import statewise as sw
from statewise.data.series import SeriesDataConfig, open_series
from statewise.errors import ConfigError, InputError
from statewise.estimation.gaussian import GaussianState
from statewise.estimation.structural import Irregular, Level, Regression, Seasonal
from statewise.estimation.structural.components import AnyComponent
from statewise.evaluate.forecasting import evaluate_forecasts
from statewise.models.registry import model_from_dict, model_to_dict
from statewise.models.structural import StructuralForecaster, StructuralForecasterConfig
from statewise.training import BudgetConfig, OptimizerConfig, RunConfig, TrainConfig, open_task, train_run
from statewise.training.presets import PRESETS, fit_model

PARTS: tuple[AnyComponent, ...] = (Level(), Seasonal(period=4), Irregular())


def config(**options: Any) -> StructuralForecasterConfig:
    return StructuralForecasterConfig(**{"horizon": 3, "components": PARTS, **options})


def model(**options: Any) -> StructuralForecaster:
    built = config(**options).build()
    with torch.no_grad():
        built.free.copy_(torch.randn(built.free.shape, generator=torch.Generator().manual_seed(0)) - 1)
    return built


def data(folder: Path, n_series: int = 1, n_targets: int = 1) -> SeriesDataConfig:
    rng = np.random.default_rng(0)
    lines = ["t,name," + ",".join(f"y{k}" for k in range(n_targets))]
    for name in range(n_series):
        walk = rng.normal(size=(90, n_targets)).cumsum(0) + np.tile([3.0, -3.0, 0.0, 0.0], 23)[:90, None]
        lines += [f"{t},{name}," + ",".join(map(str, row)) for t, row in enumerate(walk) if t not in (20, 70)]
    (folder / "series.csv").write_text("\n".join(lines) + "\n")
    return SeriesDataConfig(source=str(folder / "series.csv"), series="name", season=4, horizon=3, history=24)


def run(folder: Path, steps: int = 2, **options: Any) -> RunConfig:
    series = data(folder, options.pop("n_series", 1), options.get("d_target", 1))
    return RunConfig(model=config(**options), data=series, train=TrainConfig(budget=BudgetConfig(steps=steps)))


def history(*shape: int) -> torch.Tensor:
    values = torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).cumsum(1)
    values[:, 4] = torch.nan
    return values


@pytest.mark.parametrize("d_target", [1, 2])
@pytest.mark.parametrize("d_covariates", [0, 2])
def test_a_history_in_pieces_gives_the_forecasts_of_the_whole(d_target: int, d_covariates: int) -> None:
    parts = (*PARTS, Regression(d_covariates=2)) if d_covariates else PARTS
    built, y = model(d_target=d_target, components=parts), history(3, 20, d_target)
    known = torch.randn(3, 23, d_covariates, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def given(begin: int, end: int) -> dict[str, Any]:
        return {"covariates": known[:, begin:end], "future_covariates": known[:, end : end + 3]} if d_covariates else {}

    whole, none = built(y, **given(0, 20))
    assert none is None
    assert whole.shape == (3, 3, d_target, 3)
    assert bool((whole.diff(dim=-1) > 0).all())
    state: GaussianState | None = built.initial_state(3)
    for begin, end in ((0, 7), (7, 8), (8, 20)):
        found, state = built(y[:, begin:end], state, **given(begin, end))
    torch.testing.assert_close(found, whole, rtol=1e-6, atol=1e-6)
    if not d_covariates:
        padded = torch.cat([y, torch.full((3, 5, d_target), torch.nan, dtype=y.dtype)], 1)
        found, _ = built(padded, lengths=torch.tensor([20, 20, 20]))
        torch.testing.assert_close(found, whole, rtol=1e-9, atol=1e-9)


def test_forecasts_are_those_of_the_structural_model() -> None:
    built, y = model(), history(1, 40, 1)
    parameters = {name: value.detach() for name, value in built.parameters_by_name.items()}
    forecast = built.structural.forecast(parameters, y, 3).observations
    found, _ = built(y)
    torch.testing.assert_close(found[0, :, 0, 1], forecast.mean[0, :, 0], rtol=1e-7, atol=1e-7)
    low, high = forecast.interval(0.8)
    torch.testing.assert_close(found[0, :, 0, [0, 2]], torch.cat([low, high], -1)[0], rtol=1e-6, atol=1e-6)
    mean, _ = model(quantiles=None)(y)
    torch.testing.assert_close(mean, found[..., 1:2])


def test_it_is_saved_and_named_in_json(tmp_path: Path) -> None:
    built = model(components=(*PARTS, Regression(d_covariates=1)))
    assert model_from_dict(json.loads(json.dumps(model_to_dict(built.config)))) == built.config
    sw.save(built, tmp_path / "model")
    loaded = sw.load(tmp_path / "model")
    assert torch.equal(loaded.free, built.free)
    assert loaded.config == built.config


@pytest.mark.parametrize(("n_series", "d_target"), [(1, 1), (2, 2)])
def test_a_run_is_fitted_resumed_scored_and_drawn(tmp_path: Path, n_series: int, d_target: int) -> None:
    parts = (Level(), Irregular()) if d_target > 1 else PARTS
    once = run(tmp_path, 2, n_series=n_series, d_target=d_target, components=parts)
    part = replace(once, train=replace(once.train, budget=BudgetConfig(steps=1)))
    first = train_run(part, tmp_path / "parts")
    resumed = train_run(once, tmp_path / "parts", resume=True)
    whole = train_run(once, tmp_path / "once")
    assert resumed.step == whole.step == 2
    assert first.checkpoint is not None
    assert resumed.checkpoint is not None
    assert whole.checkpoint is not None
    fitted = sw.load(whole.checkpoint)
    assert torch.equal(sw.load(resumed.checkpoint).free, fitted.free)
    task = open_task(once)
    batch = task.batches[0]
    losses = [
        float(task.loss(m, batch, None)[0].detach()) for m in (once.model.build(), sw.load(first.checkpoint), fitted)
    ]
    assert losses[0] > losses[1] >= losses[2] - 1e-12
    record = task.evaluate(fitted, "test", stride=5)
    assert {"mae", "mase", "loss", "coverage", "baselines", "windows"} <= set(record)
    assert task.tables({**record, "checkpoint": "x", "split": "test"})
    pytest.importorskip("matplotlib")
    task.plot(tmp_path / "plot.png", model=fitted, split="validation", record=record)
    assert (tmp_path / "plot.png").exists()


def test_a_fit_by_training_is_a_fit(tmp_path: Path) -> None:
    """One series, one target: the parameters are those of ``structural.fit``."""
    once = run(tmp_path, 3, components=(Level(), Irregular()))
    result = train_run(once, tmp_path / "run")
    assert result.checkpoint is not None
    fitted, batch = sw.load(result.checkpoint), open_task(once).batches[0]
    found = sw.estimation.structural.fit(Level() + Irregular(), batch.values)
    with torch.no_grad():
        likelihood = fitted.log_likelihood(fitted.free[None], fitted.series(batch.values, None))
    assert float(likelihood) == pytest.approx(float(found.log_likelihood), abs=1e-5)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    once = run(tmp_path)
    wrong = replace(once, train=replace(once.train, optimizer=OptimizerConfig(lr=0.1)))
    with pytest.raises(ConfigError, match=r"train\.optimizer is for steps along a gradient"):
        open_task(wrong)
    with pytest.raises(ConfigError, match=r"train\.accumulation=2"):
        open_task(replace(once, train=replace(once.train, accumulation=2)))
    with pytest.raises(ConfigError, match=r"model\.horizon=4, but the series need horizon=3"):
        open_task(replace(once, model=config(horizon=4)))
    with pytest.raises(ConfigError, match=r"the series have 0 covariates, and model\.components a Regression of 2"):
        open_task(replace(once, model=config(components=(*PARTS, Regression(d_covariates=2)))))
    with pytest.raises(ConfigError, match="none of them is random"):
        config(components=(Level(stochastic=False),))
    with pytest.raises(ConfigError, match="a series has one level"):
        config(components=(*PARTS, Level()))
    with pytest.raises(ConfigError, match="unknown here"):
        model_from_dict({"type": "StructuralForecasterConfig", "horizon": 3, "components": [{"type": "Levle"}]})
    built, y = model(), history(2, 8, 1)
    for call, words in (
        (lambda: built(y[0]), r"history must be a tensor of shape \(batch, length, 1\)"),
        (lambda: built(y.long()), "must be real"),
        (lambda: built(y, "state"), "must be a GaussianState or None"),
        (lambda: built(y, built.initial_state(3)), "state"),
        (lambda: model(components=(*PARTS, Regression(d_covariates=1)))(y), "covariates must be a tensor"),
        (lambda: evaluate_forecasts(model(horizon=4), open_series(once.data).split("test")), "horizon=4"),
    ):
        with pytest.raises(InputError, match=words) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.skipif(importlib.util.find_spec("statsmodels") is None, reason="no statsmodels here")
@pytest.mark.parametrize("name", ["co2-structural", "sunspots-structural"])
def test_presets_fit_their_data(name: str) -> None:
    preset = PRESETS[name]()
    assert fit_model(preset) == preset
    task = open_task(preset)
    assert set(task.sizes()) == {"train", "validation", "test"}
