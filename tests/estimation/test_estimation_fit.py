"""Models from data: EM, the likelihood's gradient, several starts, and standard errors."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from estimation_models import D, observations, random_model
from test_estimation import close, refused
from torch import Tensor

from statewise.estimation import LinearGaussian, fit, maximise


def truth(m: int = 0) -> LinearGaussian:
    eye = torch.eye(2, dtype=D)
    A = torch.tensor([[0.9, 0.2], [-0.2, 0.8]], dtype=D)
    return LinearGaussian(A, 0.3 * eye, eye, 0.5 * eye, B=torch.ones(2, m, dtype=D) if m else None)


LEARNED = [("Q", "R"), ("A", "B", "b", "Q"), ("C", "D", "d", "R"), ("A", "C", "Q", "R", "mean", "covariance"), ("b",)]
CORRELATED = [("Q", "R", "S"), ("A", "B", "b"), ("C", "d"), ("A", "C", "d", "Q", "R", "S", "mean", "covariance")]


@pytest.mark.parametrize("learn", [*LEARNED, *CORRELATED], ids="-".join)
@pytest.mark.parametrize("missing", [False, True])
def test_em_never_lowers_the_likelihood(learn: tuple[str, ...], missing: bool) -> None:
    model = random_model(correlated=learn in CORRELATED)
    y, u = observations(3, 20, missing=missing)
    found = fit(model, y, learn=learn, method="em", u=u, n_iterations=15, lengths=torch.tensor([20, 12, 3]))
    steps = torch.tensor(found.history).diff()
    assert bool((steps > -1e-9).all())
    assert found.history[-1] > found.history[0] + 0.1
    assert set(found.parameters) == set(learn)


def test_em_with_correlated_noise_stands_at_the_gradients_maximum() -> None:
    eye, S = torch.eye(2, dtype=D), torch.tensor([[0.2, 0.0], [0.1, -0.2]], dtype=D)
    model = replace(truth(), S=S, b=torch.zeros(2, dtype=D))
    _, y = model.simulate(2, 60, generator=torch.Generator().manual_seed(0))
    y = y.masked_fill(torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.2, torch.nan)
    begin, learn = replace(model, Q=eye, R=eye, S=0 * S), ("A", "b", "Q", "R", "S")
    best = fit(begin, y, learn=learn, tolerance=1e-12, n_iterations=500)
    again = fit(best.model, y, learn=learn, method="em", n_iterations=1)
    assert again.history[1] == pytest.approx(best.log_likelihood, abs=1e-6)
    close([getattr(again.model, name) for name in learn], [getattr(best.model, name) for name in learn], 1e-4)
    refused(lambda: fit(replace(begin, R=0 * eye), y, learn=("b",), method="em"), "of full rank")
    refused(
        lambda: fit(replace(begin, A=model.A.expand(1, 60, 2, 2)), y, learn=("b",), method="em"),
        "needs A to be constant",
    )


@pytest.mark.parametrize("missing", [False, True])
def test_em_and_gradient_find_one_maximum(missing: bool) -> None:
    _, y = truth().simulate(2, 80, generator=torch.Generator().manual_seed(0))
    if missing:
        y = y.masked_fill(torch.rand(y.shape, generator=torch.Generator().manual_seed(1)) < 0.2, torch.nan)
    begin = replace(truth(), Q=torch.eye(2, dtype=D), R=torch.eye(2, dtype=D))
    by_em = fit(begin, y, learn=("Q", "R"), method="em", n_iterations=2000, tolerance=1e-11)
    by_gradient = fit(begin, y, learn=("Q", "R"))
    assert by_gradient.converged
    assert by_gradient.log_likelihood == pytest.approx(by_em.log_likelihood, abs=1e-4)
    close([by_em.model.Q, by_em.model.R], [by_gradient.model.Q, by_gradient.model.R], 2e-2)
    assert by_gradient.n_parameters == 6
    assert by_gradient.aic == pytest.approx(12 - 2 * by_gradient.log_likelihood)
    assert by_gradient.bic == pytest.approx(6 * math.log(by_gradient.n_steps) - 2 * by_gradient.log_likelihood)


def test_standard_errors_of_a_mean() -> None:
    """Observations d + v of variance r: the errors are sqrt(r / n), and r sqrt(2 / n)."""
    one = torch.ones(1, 1, dtype=D)
    model = LinearGaussian(0 * one, 1e-12 * one, one, one, d=torch.zeros(1, dtype=D), covariance=1e-12 * one)
    y = torch.randn(4, 250, 1, dtype=D, generator=torch.Generator().manual_seed(0)) * 2 + 3
    found = fit(model, y, learn=("d", "R"), tolerance=1e-12)
    close([found.model.d[0], found.model.R[0, 0]], [y.mean(), y.var(correction=0)], 1e-5)
    errors = found.standard_errors()
    r = float(found.model.R)
    close(
        [errors["d"][0], errors["R"][0, 0]],
        [torch.tensor(x, dtype=D) for x in (math.sqrt(r / 1000), r * math.sqrt(2 / 1000))],
        1e-4,
    )


def test_standard_errors_are_those_of_the_numerical_hessian() -> None:
    """By second differences of the likelihood itself, in the coefficients; A and R of a scalar model."""
    one = torch.ones(1, 1, dtype=D)
    model = LinearGaussian(0.7 * one, one, one, one, covariance=2.0 * one)
    _, y = model.simulate(4, 200, generator=torch.Generator().manual_seed(0))
    found = fit(model, y, learn=("A", "R"), tolerance=1e-12)
    best = [float(found.model.A), float(found.model.R)]

    def value(a: float, r: float) -> float:
        return float(replace(model, A=a * one, R=r * one).filter(y)[0].log_likelihood.sum())

    step, H = 1e-3, torch.zeros(2, 2, dtype=D)
    for i in range(2):
        for j in range(2):
            total = 0.0
            for si in (1, -1):
                for sj in (1, -1):
                    at = list(best)
                    at[i] += si * step
                    at[j] += sj * step
                    total += si * sj * value(*at)
            H[i, j] = -total / (4 * step**2)
    want, errors = torch.linalg.inv(H).diagonal().sqrt(), found.standard_errors()
    close([errors["A"][0, 0] / want[0], errors["R"][0, 0] / want[1]], [torch.ones((), dtype=D)] * 2, 1e-3)
    assert found.aic == pytest.approx(4 - 2 * found.log_likelihood)
    assert found.bic == pytest.approx(2 * math.log(800) - 2 * found.log_likelihood)


@pytest.mark.parametrize("method", ["gradient", "em"])
def test_several_starts(method: str) -> None:
    """From a start with a coefficient of zero, by symmetry, no step leads away; from those near it one does."""
    one = torch.ones(1, 1, dtype=D)
    saddle = LinearGaussian(0 * one, one, 0 * one, 2 * one, covariance=one)
    _, y = replace(saddle, A=0.95 * one, C=one, R=0.1 * one).simulate(2, 80, generator=torch.Generator().manual_seed(0))
    given: dict[str, Any] = {"learn": ("A", "C"), "method": method, "n_iterations": 30}
    alone = fit(saddle, y, **given)
    assert alone.starts == (alone.log_likelihood,)
    assert abs(float(alone.model.C)) < 1e-12
    found = fit(saddle, y, **given, n_starts=4, generator=torch.Generator().manual_seed(0))
    again = fit(saddle, y, **given, n_starts=4, generator=torch.Generator().manual_seed(0))
    assert found.starts == again.starts
    assert len(found.starts) == 4
    assert found.starts[0] == alone.log_likelihood
    assert found.log_likelihood == max(found.starts) > alone.log_likelihood + 10

    def walk(p: dict[str, Tensor]) -> LinearGaussian:
        return replace(saddle, A=p["a"] * one, C=p["c"] * one)

    begin = {"a": torch.zeros(()), "c": torch.zeros(())}
    best = maximise(walk, begin, y, n_starts=3, generator=torch.Generator().manual_seed(0), n_iterations=30)
    assert best.log_likelihood == max(best.starts) > alone.log_likelihood + 10


def test_a_start_that_is_no_model_counts_for_nothing() -> None:
    one = torch.ones(1, 1, dtype=D)

    def picky(p: dict[str, Tensor]) -> LinearGaussian:
        return LinearGaussian(p["a"] * one, one, one, one if float(p["a"].detach()) == 0.5 else -one)

    y = torch.randn(1, 20, 1, dtype=D, generator=torch.Generator().manual_seed(0))
    found = maximise(picky, {"a": torch.tensor(0.5)}, y, n_starts=3)
    assert found.starts == (found.log_likelihood, -math.inf, -math.inf)


def test_standard_errors_are_nan_where_the_data_say_nothing() -> None:
    one = torch.ones(1, 1, dtype=D)
    model = LinearGaussian(one, one, one, one, b=torch.zeros(1, dtype=D), d=torch.zeros(1, dtype=D))
    unseen = replace(model, C=0 * one)  # b moves nothing that is seen
    y = torch.randn(1, 50, 1, dtype=D, generator=torch.Generator().manual_seed(0))
    errors = fit(unseen, y, learn=("b", "d")).standard_errors()
    assert bool(errors["b"].isnan())
    assert bool(errors["d"].isfinite())


def test_correlated_noise_by_gradient() -> None:
    model = random_model(m=0)
    _, y = model.simulate(2, 40, generator=torch.Generator().manual_seed(0))
    found = fit(model, y, learn=("Q", "R", "S"), n_iterations=20)
    assert found.history[-1] > found.history[0]
    refused(lambda: fit(model, y, learn=("Q",)), "while S stays fixed")


def test_a_structure_of_ones_own() -> None:
    one = torch.ones(1, 1, dtype=D)

    def walk(p: dict[str, Tensor]) -> LinearGaussian:
        return LinearGaussian(one, p["log_q"].exp() * one, one, p["log_r"].exp() * one)

    _, y = walk({"log_q": torch.tensor(-1.0, dtype=D), "log_r": torch.tensor(0.5, dtype=D)}).simulate(
        8, 200, generator=torch.Generator().manual_seed(0)
    )
    found = maximise(walk, {"log_q": torch.zeros(()), "log_r": torch.zeros(())}, y)
    assert found.converged
    errors = found.standard_errors()
    for name, value in (("log_q", -1.0), ("log_r", 0.5)):
        assert abs(float(found.parameters[name]) - value) < 4 * float(errors[name])
        assert 0.01 < float(errors[name]) < 0.3


def test_float32_stays_float32() -> None:
    model = truth()
    narrow = LinearGaussian(*[m.float() for m in (model.A, model.Q, model.C, model.R)])
    _, y = narrow.simulate(2, 30, generator=torch.Generator().manual_seed(0))
    assert fit(narrow, y, learn=("R",), n_iterations=3).model.R.dtype == torch.float32


def test_wrong_fits() -> None:
    model, (y, _) = random_model(m=0, correlated=False), observations(2, 5, 2, 0)
    refused(lambda: fit(model, y, learn=("W",)), "must name coefficients")
    refused(lambda: fit(model, y, learn=()), "must name coefficients")
    refused(lambda: fit(model, y, learn=("B",)), "which the model does not have")
    refused(lambda: fit(model, y, learn=("S", "Q", "R")), "which the model does not have")
    refused(lambda: fit(random_model(m=0, length=5), y, learn=("A",)), "varies with time")
    refused(lambda: fit(model, y, learn=("A",), method="newton"), "'gradient' and 'em'")
    refused(lambda: fit(replace(model, Q=0 * model.Q), y, learn=("Q",)), "not have full rank")
    refused(lambda: fit(model, torch.full_like(y, torch.nan), learn=("Q",)), "every number of y is missing")
    refused(lambda: fit(model, y, learn=("Q",), n_iterations=0), "n_iterations")
    refused(lambda: fit(model, y, learn=("Q",), tolerance=-1), "tolerance")
    refused(lambda: fit(model, y, learn=("Q",), n_starts=0), "n_starts must be a number above 0")
    refused(lambda: maximise(lambda p: None, {"a": torch.zeros(())}, y), "return a LinearGaussian")  # type: ignore[arg-type, return-value]
    refused(lambda: maximise(lambda p: model, {}, y), "dict of floating-point")
