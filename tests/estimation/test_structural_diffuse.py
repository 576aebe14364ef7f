"""States of which nothing is known before: the diffuse likelihood beside other ways to it, what data leave open, and
series far from zero."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from test_estimation import close
from test_structural import COVARIATES, D, parameters, series
from torch import Tensor

from statewise.estimation.structural import Cycle, Irregular, Level, Regression, Seasonal, Structural, Trend, fit


def test_the_diffuse_likelihood_of_a_local_level_is_that_of_its_changes() -> None:
    """A diffuse level takes one number: what is left is the joint normal distribution of the differences."""
    model, y = Level() + Irregular(), series(missing=False, length=30)
    p = {"level.variance": torch.tensor(0.3, dtype=D), "irregular.variance": torch.tensor(0.9, dtype=D)}
    changes = y[0, 1:, 0] - y[0, :-1, 0]
    n = len(changes)
    S = (0.3 + 1.8) * torch.eye(n, dtype=D) - 0.9 * (
        torch.ones(n - 1, dtype=D).diag(1) + torch.ones(n - 1, dtype=D).diag(-1)
    )
    want = torch.distributions.MultivariateNormal(torch.zeros(n, dtype=D), S).log_prob(changes)
    want = want - math.log(2 * math.pi) / 2
    close([model.log_likelihood(p, y)[0]], [want], 1e-8)


def test_waves_much_longer_than_a_step_are_told_exactly() -> None:
    """Beside the joint normal distribution of everything, with the first states as unknown coefficients."""
    model, length, ahead = Trend(smooth=True) + Seasonal(period=365.25 / 7, harmonics=2) + Irregular(), 200, 30
    p = {"trend.slope_variance": 3e-6, "seasonal.variance": 2e-5, "irregular.variance": 0.1}
    given = {name: torch.tensor(value, dtype=D) for name, value in p.items()}
    y = 320 + 0.1 * series(length=length)
    system = model.linear_gaussian(given, y)
    A, Q, c = system.A[0, 0], system.Q[0, 0], system.C[0, 0, 0]
    rows, S = [c], [torch.zeros_like(A)]
    for _ in range(length + ahead - 1):
        rows.append(rows[-1] @ A)
        S.append(A @ S[-1] @ A.T + Q)
    X, V = torch.stack(rows), 0.1 * torch.eye(length + ahead, dtype=D)
    for t, P in enumerate(S):
        cross = X[: length + ahead - t] @ P @ c
        V[t, t:] += cross
        V[t + 1 :, t] += cross[1:]
    seen = torch.cat([~y[0, :, 0].isnan(), torch.zeros(ahead, dtype=torch.bool)])
    L = torch.linalg.cholesky(V[seen][:, seen])
    values = y[0, seen[:length]]
    Z, z = (torch.linalg.solve_triangular(L, m, upper=False) for m in (X[seen], values))
    Q_, R_ = torch.linalg.qr(Z)
    state = torch.linalg.solve_triangular(R_, Q_.T @ z, upper=True)
    rest = z - Z @ state
    logs = L.diagonal().log().sum() + R_.diagonal().abs().log().sum()
    want = -(len(values) * math.log(2 * math.pi) + rest.square().sum()) / 2 - logs
    close([model.log_likelihood(given, y)[0]], [want], 1e-7)
    later = X[length:] @ state + V[length:][:, seen] @ torch.linalg.solve_triangular(L.T, rest, upper=True)
    close([model.forecast(given, y, ahead).observations.mean[0]], [later], 1e-7)


def without(months: list[int], period: int = 12) -> Tensor:
    """A series that is never seen in these months."""
    y = series(missing=False)
    for month in months:
        y[:, month::period] = torch.nan
    return y


def columns(*kinds: str) -> Tensor:
    """Covariates (1, 110, d): zeros, ones, the time, the first of COVARIATES, or twice that."""
    time = torch.arange(110, dtype=D)
    x = COVARIATES[0, :, 0]
    every = {"zeros": 0 * time, "ones": 1 + 0 * time, "time": time, "x": x, "2x": 2 * x, "after": (time >= 96).to(D)}
    return torch.stack([every[kind] for kind in kinds], -1)[None]


DUMMY, WAVES = Seasonal(period=12), Seasonal(period=12, harmonics=3)
# a model, its series, what statsmodels calls it, covariates, and how many numbers are left open
OPEN: dict[str, tuple[Structural, Tensor, dict[str, Any], Tensor | None, int]] = {
    "zeros": (Level() + Regression(d_covariates=1) + Irregular(), series(), {"level": "llevel"}, columns("zeros"), 1),
    "ones": (Level() + Regression(d_covariates=1) + Irregular(), series(), {"level": "llevel"}, columns("ones"), 1),
    "a line": (
        Trend() + Regression(d_covariates=3) + Irregular(),
        series(),
        {"level": "lltrend"},
        columns("time", "x", "ones"),
        2,
    ),
    "one twice": (
        Level() + Regression(d_covariates=3) + Irregular(),
        series(),
        {"level": "llevel"},
        columns("x", "2x", "after"),
        2,
    ),
    "a month": (Level() + DUMMY + Irregular(), without([3]), {"level": "llevel", "seasonal": 12}, None, 1),
    "ten months": (
        Trend() + DUMMY + Irregular(),
        without([0, 1, 2, 3, 4, 6, 8, 9, 10, 11]),
        {"level": "lltrend", "seasonal": 12},
        None,
        10,
    ),
    "waves": (
        Level() + WAVES + Cycle(periods=(2.0, 60.0)) + Irregular(),
        without([1, 2, 3, 5, 6, 7, 9, 10, 11]),
        {"level": "llevel", "freq_seasonal": [{"period": 12, "harmonics": 3}], "cycle": True, "stochastic_cycle": True}
        | {"damped_cycle": True, "cycle_period_bounds": (2.0, 60.0)},
        None,
        4,
    ),
}


@pytest.mark.parametrize("name", OPEN)
def test_what_the_data_leave_open_is_no_part_of_the_likelihood(name: str) -> None:
    structural = pytest.importorskip("statsmodels.tsa.statespace.structural", reason="statsmodels is not installed")
    model, y, options, covariates, n_open = OPEN[name]
    p = parameters(model)
    past = None if covariates is None else covariates[:, :96]
    exog = {} if past is None else {"exog": past[0].numpy(), "mle_regression": False}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        other = structural.UnobservedComponents(y[0, :, 0].numpy(), use_exact_diffuse=True, **options, **exog)
    kinds = ("irregular.v", "level.v", "trend.level", "trend.slope", "seasonal.v", "cycle.v", "cycle.p", "cycle.d")
    order = [key for kind in kinds for key in p if key.startswith(kind)]
    theirs = [2 * math.pi / float(p[key]) if key == "cycle.period" else float(p[key]) for key in order]
    assert len(theirs) == len(other.param_names) == model.n_parameters
    want = other.loglike(theirs)
    assert float(model.log_likelihood(p, y, covariates=past)) == pytest.approx(want, abs=1e-6)
    found = fit(model, y, covariates=past, n_starts=1, n_iterations=2)
    again = model.log_likelihood(found.parameters, y, covariates=past)
    assert float(found.log_likelihood) == pytest.approx(float(again), abs=1e-9)
    assert int(found.n_undetermined) == n_open
    k = model.n_parameters + model.n_diffuse - n_open
    assert float(found.aic) == pytest.approx(2 * k - 2 * float(found.log_likelihood))
    assert f"leave {n_open} number" in " ".join(found.remarks())


def test_rows_with_gaps_of_their_own_have_the_likelihood_of_each_by_itself() -> None:
    model = Level() + Seasonal(period=4) + Regression(d_covariates=2) + Irregular()
    y = torch.cat([series(missing=False), without([1], 4), without([0], 4), without([1, 2], 4), series()])
    y[2, :10] = torch.nan
    own = torch.cat([columns("x", "time"), *[columns("ones", "x")] * 3, columns("zeros", "2x")])[:, :96]
    for covariates in (own, columns("x", "ones")[:, :96]):
        p = parameters(model, batch=5)
        together = model.log_likelihood(p, y, covariates=covariates)
        for row in range(5):
            alone = {name: value[row : row + 1] for name, value in p.items()}
            mine = covariates[row : row + 1] if len(covariates) > 1 else covariates
            want = model.log_likelihood(alone, y[row : row + 1], covariates=mine)
            close([together[row]], [want[0]], 1e-9)


def test_what_is_left_open_is_told_and_wide() -> None:
    """The sum of level and covariate is known, neither alone is; the forecast of a month never seen is not, either."""
    ones = columns("ones")
    found = fit(Level() + Regression(d_covariates=1) + Irregular(), series(), covariates=ones[:, :96], n_starts=1)
    plain = fit(Level() + Irregular(), series(), n_starts=1)
    parts = found.decompose()
    both = parts["level"].mean + parts["regression"].mean
    close([both], [plain.decompose()["level"].mean], 1e-3)
    assert float(parts["level"].variance.min()) > 1e6
    close(
        [found.forecast(5, covariates=ones[:, 96:101]).observations.mean], [plain.forecast(5).observations.mean], 1e-3
    )
    assert found.remarks()[-1] == "series 0: the data leave 1 number open, in: level, regression"
    unseen = fit(Level() + Seasonal(period=4) + Irregular(), without([1], 4), n_starts=1)
    spread = unseen.forecast(4).observations.variance.sqrt()[0, :, 0]
    assert float(spread[1]) > 1e4
    assert float(spread[[0, 2, 3]].max()) < 10


@pytest.mark.parametrize("model", [Level() + Seasonal(period=4) + Irregular(), Trend(damped=True) + Irregular()])
@pytest.mark.parametrize("offset", [1e6, -1e12])
def test_a_series_far_from_zero_keeps_its_digits(model: Structural, offset: float) -> None:
    y = (series() * 256).round() / 256  # which float64 holds beside the offset
    p = parameters(model)
    assert float(model.log_likelihood(p, y + offset)) == pytest.approx(float(model.log_likelihood(p, y)), abs=1e-9)
    near, far = model.forecast(p, y, 6), model.forecast(p, y + offset, 6)
    eps = 4e-16 * abs(offset)
    for a, b in ((near.observations, far.observations), (near.states, far.states)):
        close([b.variance], [a.variance], 1e-8)
        shift = b.mean - a.mean
        level = torch.zeros_like(shift)
        level[..., 0] = offset
        close([shift], [level], max(eps, 1e-9))
    one, other = model.decompose(p, y), model.decompose(p, y + offset)
    for name in one:
        lift = offset if name in ("level", "trend") else 0.0
        close([other[name].mean - lift], [one[name].mean], max(eps, 1e-7) if lift else 1e-7)
    paths = [model.simulate(p, z, 6, 3, generator=torch.Generator().manual_seed(0)) for z in (y, y + offset)]
    close([paths[1] - offset], [paths[0]], max(eps, 1e-7))
    smoothed = model.linear_gaussian(p, y + offset).smooth(y + offset)
    close([smoothed.mean[..., 0] - offset], [model.linear_gaussian(p, y).smooth(y).mean[..., 0]], 1e3 * eps)


def test_a_fit_says_which_variances_fell_to_zero() -> None:
    g = torch.Generator().manual_seed(2)
    noise, walk = torch.randn(2, 80, 1, dtype=D, generator=g)
    y = torch.stack([torch.full((80, 1), 5.0, dtype=D), noise, walk.cumsum(0), walk.cumsum(0) + 2 * noise])
    found = fit(Level() + Irregular(), y)
    assert bool(found.converged.all())
    assert found.at_zero["level.variance"].tolist() == [True, True, False, False]
    assert found.at_zero["irregular.variance"].tolist()[::3] == [True, False]
    told = found.remarks()
    assert told[0] == "series 0: all variances fell to 0: the model fits exactly, and the likelihood has no maximum"
    assert told[1] == "series 1: level.variance fell to 0, and the data give no reason for more"
    assert not any(line.startswith("series 3") for line in told)
    short = fit(Level() + Irregular(), y[3:], n_iterations=1, n_starts=1)
    assert short.remarks() == ["series 0: the search did not end"]
