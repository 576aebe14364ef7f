"""Gradients of the log-likelihood, and models from data."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from estimation_models import D, by_conditioning, observations, random_model
from test_estimation import FAST, MASKS, close, random_state, refused
from torch import Tensor

from statewise.estimation import GaussianState, LinearGaussian, fit, maximise

NAMES = ("A", "Q", "C", "R", "B", "b", "D", "d", "S", "mean", "covariance")


def leaves(model: LinearGaussian) -> tuple[LinearGaussian, list[Tensor]]:
    given = {name: getattr(model, name).detach().clone().requires_grad_() for name in NAMES}
    return replace(model, **given), list(given.values())


def symmetric(gradients: Any) -> list[Tensor]:
    """A covariance moves as a whole: only the symmetric part of its gradient means something."""
    return [(g + g.mT) / 2 if name in ("Q", "R", "covariance") else g for name, g in zip(NAMES, gradients)]


@pytest.mark.parametrize("form", LinearGaussian.forms)
def test_gradients_are_those_of_one_big_normal_distribution(form: str) -> None:
    missing = form != "steady"
    length = 9 if missing else 60
    model, parameters = leaves(random_model())
    y, u = observations(2, length, missing=missing)
    posterior, _ = model.filter(y, u=u, form=form)
    got = torch.autograd.grad(posterior.log_likelihood.sum(), parameters)
    if form == "steady":
        want_value = model.filter(y, u=u, form="square_root")[0].log_likelihood.sum()
    else:
        want_value = sum(by_conditioning(model, y, u, row).log_likelihood for row in range(2))
    want = torch.autograd.grad(want_value, parameters)
    close(symmetric(got), symmetric(want), 1e-8)


@pytest.mark.parametrize("form", FAST)
@pytest.mark.parametrize("masks", MASKS)
def test_gradients_of_everything_are_those_of_the_definition(form: str, masks: str) -> None:
    """Means, covariances, densities and the final state, by the coefficients, y, and the state that comes in."""
    y, u = observations(3, 9, missing=True)
    results = []
    for f in ("recurrent", form):
        model, parameters = leaves(random_model())
        state = GaussianState(*[m.requires_grad_() for m in random_state(model, 3)])
        data = torch.where(y.isnan(), y, y).requires_grad_()
        posterior, final = model.filter(data, state, u=u, form=f, **MASKS[masks])
        smoothed = model.smooth(data, state, u=u, form=f, **MASKS[masks])
        assert final is not None
        rows = (
            slice(None) if masks == "whole" or masks == "starts" else slice(0, 1)
        )  # a row of no steps keeps its factor
        total = torch.zeros((), dtype=D)
        g = torch.Generator().manual_seed(3)
        for part in (
            *(posterior.mean, posterior.covariance, posterior.log_densities, final.mean, final.factor[rows]),
            *(smoothed.mean, smoothed.covariance, smoothed.lag_one),
        ):
            total = total + (part * torch.randn(part.shape, dtype=D, generator=g)).sum()
        gradients = torch.autograd.grad(total, [*parameters, data, *state], allow_unused=True, materialize_grads=True)
        results.append([*symmetric(gradients[: len(NAMES)]), *gradients[len(NAMES) :]])
    close(results[1], results[0], 1e-8)


def test_gradients_by_finite_differences() -> None:
    y, _ = observations(1, 5, 2, 0)

    def likelihood(A: Tensor, root: Tensor, C: Tensor) -> Tensor:
        model = LinearGaussian(A, root @ root.T, C, torch.eye(2, dtype=D), covariance=root @ root.T)
        return model.filter(y)[0].log_likelihood.sum()

    model = random_model(m=0)
    root = torch.linalg.cholesky(model.Q)
    assert torch.autograd.gradcheck(likelihood, [m.clone().requires_grad_() for m in (model.A, root, model.C)])
    thin = torch.randn(3, 1, dtype=D, requires_grad=True)  # one noise for three states
    assert torch.autograd.gradcheck(lambda thin: likelihood(model.A, thin, model.C), thin)


def test_the_scalar_likelihood_and_its_derivative_in_closed_form() -> None:
    """One observation of x_1 = x_0 + w: y ~ N(0, P + q + r)."""
    for form in LinearGaussian.forms:
        q = torch.tensor(0.7, dtype=D, requires_grad=True)
        one = torch.ones(1, 1, dtype=D)
        y = torch.full((1, 1, 1), 1.3, dtype=D)
        value = LinearGaussian(one, q * one, one, 0.4 * one).filter(y, form=form)[0].log_likelihood.sum()
        (slope,) = torch.autograd.grad(value, q)
        s = 1 + 0.7 + 0.4
        assert float(value.detach()) == pytest.approx(-(1.3**2 / s + math.log(2 * math.pi * s)) / 2, abs=1e-13)
        assert float(slope) == pytest.approx((1.3**2 / s**2 - 1 / s) / 2, abs=1e-13)


def test_a_second_derivative_is_refused() -> None:
    model, y = random_model(m=0), observations(1, 4, 2, 0)[0]
    A = model.A.clone().requires_grad_()
    value = replace(model, A=A).filter(y, form="square_root")[0].log_likelihood.sum()
    (slope,) = torch.autograd.grad(value, A, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(slope.sum(), A)
    value = replace(model, A=A).filter(y, form="recurrent")[0].log_likelihood.sum()
    (slope,) = torch.autograd.grad(value, A, create_graph=True)
    assert torch.autograd.grad(slope.sum(), A)[0].isfinite().all()


# -- fit ---------------------------------------------------------------------------------------------------------------


def truth(m: int = 0) -> LinearGaussian:
    eye = torch.eye(2, dtype=D)
    A = torch.tensor([[0.9, 0.2], [-0.2, 0.8]], dtype=D)
    return LinearGaussian(A, 0.3 * eye, eye, 0.5 * eye, B=torch.ones(2, m, dtype=D) if m else None)


@pytest.mark.parametrize(
    "learn", [("Q", "R"), ("A", "B", "b", "Q"), ("C", "D", "d", "R"), ("A", "C", "Q", "R", "mean", "covariance")]
)
@pytest.mark.parametrize("missing", [False, True])
def test_em_never_lowers_the_likelihood(learn: tuple[str, ...], missing: bool) -> None:
    model = random_model(correlated=False)
    y, u = observations(3, 20, missing=missing)
    found = fit(model, y, learn=learn, method="em", u=u, n_iterations=15, lengths=torch.tensor([20, 12, 3]))
    steps = torch.tensor(found.history).diff()
    assert bool((steps > -1e-9).all())
    assert found.history[-1] > found.history[0] + 0.1
    assert set(found.parameters) == set(learn)


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
    refused(lambda: fit(model, y, learn=("A",), method="em"), "no closed form with S")
    refused(lambda: fit(model, y, learn=("Q",)), "beside a fixed S")


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
    refused(lambda: fit(model, y, learn=("B",)), "which the model has not")
    refused(lambda: fit(model, y, learn=("S", "Q", "R")), "which the model has not")
    refused(lambda: fit(random_model(m=0, length=5), y, learn=("A",)), "varies with time")
    refused(lambda: fit(model, y, learn=("A",), method="newton"), "'gradient' and 'em'")
    refused(lambda: fit(replace(model, Q=0 * model.Q), y, learn=("Q",)), "no full rank")
    refused(lambda: fit(model, torch.full_like(y, torch.nan), learn=("Q",)), "every number of y is missing")
    refused(lambda: fit(model, y, learn=("Q",), n_iterations=0), "n_iterations")
    refused(lambda: fit(model, y, learn=("Q",), tolerance=-1), "tolerance")
    refused(lambda: maximise(lambda p: None, {"a": torch.zeros(())}, y), "return a LinearGaussian")  # type: ignore[arg-type, return-value]
    refused(lambda: maximise(lambda p: model, {}, y), "dict of floating-point")
