"""Structural time series: the components, their likelihood and what is told of a series."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from test_estimation import close, refused
from torch import Tensor

from statewise.estimation.structural import (
    Autoregression,
    Cycle,
    Irregular,
    Level,
    Regression,
    Seasonal,
    Structural,
    Trend,
    fit,
)
from statewise.estimation.structural.components import Component
from statewise.estimation.structural.parameters import Parameter, partial_correlations, stationary

D = torch.float64


def series(batch: int = 1, length: int = 96, *, missing: bool = True, seed: int = 0) -> Tensor:
    """A level that walks, a season of 4 and noise."""
    g = torch.Generator().manual_seed(seed)
    walk = 0.4 * torch.randn(batch, length, dtype=D, generator=g).cumsum(1)
    season = torch.tensor([1.0, -2.0, 0.5, 0.5], dtype=D).repeat(length // 4 + 1)[:length]
    y = 20 + walk + season + torch.randn(batch, length, dtype=D, generator=g)
    if missing:
        y[:, [i for i in (7, 50, 51) if i < length]] = torch.nan
    return y.unsqueeze(-1)


def parameters(model: Structural, batch: int = 1, seed: int = 0) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(seed)
    free = torch.randn(batch, model.n_parameters, dtype=D, generator=g) - 0.5
    found = model.natural(free, torch.ones(batch, dtype=D))
    return {name: 0.9 + 0 * value if name.endswith("damping") else value for name, value in found.items()}


COVARIATES = torch.randn(1, 110, 2, dtype=D, generator=torch.Generator().manual_seed(5))

# ours, and statsmodels' of the same
SAME: dict[str, tuple[Structural, dict[str, Any]]] = {
    "local level": (Level() + Irregular(), {"level": "llevel"}),
    "local linear trend": (Trend() + Irregular(), {"level": "lltrend"}),
    "smooth trend": (Trend(smooth=True) + Irregular(), {"level": "strend"}),
    "fixed slope": (Trend(stochastic=False) + Irregular(), {"level": "dtrend"}),
    "dummy season": (Level() + Seasonal(period=4) + Irregular(), {"level": "llevel", "seasonal": 4}),
    "fixed season": (
        Level() + Seasonal(period=4, stochastic=False) + Irregular(),
        {"level": "llevel", "seasonal": 4, "stochastic_seasonal": False},
    ),
    "two seasons of waves": (
        Trend() + Seasonal(period=12, harmonics=3) + Seasonal(period=7.3, harmonics=1) + Irregular(),
        {"level": "lltrend", "freq_seasonal": [{"period": 12, "harmonics": 3}, {"period": 7.3, "harmonics": 1}]},
    ),
    "cycle": (
        Level() + Cycle(periods=(2.0, 60.0)) + Irregular(),
        {"level": "llevel", "cycle": True, "stochastic_cycle": True, "damped_cycle": True},
    ),
    "cycle that stays": (
        Level() + Cycle(periods=(2.0, 60.0), damped=False, stochastic=False) + Irregular(),
        {"level": "llevel", "cycle": True},
    ),
    "autoregression": (Level(stochastic=False) + Autoregression(order=3), {"level": True, "autoregressive": 3}),
    "regression": (Level() + Regression(d_covariates=2) + Irregular(), {"level": "llevel", "exog": 2}),
}
# our names in the order of theirs
ORDER = (
    "irregular",
    "level",
    "trend.level",
    "trend.slope",
    "seasonal",
    "cycle.v",
    "autoregression.v",
    "cycle.p",
    "cycle.d",
)


def theirs(name: str, y: Tensor) -> Any:
    structural = pytest.importorskip("statsmodels.tsa.statespace.structural", reason="statsmodels is not installed")
    options = dict(SAME[name][1])
    if "exog" in options:
        options |= {"exog": COVARIATES[0, : y.shape[1]].numpy(), "mle_regression": False}
    if "cycle" in options:
        options |= {"cycle_period_bounds": (2.0, 60.0)}
    return structural.UnobservedComponents(y[0, :, 0].numpy(), use_exact_diffuse=True, **options)


def as_theirs(model: Structural, found: dict[str, Tensor]) -> list[float]:
    keys = [key for start in ORDER for key in found if key.startswith(start)]
    values = [float(found[key]) if "period" not in key else 2 * math.pi / float(found[key]) for key in keys]
    rest = [float(a) for key in found if key.endswith("coefficients") for a in found[key][0]]
    assert len(values) + len(rest) == model.n_parameters
    return values + rest


@pytest.mark.parametrize("name", SAME)
def test_statsmodels_says_the_same(name: str) -> None:
    model, y = SAME[name][0], series()
    p, other = parameters(model), theirs(name, y)
    result = other.smooth(as_theirs(model, p))
    has = model.d_covariates > 0
    covariates, all_of_them = (COVARIATES[:, :96], COVARIATES[:, :108]) if has else (None, None)
    assert float(model.log_likelihood(p, y, covariates=covariates)) == pytest.approx(result.llf, abs=1e-8)
    smoothed = model.linear_gaussian(p, y, covariates=covariates).smooth(y)
    close([smoothed.mean[0]], [torch.tensor(result.smoothed_state.T.copy())], 1e-6)
    # of two seasons theirs are 3e-6 beside a filter of 120 digits on one processor, and ours 3e-9
    close([smoothed.covariance[0]], [torch.tensor(result.smoothed_state_cov.transpose(2, 0, 1).copy())], 1e-5)
    forecast = model.forecast(p, y, 12, covariates=all_of_them).observations
    told = result.get_forecast(12, **({"exog": COVARIATES[0, 96:108].numpy()} if has else {}))
    close([forecast.mean[0, :, 0]], [torch.tensor(told.predicted_mean)], 1e-7)
    interval = torch.cat(forecast.interval(0.9), -1)[0]
    close([interval], [torch.tensor(told.conf_int(alpha=0.1))], 1e-7)


@pytest.mark.parametrize("name", ["local level", "dummy season", "cycle", "autoregression"])
def test_a_fit_is_at_least_as_likely_as_theirs(name: str) -> None:
    model, y = SAME[name][0], series(length=72)
    found = fit(model, y)
    result = theirs(name, y).fit(disp=0, maxiter=500)
    assert bool(found.converged)
    assert float(found.log_likelihood) > result.llf - 1e-5
    assert float(found.aic) < result.aic + 1e-4


@pytest.mark.parametrize("name", SAME)
def test_the_log_likelihood_has_the_gradients_of_finite_differences(name: str) -> None:
    model, y = SAME[name][0], series(length=40, missing=False)
    y[0, :3] = torch.nan
    data = model.series(y, COVARIATES[:, :40] if model.d_covariates else None)
    free = torch.randn(1, model.n_parameters, dtype=D, generator=torch.Generator().manual_seed(1)) - 1
    one = torch.ones(1, dtype=D)
    leaf = free.clone().requires_grad_()
    (got,) = torch.autograd.grad(model.score(model.natural(leaf, one), data).sum(), leaf)
    # a wave of any phase whose prior is 1e10 wide: the adjoint of square roots keeps three digits of its frequency's
    rel = 3e-3 if name == "cycle that stays" else 1e-4
    for i in range(model.n_parameters):
        step = torch.zeros_like(free)
        step[0, i] = 1e-4
        up, down = (model.score(model.natural(free + s, one), data) for s in (step, -step))
        assert float((up - down) / 2e-4) == pytest.approx(float(got[0, i]), rel=rel, abs=1e-4)


def test_many_series_are_fitted_as_each_by_itself() -> None:
    model = Level() + Irregular()
    y = torch.cat([series(2, 40), 1e4 * series(1, 40, seed=1)])
    y[1, :10] = torch.nan  # a series that began later
    together = fit(model, y, n_starts=1)
    assert bool(together.converged.all())
    for row in range(3):
        own = y[row : row + 1, 10:] if row == 1 else y[row : row + 1]
        alone = fit(model, own, n_starts=1)
        assert float(alone.log_likelihood) == pytest.approx(float(together.log_likelihood[row]), abs=1e-4)
        later, mine = together.forecast(5).observations, alone.forecast(5).observations
        assert float((later.mean[row] - mine.mean[0]).abs().max()) < 1e-2 * float(mine.variance.sqrt().max())


def test_the_unit_of_a_series_does_not_matter() -> None:
    model, y = Level() + Irregular(), series(length=60)
    one, many = fit(model, y, n_starts=1), fit(model, 1e6 * y, n_starts=1)
    shift = (57 - 1) * math.log(1e6)  # one of the known numbers says where the level is
    assert float(many.log_likelihood) + shift == pytest.approx(float(one.log_likelihood), abs=1e-5)


def test_components_add_up_and_forecasts_are_the_mean_of_paths() -> None:
    y = series()
    model = Trend() + Seasonal(period=4) + Regression(d_covariates=2) + Irregular()
    found = fit(model, y, covariates=COVARIATES[:, :96], n_starts=1, n_iterations=5)
    parts = found.decompose()
    assert set(parts) == {"trend", "slope", "seasonal", "regression", "coefficients", "irregular"}
    total = sum(parts[name].mean for name in ("trend", "seasonal", "regression", "irregular"))
    seen = ~y.isnan()
    assert isinstance(total, Tensor)
    close([total[seen]], [y[seen]], 1e-8)
    assert float(parts["irregular"].mean[~seen].abs().max()) == 0
    assert parts["coefficients"].mean.shape == (1, 96, 2)
    low, high = parts["seasonal"].interval(0.9)
    assert bool((low < parts["seasonal"].mean).all())
    assert bool((parts["seasonal"].mean < high).all())
    ahead = COVARIATES[:, 96:104]
    forecast = found.forecast(8, covariates=ahead).observations
    paths = found.simulate(8, 4000, covariates=ahead, generator=torch.Generator().manual_seed(0))
    assert paths.shape == (4000, 1, 8, 1)
    error = (paths.mean(0) - forecast.mean).abs() / forecast.variance.sqrt()
    assert float(error.max()) < 4 / math.sqrt(4000)
    assert float((paths.var(0) / forecast.variance - 1).abs().max()) < 0.15


def test_a_series_that_began_later_has_the_likelihood_of_its_own_steps() -> None:
    model, y = Trend(damped=True) + Cycle(periods=(3.0, 30.0)) + Irregular(), series(missing=False)
    p, late = parameters(model), y.clone()
    late[:, :20] = torch.nan
    assert float(model.log_likelihood(p, late)) == pytest.approx(float(model.log_likelihood(p, y[:, 20:])), abs=1e-6)


def test_standard_errors_are_those_of_the_information() -> None:
    """Of the variance of noise alone, r sqrt(2 / n); and NaN where a variance is best at 0."""
    y = 3 * torch.randn(2, 400, 1, dtype=D, generator=torch.Generator().manual_seed(0))
    found = fit(Level(stochastic=False) + Irregular(), y)
    r = found.parameters["irregular.variance"]
    close([r], [y.var(1)[:, 0]], 1e-3)
    close([found.standard_errors()["irregular.variance"] / r], [torch.full((2,), math.sqrt(2 / 399), dtype=D)], 1e-3)


def test_any_free_numbers_make_a_model() -> None:
    g = torch.Generator().manual_seed(0)
    everything = (
        Trend(damped=True) + Seasonal(period=4) + Cycle(periods=(3.0, 40.0)) + Autoregression(order=4) + Irregular()
    )
    one = torch.ones(50, dtype=D)
    for size in (1.0, 10.0, 1000.0):
        p = everything.natural(size * torch.randn(50, everything.n_parameters, dtype=D, generator=g), one)
        assert set(p) == set(everything.parameters)
        for name, value in p.items():
            assert bool(value.isfinite().all()), name
            assert bool((value > 0).all()) or name.endswith("coefficients")
        assert bool((p["trend.damping"] < 1).all())
        assert bool(((p["cycle.period"] > 2.999) & (p["cycle.period"] < 40.001)).all())
    free = torch.randn(50, everything.n_parameters, dtype=D, generator=g)
    close([everything.free(everything.natural(free, 3 * one), 3 * one)], [free], 1e-8)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_autoregressions_are_stationary(order: int) -> None:
    partial = torch.rand(20, order, dtype=D, generator=torch.Generator().manual_seed(order)) * 1.98 - 0.99
    a = stationary(partial)
    close([partial_correlations(a)], [partial], 1e-8)
    for row in a.numpy():
        assert np.abs(np.roots([1.0, *-row])).max() < 1


def test_the_last_wave_of_an_even_period_has_one_state() -> None:
    full = Seasonal(period=6, harmonics=3)
    assert full.n_states == Seasonal(period=6).n_states == 5
    model, y = Level() + full + Irregular(), series()
    pattern = model.decompose(parameters(model), y)["seasonal"].mean
    assert pattern.shape == (1, 96, 1)
    block = full.block({"variance": torch.ones(1, dtype=D)}, y)
    close([torch.linalg.matrix_power(block.A[0], 6)], [torch.eye(5, dtype=D)], 1e-12)


def test_a_sum_is_read_in_its_order() -> None:
    model = Level() + (Seasonal(period=7) + Seasonal(period=12, harmonics=2)) + Irregular()
    assert list(model.named) == ["level", "seasonal", "seasonal_2", "irregular"]
    assert model.n_states == model.n_diffuse == 1 + 6 + 4
    assert list(model.parameters) == [
        "level.variance",
        "seasonal.variance",
        "seasonal_2.variance",
        "irregular.variance",
    ]
    assert Parameter("variance").wrong(torch.tensor([-1.0])) is not None


def test_wrong_sums() -> None:
    refused(lambda: Level() + Trend(), "a series has one level")
    refused(lambda: Irregular() + Irregular(), "two components Irregular")
    refused(lambda: fit(Level(stochastic=False), series()), "nothing in this model is random")
    refused(lambda: Structural(("level",)), "sum of components, got str")  # type: ignore[arg-type]
    refused(lambda: Level() + 3, r"sum of components, such as Level\(\) \+ Irregular\(\); got int")
    refused(lambda: 1 + Level(), "sum of components")
    refused(lambda: "level" + (Level() + Irregular()), "sum of components.*got str")
    assert sum([Level(), Seasonal(period=4), Irregular()]) == Level() + Seasonal(period=4) + Irregular()
    for make, words in (
        (lambda: Seasonal(period=1), "at least 2"),
        (lambda: Seasonal(period=52.2), "without harmonics needs a whole number"),
        (lambda: Seasonal(period=6, harmonics=4), "at most 3"),
        (lambda: Cycle(periods=(9.0, 3.0)), "2 <= low < high"),
        (lambda: Autoregression(order=0), "at least 1"),
        (lambda: Trend(smooth=True, stochastic=False), "leave out one"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


def test_wrong_data() -> None:
    model, y = Level() + Seasonal(period=4) + Irregular(), series()
    p = parameters(model)
    refused(lambda: fit(model, y[0]), r"needs y \(batch, length, 1\)")
    refused(lambda: fit(model, y.expand(1, 96, 2)), r"needs y \(batch, length, 1\)")
    refused(lambda: fit(model, y.long()), "float32 or float64")
    refused(lambda: fit(model, y.numpy()), "got ndarray")
    refused(lambda: fit(model, y * torch.inf), "holds infinity")
    refused(lambda: fit(model, y[:, :4]), "series 0 has 4 known numbers, and the model 4 states")
    refused(lambda: fit(model, y * torch.nan), "series 0 has 0 known numbers")
    refused(lambda: fit(model, y, covariates=COVARIATES), "has no Regression")
    refused(lambda: fit("level", y), "sum of components, such as Level")  # type: ignore[arg-type]
    refused(lambda: fit(model, y, n_starts=0), "n_starts must be")
    refused(lambda: fit(model, y, tolerance=2), "tolerance must lie")
    refused(lambda: model.log_likelihood({}, y), "needs the parameters level.variance, .*; got none")
    refused(lambda: model.log_likelihood({**p, "level.variance": torch.tensor(-1.0)}, y), "variance of at least 0")
    refused(lambda: model.log_likelihood({**p, "level.variance": torch.ones(3)}, y), "must have shape")
    refused(lambda: model.log_likelihood({**p, "level.variance": torch.tensor(torch.nan)}, y), "must be finite")
    refused(lambda: model.forecast(p, y, 0), "length of at least 1")
    refused(lambda: model.simulate(p, y, 3, 0), "n_paths")
    for other, name, value in (
        (Trend(damped=True) + Irregular(), "trend.damping", torch.tensor(1.5)),
        (Level() + Cycle(periods=(3.0, 9.0)), "cycle.period", torch.tensor(12.0)),
        (Level() + Autoregression(order=2), "autoregression.coefficients", torch.tensor([1.5, 0.2])),
    ):
        words = {"damping": "between 0 and 1", "period": "between 3 and 9", "coefficients": "stationary"}
        refused(lambda: other.log_likelihood({**parameters(other), name: value}, y), words[name.split(".")[1]])  # noqa: B023
    with_covariates = Level() + Regression(d_covariates=2) + Irregular()
    refused(lambda: fit(with_covariates, y), r"give covariates \(batch or 1, 96, 2\)")
    refused(lambda: fit(with_covariates, y, covariates=COVARIATES), r"needs covariates \(1 or 1, 96, 2\)")
    refused(lambda: fit(with_covariates, y, covariates=COVARIATES[:, :96] * torch.nan), "covariates hold NaN")
    found = fit(with_covariates, y, covariates=COVARIATES[:, :96], n_iterations=2, n_starts=1)
    refused(lambda: found.forecast(3), r"steps to come \(1, 3, 2\)")
    exact = Structural((Trend(smooth=True),))
    refused(lambda: exact.decompose(parameters(exact), y), r"needs noise in each step of y.*add Irregular\(\)")
    assert issubclass(Level, Component)
