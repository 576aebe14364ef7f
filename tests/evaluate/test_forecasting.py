"""Scores of forecasts against numbers worked out by hand, the baselines, no leakage, and that a model beats them."""

from __future__ import annotations

import importlib.util
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from training_runs import train_config, with_train

from statewise.data.series import SeriesData, SeriesDataConfig, SeriesSplit, open_series
from statewise.data.series_batches import SeriesBatches, collate
from statewise.data.series_windows import Origin
from statewise.errors import ConfigError, InputError
from statewise.evaluate.forecast_plots import plot_forecasts
from statewise.evaluate.forecasting import (
    BASELINES,
    _some,
    evaluate_forecasts,
    forecast,
    last_value,
    score_forecasts,
    seasonal_naive,
    seasonal_naive_with_drift,
)
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.forecaster import Forecaster, ForecasterConfig
from statewise.training import RunConfig, train_run
from statewise.training.presets import PRESETS, fit_model
from statewise.training.tasks import open_task
from statewise.training.tasks.forecasting import ForecastingTask

NAN = math.nan
MAMBA = Mamba2Config(d_state=8, d_head=8, chunk_length=16)


def opened(folder: Path, values: list[float], **options: Any) -> SeriesData:
    path = folder / "data.csv"
    rows = (f"{i},{'' if math.isnan(v) else v}" for i, v in enumerate(values))
    path.write_text("\n".join(["t,y", *rows]) + "\n", "utf-8")
    options = {"horizon": 3, "history": 6, "season": 2, **options}
    return open_series(SeriesDataConfig(source=str(path), **options))


def forecaster(**options: Any) -> Forecaster:
    torch.manual_seed(0)
    return ForecasterConfig(**{"horizon": 3, "d_model": 8, "layers": (MAMBA,), **options}).build()


def loss_of(model: Forecaster, split: SeriesSplit) -> float:
    """The training loss over every other window, each value counted once."""
    model.eval()
    batch = collate(split, split.origins[::2])
    with torch.no_grad():
        loss, _ = model.loss(batch.history, batch.targets, lengths=batch.lengths)
    return float(loss)


def test_scores_by_hand() -> None:
    forecasts = np.array([[[1.0], [2.0]], [[3.0], [3.0]]])
    targets = np.array([[[2.0], [NAN]], [[0.0], [5.0]]])
    scores = score_forecasts(forecasts, targets, np.array([[[2.0]], [[4.0]]]))
    assert scores.mae == pytest.approx((1 + 3 + 2) / 3)
    assert scores.mse == pytest.approx((1 + 9 + 4) / 3)
    assert scores.mase == pytest.approx((1 / 2 + 3 / 4 + 2 / 4) / 3)
    assert score_forecasts(forecasts, targets, np.full((2, 1, 1), NAN)).mase is None


def test_naive_error_of_training_by_hand(tmp_path: Path) -> None:
    values = [0.0, 1, 3, 1, NAN, 4, 7, 2, *range(12)]  # training is its first 14 of 20
    data = opened(tmp_path, values, validation_fraction=0.0, test_fraction=0.3)
    assert data.span("train") == (0, 14)
    changes = [3, 0, 3, 2, abs(0 - 7), abs(1 - 2), 2, 2, 2, 2]  # over two steps, none where a value is missing
    assert data.naive_errors.item() == pytest.approx(np.mean(changes))
    assert np.isnan(opened(tmp_path, [5.0] * 80).naive_errors).all()


def test_baselines_by_hand(tmp_path: Path) -> None:
    data = opened(tmp_path, [0.0, 10, 2, 12, 4, 14, 7, NAN, NAN, NAN, *range(30)])
    at = lambda row: Origin(0, row)  # noqa: E731
    assert last_value(data, at(6)).ravel().tolist() == [14, 14, 14]
    assert seasonal_naive(data, at(6)).ravel().tolist() == [4, 14, 4]
    assert seasonal_naive(data, at(7)).ravel().tolist() == [14, 7, 14]
    assert seasonal_naive(data, at(9)).ravel().tolist() == [14, 7, 14]  # missing ones are those of the season before
    assert seasonal_naive_with_drift(data, at(6)).ravel().tolist() == [6, 16, 8]
    assert seasonal_naive_with_drift(data, at(7)).ravel().tolist() == [16.2, 9.2, 18.4]  # (2 + 2 + 2 + 2 + 3) / 5
    assert seasonal_naive(data, at(1)).ravel().tolist() == [0, 0, 0]  # the first season is not over
    assert set(BASELINES) == {"seasonal naive", "seasonal naive with drift", "last value"}


def test_seasonal_naive_with_drift_is_exact_on_trend_and_season(tmp_path: Path) -> None:
    values = [0.5 * t + [0, 3, -1, 7][t % 4] for t in range(80)]
    data = opened(tmp_path, values, season=4, horizon=11, history=8, validation_fraction=0.0)
    origin = data.split("test").origins[0]
    expected = data.split("test").window(origin).targets
    assert np.allclose(seasonal_naive_with_drift(data, origin), expected)
    assert np.allclose(expected - seasonal_naive(data, origin), 2.0 * (1 + np.arange(11) // 4)[:, None])


def test_evaluation_is_the_scores_of_all_windows(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=80).cumsum()
    values[[61, 70, 71]] = NAN
    data = opened(tmp_path, values.tolist())
    model, split = forecaster(quantiles=(0.1, 0.5, 0.9)), data.split("test")
    e = evaluate_forecasts(model, split, stride=2, batch_size=3)
    assert e.n_windows == 7
    assert len(split.origins) == 14
    errors, squares, losses, inside, naive = [], [], [], [], []
    assert e.loss == pytest.approx(loss_of(model, split), rel=1e-5)
    model.eval()
    for origin in split.origins[::2]:
        window = split.window(origin)
        with torch.no_grad():
            (found,) = model(torch.from_numpy(window.history)[None].float())[0]
        for k, value in enumerate(window.targets[:, 0]):
            if not math.isnan(value):
                low, middle, high = found[k, 0].tolist()
                errors.append(abs(value - middle))
                squares.append((value - middle) ** 2)
                inside.append(low <= value <= high)
                naive.append(abs(value - seasonal_naive(data, origin)[k, 0]))
                losses += [
                    max(q * (value - f), (q - 1) * (value - f)) for q, f in ((0.1, low), (0.5, middle), (0.9, high))
                ]
    assert e.n_values == len(errors)
    assert e.model.mae == pytest.approx(np.mean(errors), rel=1e-5)
    assert e.model.mse == pytest.approx(np.mean(squares), rel=1e-5)
    assert e.model.mase == pytest.approx(np.mean(errors) / data.naive_errors.item(), rel=1e-5)
    assert e.pinball == pytest.approx(np.mean(losses), rel=1e-5)
    assert e.coverage == pytest.approx(np.mean(inside))
    assert e.nominal == pytest.approx(0.8)
    assert e.baselines["seasonal naive"].mae == pytest.approx(np.mean(naive))
    assert e.skill == pytest.approx(1 - np.mean(errors) / np.mean(naive), rel=1e-4)
    assert evaluate_forecasts(model, split, max_windows=2).n_windows == 2
    mean = evaluate_forecasts(forecaster(quantiles=None), split)
    assert (mean.pinball, mean.coverage, mean.nominal) == (None, None, None)


def test_no_forecast_knows_what_comes_after_it(tmp_path: Path) -> None:
    values = np.random.default_rng(1).normal(size=80).cumsum().tolist()
    one, two = opened(tmp_path, values), opened(tmp_path, [*values[:70], *[1e6] * 10])
    model = forecaster()
    origins = [origin for origin in one.split("test").origins if origin.row <= 70]
    assert origins
    assert np.array_equal(forecast(model, one.split("test"), origins), forecast(model, two.split("test"), origins))
    for rule in BASELINES.values():
        for origin in origins:
            assert np.array_equal(rule(one, origin), rule(two, origin))


def test_two_targets_and_two_series_each_have_their_own_scale(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    lines = ["t,name,y,z"]
    for name, size in (("a", 1.0), ("b", 1000.0)):
        walk = rng.normal(size=(60, 2)).cumsum(0) * size
        lines += [f"{t},{name},{y},{10 * z}" for t, (y, z) in enumerate(walk)]
    (tmp_path / "many.csv").write_text("\n".join(lines) + "\n")
    config = SeriesDataConfig(source=str(tmp_path / "many.csv"), series="name", season=2, horizon=3, history=6)
    data = open_series(config)
    assert data.naive_errors.shape == (2, 2)
    e = evaluate_forecasts(forecaster(d_target=2), data.split("test"))
    assert e.model.mase is not None
    assert 0.1 < e.model.mase < 10
    assert e.n_values == 2 * 2 * 3 * 10
    few = evaluate_forecasts(forecaster(d_target=2), data.split("test"), max_windows=8)  # of 20, series by series
    with_one = np.array([origin.series for origin in _some(data.split("test").every(1), 8)])
    assert few.n_windows == 8
    assert 2 <= with_one.sum() <= 6


@pytest.mark.skipif(importlib.util.find_spec("statsmodels") is None, reason="no statsmodels here")
def test_co2_is_forecast_better_than_seasonal_naive() -> None:
    data = open_series(SeriesDataConfig(calendar=("year",), horizon=26, history=104))
    model = forecaster(horizon=26, d_model=16, d_covariates=2, quantiles=(0.1, 0.5, 0.9), scaling_steps=52)
    batches = SeriesBatches(data.split("train"), 16, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(40):
        batch = batches[step]
        loss, _ = model.loss(
            batch.history, batch.targets, covariates=batch.covariates, future_covariates=batch.future_covariates
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    e = evaluate_forecasts(model, data.split("test"), stride=13)
    assert e.skill is not None
    assert e.skill > 0.4
    assert e.model.mae < e.baselines["last value"].mae


def test_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    data = opened(tmp_path, np.random.default_rng(3).normal(size=80).tolist())
    plot_forecasts(forecaster(quantiles=(0.1, 0.5, 0.9)), data.split("test"), tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 10_000
    with pytest.raises(InputError, match="no window of it is in"):
        plot_forecasts(forecaster(), data.split("test"), tmp_path / "plot.png", series=1)


def test_refusals(tmp_path: Path) -> None:
    split = opened(tmp_path, np.arange(80.0).tolist()).split("test")
    with pytest.raises(InputError, match="the model has horizon=4, but the data need horizon=3"):
        evaluate_forecasts(forecaster(horizon=4), split)
    with pytest.raises(InputError, match="d_covariates=1"):
        evaluate_forecasts(forecaster(d_covariates=1), split)
    for option in ("stride", "max_windows", "batch_size"):
        with pytest.raises(InputError, match=f"{option}=0"):
            evaluate_forecasts(forecaster(), split, **{option: 0})
    model = forecaster()
    with torch.no_grad():
        model.head.bias.fill_(NAN)
    with pytest.raises(InputError, match="not finite"):
        evaluate_forecasts(model, split)


# ---- as a task


def small_run(folder: Path, **options: Any) -> RunConfig:
    values = np.random.default_rng(4).normal(size=90).cumsum()
    data = opened(folder, [NAN if i in (20, 70) else v for i, v in enumerate(values)]).config
    model = ForecasterConfig(
        **{"horizon": 3, "d_model": 8, "layers": (MAMBA,), "quantiles": (0.1, 0.5, 0.9), **options}
    )
    train = train_config(steps=6, batch_size=4, evaluate_every=3, save_every=3, save_minutes=None)
    return RunConfig(model=model, data=data, train=train)


def test_a_run_is_trained_resumed_evaluated_and_drawn(tmp_path: Path) -> None:
    run = small_run(tmp_path)
    part = with_train(run, steps=3, kind="wsd", warmup=0.0, decay=0.0)
    train_run(part, tmp_path / "parts")
    longer = with_train(part, steps=6)
    resumed = train_run(longer, tmp_path / "parts", resume=True)
    at_once = train_run(longer, tmp_path / "once")
    assert resumed.step == at_once.step == 6
    assert resumed.metric == "loss"
    assert resumed.validation == at_once.validation
    assert resumed.validation is not None

    task = open_task(run)
    assert isinstance(task, ForecastingTask)
    model = run.model.build()
    assert task.sizes() == {"train": 55, "validation": 7, "test": 16}
    record = task.evaluate(model, "test", stride=5)
    assert record["windows"] == 4
    assert record[task.metric] > 0
    assert json.loads(json.dumps(record)) == record
    (table,) = task.tables({**record, "checkpoint": "x", "split": "test"})
    assert [row[0] for row in table.rows] == ["model", *BASELINES]
    assert [len(row) for row in table.rows] == [4] * 4
    assert len(table.notes) == 3
    assert task.evaluate(model, "test", max_items=2)["windows"] == 2
    pytest.importorskip("matplotlib")
    task.plot(tmp_path / "plot.svg", model=model, split="validation", record=record)
    assert (tmp_path / "plot.svg").exists()


def test_a_mean_of_a_constant_series_has_a_record_too(tmp_path: Path) -> None:
    run = small_run(tmp_path, quantiles=None)
    data = opened(tmp_path, [5.0] * 90).config
    record = open_task(replace(run, data=data)).evaluate(run.model.build(), "test")
    assert not {"mase", "pinball", "coverage", "skill"} & set(record)
    (table,) = open_task(replace(run, data=data)).tables(record)
    assert table.rows[1] == ("seasonal naive", "0", "0", "-")


def test_a_model_that_does_not_fit_the_series_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model\.horizon=4, but the series need horizon=3; set model\.horizon=3"):
        open_task(small_run(tmp_path, horizon=4))


@pytest.mark.skipif(importlib.util.find_spec("statsmodels") is None, reason="no statsmodels here")
@pytest.mark.parametrize("name", ["co2", "sunspots"])
def test_presets_fit_their_data(name: str) -> None:
    run = PRESETS[name]()
    task = open_task(run)
    assert fit_model(run) == run
    assert set(task.sizes()) == {"train", "validation", "test"}
    loss, _ = task.loss(run.model.build(), task.batches[0], None)
    assert loss.isfinite()
