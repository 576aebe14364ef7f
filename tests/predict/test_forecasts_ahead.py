"""Forecasts beyond the horizon: later blocks are their definition, the same in any batches, and as wide as they should
be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from statewise.errors import InputError
from statewise.mixers.s4d import S4DConfig
from statewise.models.forecaster import Forecaster, ForecasterConfig
from statewise.predict import Predictor
from statewise.predict.ahead import LEVELS, at_level, pooled


def walk(n: int = 1, length: int = 40, d: int = 1) -> np.ndarray:
    return np.random.default_rng(3).normal(size=(n, length, d)).cumsum(1)


def network(**options: Any) -> Forecaster:
    torch.manual_seed(0)
    fields = {"horizon": 3, "d_model": 8, "layers": (S4DConfig(d_state=4),), "quantiles": (0.1, 0.5, 0.9), **options}
    model = ForecasterConfig(**fields).build().double().eval()  # type: ignore[arg-type]
    with torch.no_grad():
        model.head.weight.mul_(10)
    return model


def test_later_blocks_are_their_definition() -> None:
    """One path after the other, the model called for each, the quantiles those of all values together."""
    model, y, n_paths, quantiles = network(d_target=2), walk(2, 30, 2), 5, (0.1, 0.5, 0.9)
    answers = Predictor(model).forecast(y, 8, paths=n_paths, seed=7)
    normal = torch.distributions.Normal(0.0, 1.0)
    scores = [float(normal.icdf(torch.tensor((i + 0.5) / n_paths, dtype=torch.float64))) for i in range(n_paths)]
    levels = [float(normal.icdf(torch.tensor((i + 0.5) / LEVELS, dtype=torch.float64))) for i in range(LEVELS)]
    knot = float(normal.icdf(torch.tensor(0.9, dtype=torch.float64)))

    def value(three: np.ndarray, z: float) -> float:
        low, middle, high = three
        return float(middle + z / knot * ((high - middle) if z > 0 else (middle - low)))

    def call(history: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            found: np.ndarray = model(torch.from_numpy(history)[None])[0][0].numpy()
        return found

    for number, series in enumerate(y):
        generator = np.random.default_rng([7, number])
        ways, blocks = [series] * n_paths, [call(series)] * n_paths
        np.testing.assert_allclose(answers.values[number, :3], blocks[0], rtol=1e-6)
        for begin, end in ((3, 6), (6, 8)):
            drawn = generator.permuted(np.tile(np.array(scores)[:, None], 2), axis=0)
            for i, block in enumerate(blocks):
                rows = [[value(block[t, d], drawn[i, d]) for d in range(2)] for t in range(3)]
                ways[i] = np.concatenate([ways[i], rows])[-len(series) :]
            blocks = [call(way) for way in ways]
            for t in range(end - begin):
                for d in range(2):
                    together = [value(block[t, d], z) for block in blocks for z in levels]
                    np.testing.assert_allclose(
                        answers.values[number, begin + t, d], np.quantile(together, quantiles), rtol=1e-6, atol=1e-9
                    )


def test_the_forecast_is_the_same_in_any_batches_and_from_any_run_of_the_seed() -> None:
    predictor, y = Predictor(network()), walk(5)
    whole = predictor.forecast(y, 10)
    # products of another number of rows may be rounded otherwise
    np.testing.assert_allclose(predictor.forecast(y, 10, batch_size=2).values, whole.values, rtol=1e-10)
    assert np.array_equal(whole.values, predictor.forecast(y, 10).values)
    assert not np.array_equal(whole.values, predictor.forecast(y, 10, seed=1).values)
    assert np.array_equal(whole.values[:, :3], predictor.forecast(y, 3).values), "the horizon itself is the model's"
    assert bool((np.diff(whole.values, axis=-1) >= 0).all())


def test_one_forecast_without_an_interval_is_fed_back_as_it_is() -> None:
    for quantiles in (None, (0.5,)):
        model, y = network(quantiles=quantiles), walk()
        answers = Predictor(model).forecast(y, 7)
        history = torch.from_numpy(y)
        with torch.no_grad():
            for begin in (0, 3, 6):
                block = model(history)[0][..., 0]
                n = min(3, 7 - begin)
                np.testing.assert_allclose(answers.values[0, begin : begin + n, :, 0], block[0, :n], rtol=1e-6)
                history = torch.cat([history, block], 1)[:, -40:]
        assert answers.interval is None
        assert list(answers.columns()) == ["series", "time", "value"]


def test_a_random_walk_spreads_as_a_random_walk() -> None:
    """A model that says of each block what is true of a walk: the later blocks are as wide as they should be."""
    horizon, knot, quantiles = 4, 1.2815515655446004, (0.1, 0.5, 0.9)

    class Walk(Forecaster):
        def forward(self, history: Any, *_: Any, **__: Any) -> Any:
            spread = torch.arange(1, horizon + 1, dtype=history.dtype).sqrt() * knot
            steps = torch.stack([-spread, torch.zeros(horizon), spread], -1)[:, None]
            return history[:, -1, :, None][:, None] + steps, None

    model = Walk(network(horizon=horizon).config).double()
    found = Predictor(model).forecast(walk(), 16, paths=400).values[0, :, 0]
    widths = (found[:, 2] - found[:, 0]) / (2 * knot)
    assert np.allclose(widths, np.sqrt(np.arange(1, 17)), rtol=0.04)
    assert np.allclose(found[:, 1], walk()[0, -1, 0], atol=0.3)
    assert np.allclose(at_level(found, quantiles, np.array(0.0)), found[:, 1])
    assert np.allclose(pooled(np.repeat(found[None, :, None], 3, 0), quantiles)[:, 0], found, rtol=0.05, atol=0.3)


def test_thousands_of_series_with_progress() -> None:
    seen: list[tuple[int, int]] = []
    answers = Predictor(network()).forecast(
        walk(1500, 10), batch_size=400, progress=lambda done, total: seen.append((done, total))
    )
    assert answers.values.shape == (1500, 3, 1, 3)
    assert seen == [(400, 1500), (800, 1500), (1200, 1500), (1500, 1500)]
    assert answers.row.tolist()[:4] == [0, 0, 0, 1]


def test_a_forecast_that_is_not_finite_is_refused() -> None:
    model = network()
    with torch.no_grad():
        model.head.bias.fill_(torch.nan)
    with pytest.raises(InputError, match="the forecast of series '0' is not finite"):
        Predictor(model).forecast(walk())
