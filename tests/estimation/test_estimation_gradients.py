"""Gradients of the log-likelihood through every form, beside one big normal distribution and finite differences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from estimation_models import D, by_conditioning, observations, random_model
from test_estimation import FAST, MASKS, close, random_state
from torch import Tensor

from statewise.estimation import GaussianState, LinearGaussian

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


@pytest.mark.parametrize("form", LinearGaussian.forms)
def test_gradients_by_finite_differences(form: str) -> None:
    y, _ = observations(1, 5, 2, 0)

    def likelihood(A: Tensor, root: Tensor, C: Tensor) -> Tensor:
        model = LinearGaussian(A, root @ root.T, C, torch.eye(2, dtype=D), covariance=root @ root.T)
        return model.filter(y, form=form)[0].log_likelihood.sum()

    model = random_model(m=0)
    root = torch.linalg.cholesky(model.Q)
    assert torch.autograd.gradcheck(likelihood, [m.clone().requires_grad_() for m in (model.A, root, model.C)])
    thin = torch.randn(3, 1, dtype=D, requires_grad=True)  # one noise for three states
    if form != "steady":  # which has no limit without noise
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
