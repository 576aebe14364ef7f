"""Extended, iterated, unscented and cubature filters: Kalman's on linear models, and as published on others."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from estimation_models import D, observations, random_model
from test_estimation import MASKS, close, numbers, random_state, refused
from torch import Tensor

import statewise as sw
from statewise.estimation import (
    Extended,
    GaussianState,
    IteratedExtended,
    LinearGaussian,
    NonlinearGaussian,
    Unscented,
    acceptance,
    angles,
    nees,
    nis,
)
from statewise.estimation.transforms import difference

METHODS: list[Any] = [
    *("extended", "iterated", "unscented", "cubature"),
    *(Unscented(alpha=0.5, beta=0.0, kappa=1.0), Unscented(alpha=1.0, beta=2.0, kappa=0.0), Extended(n_iterations=3)),
]


def as_functions(model: LinearGaussian, method: Any) -> NonlinearGaussian:
    A, B, b, C, D_, d = (getattr(model, name) for name in ("A", "B", "b", "C", "D", "d"))
    return NonlinearGaussian(
        lambda x, u: A @ x + B @ u + b,
        model.Q,
        lambda x, u: C @ x + D_ @ u + d,
        model.R,
        mean=model.mean,
        covariance=model.covariance,
        method=method,
    )


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("masks", MASKS)
def test_on_a_linear_model_all_are_kalmans(method: Any, masks: str) -> None:
    linear = random_model(correlated=False)
    y, u = observations(3, 9, missing=True)
    model, state = as_functions(linear, method), random_state(linear, 3)
    atol = 1e-7 if method == "unscented" else 1e-9  # alpha of 1e-3 costs three digits, squared six
    for begin in (None, state):
        want, final = linear.filter(y, begin, u=u, **MASKS[masks])
        got, after = model.filter(y, begin, u=u, **MASKS[masks])
        close(numbers(got), numbers(want), atol)
        if begin is not None:
            close(after, final, atol)  # type: ignore[arg-type]
        smoothed, defined = model.smooth(y, begin, u=u, **MASKS[masks]), linear.smooth(y, begin, u=u, **MASKS[masks])
        close(vars(smoothed).values(), vars(defined).values(), 10 * atol)
    forecast, told = model.forecast(state, 4, u=u[:, :4]), linear.forecast(state, 4, u=u[:, :4])  # type: ignore[index]
    close(
        [forecast.observations.mean, forecast.observations.factor],
        [told.observations.mean, told.observations.factor],
        atol,
    )


# -- a pendulum observed through its sine ------------------------------------------------------------------------------


def pendulum(method: Any, dt: float = 0.05, **more: Any) -> NonlinearGaussian:
    q = 0.1 * torch.tensor([[dt**3 / 3, dt**2 / 2], [dt**2 / 2, dt]], dtype=D)

    def f(x: Tensor) -> Tensor:
        return torch.stack([x[0] + dt * x[1], x[1] - dt * 9.81 * torch.sin(x[0])])

    given = {"mean": torch.tensor([0.8, 0.0], dtype=D), "covariance": 0.05 * torch.eye(2, dtype=D)} | more
    return NonlinearGaussian(f, q, lambda x: torch.sin(x[:1]), 0.05 * torch.eye(1, dtype=D), method=method, **given)


def simulated(model: NonlinearGaussian, batch: int, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    return model.simulate(batch, length, generator=torch.Generator().manual_seed(seed))


def test_simulated_runs_have_the_noises() -> None:
    """x_t - f(x_{t-1}) has the covariance Q, y_t - h(x_t) R, x_0 the prior's: seen where nothing moves."""
    model = pendulum("extended")
    x, y = simulated(model, 20_000, 3)
    f = torch.func.vmap(torch.func.vmap(model.f))
    w, v = x[:, 1:] - f(x[:, :-1]), y - torch.sin(x[..., :1])
    size = torch.outer(model.Q.diagonal().sqrt(), model.Q.diagonal().sqrt())
    close([w.flatten(0, 1).T.cov() / size, v.var().reshape(1, 1)], [model.Q / size, model.R], 0.02)
    still = replace(model, f=lambda x: x, Q=0 * model.Q)
    x, _ = simulated(still, 20_000, 1)
    close([x[:, 0].mean(0), x[:, 0].T.cov()], [model._mean, model._covariance], 0.01)
    assert [m.shape for m in simulated(model, 2, 0)] == [(2, 0, 2), (2, 0, 1)]
    linear = random_model(correlated=False)
    u = torch.ones(4, 5, 2, dtype=D)
    assert as_functions(linear, "extended").simulate(4, 5, u=u)[1].shape == (4, 5, 2)


def test_slices_explain_and_no_rows() -> None:
    model = pendulum("extended")
    _, y = simulated(model, 2, 8)
    varying = replace(model, R=model.R * torch.linspace(0.5, 2, 8, dtype=D)[None, :, None, None])
    want, final = varying.filter(y, model.initial_state(2))
    first, state = varying[:3].filter(y[:, :3], model.initial_state(2))
    second, after = varying[3:].filter(y[:, 3:], state)
    close([torch.cat([first.mean, second.mean], 1)], [want.mean])
    close(after, final)  # type: ignore[arg-type]
    assert sw.explain(model, y).form == "square_root"
    refused(lambda: model.filter(y, form="parallel"), "has no form 'parallel'; its forms are square_root")
    for method in METHODS:
        assert replace(model, method=method).smooth(y[:0]).mean.shape == (0, 8, 2)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_pendulum(method: Any) -> None:
    """The smoother is better than the filter, that is better than the observations, and both know how good they are."""
    model = pendulum(method, mean=torch.tensor([0.4, 0.0], dtype=D))
    x, y = simulated(model, 200, 60)
    posterior, _ = model.filter(y)
    smoothed = model.smooth(y)
    errors = [float((m[..., 0] - x[..., 0]).square().mean().sqrt()) for m in (posterior.mean, smoothed.mean)]
    raw = float((torch.asin(y.clamp(-1, 1))[..., 0] - x[..., 0]).square().mean().sqrt())
    assert errors[1] < errors[0] < raw / 2
    assert 1.6 < float(nees(posterior, x)[:, 20:].mean()) < 2.6
    assert 1.6 < float(nees(smoothed, x)[:, 20:].mean()) < 2.6
    low, high = acceptance(200, 1, 0.999)
    inside = (nis(posterior).mean(0) > low) & (nis(posterior).mean(0) < high)
    assert float(inside.double().mean()) > 0.9


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_cuts_rows_and_padding(method: Any) -> None:
    model = pendulum(method)
    atol = 1e-7 if method == "unscented" else 1e-10
    _, y = simulated(model, 3, 10)
    whole, final = model.filter(y, model.initial_state(3))
    state, pieces = model.initial_state(3), []
    for a, b in pairwise([0, 1, 1, 6, 10]):
        posterior, state = model.filter(y[:, a:b], state)  # type: ignore[assignment]
        pieces.append(numbers(posterior))
    close([torch.cat(part, 1) for part in zip(*pieces)], numbers(whole), atol)
    close(state, final, atol)  # type: ignore[arg-type]
    dirty = y.clone()
    dirty[1, 4:] = torch.nan
    padded = model.smooth(dirty, lengths=torch.tensor([10, 4, 0]))
    alone = model.smooth(y[1:2, :4])
    close([padded.mean[1, :4], padded.factor[1, :4]], [alone.mean[0], alone.factor[0]], atol)
    starts = torch.zeros(3, 10, dtype=torch.bool)
    starts[2, 6] = True
    packed, document = model.smooth(y, starts=starts), model.smooth(y[2:, 6:])
    close([packed.mean[2, 6:], packed.lag_one[2, 7:]], [document.mean[0], document.lag_one[0, 1:]], atol)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_angles_around_the_circle(method: Any) -> None:
    """A bearing that turns through pi, observed within [-pi, pi): with residuals the filter never sees a jump."""
    eye = torch.eye(2, dtype=D)
    A = torch.tensor([[1.0, 1.0], [0.0, 1.0]], dtype=D)

    def wrapped(x: Tensor) -> Tensor:
        return torch.remainder(x + math.pi, 2 * math.pi) - math.pi

    model = NonlinearGaussian(
        lambda x: A @ x,
        1e-4 * eye,
        lambda x: wrapped(x[:1]),
        0.01 * eye[:1, :1],
        mean=torch.tensor([0.0, 0.3], dtype=D),
        covariance=0.01 * eye,
        method=method,
        residual_y=angles(0),
    )
    truth = 0.3 * torch.arange(1, 41, dtype=D)
    noise = 0.1 * torch.randn(40, dtype=D, generator=torch.Generator().manual_seed(0))
    y = wrapped(truth + noise)[None, :, None]
    posterior, _ = model.filter(y)
    linear = LinearGaussian(A, model.Q, eye[:1], model.R, mean=model.mean, covariance=model.covariance)
    want, _ = linear.filter((truth + noise)[None, :, None])
    close([posterior.mean, posterior.log_likelihood], [want.mean, want.log_likelihood], 1e-6)
    jumps = replace(model, residual_y=difference).filter(y)[0].mean
    assert float((jumps[0, :, 0] - truth).abs().max()) > 1


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_gradients_of_what_f_is_made_of(method: Any) -> None:
    _, y = simulated(pendulum("extended"), 2, 4)

    def likelihood(gravity: Tensor, r: Tensor) -> Tensor:
        def f(x: Tensor) -> Tensor:
            return torch.stack([x[0] + 0.05 * x[1], x[1] - 0.05 * gravity * torch.sin(x[0])])

        base = pendulum(method)
        return replace(base, f=f, R=r * torch.eye(1, dtype=D)).filter(y)[0].log_likelihood.sum()

    leaves = [torch.tensor(z, dtype=D, requires_grad=True) for z in (9.81, 0.05)]
    loose = 1e-4 if method == "unscented" else 1e-6  # whose differences of 1e-3 leave noise of about 1e-9 in the value
    assert torch.autograd.gradcheck(likelihood, leaves, eps=max(1e-6, loose), atol=loose, rtol=loose)


def test_float32_and_few_noises() -> None:
    model = pendulum("extended")
    g = torch.tensor([[0.0], [0.1]])
    narrow = NonlinearGaussian(
        model.f, g @ g.T, model.h, model.R.float(), covariance=torch.zeros(2, 2), mean=torch.tensor([0.8, 0.0])
    )
    _, y = simulated(model, 2, 300)
    for method in ("extended", "iterated", Unscented(alpha=0.5), "cubature"):
        posterior, smoothed = (
            replace(narrow, method=method).filter(y.float())[0],
            replace(narrow, method=method).smooth(y.float()),
        )  # type: ignore[arg-type]
        assert posterior.mean.dtype == torch.float32
        assert bool(smoothed.mean.isfinite().all())
        assert bool((smoothed.variance <= posterior.variance * 1.01 + 1e-6).all())


def test_wrong_input() -> None:
    model = pendulum("extended")
    y = torch.zeros(1, 3, 1, dtype=D)
    refused(lambda: replace(model, f=lambda x: x[:1]).filter(y), r"f gets one state \(2,\).*must return \(2,\)")
    refused(lambda: replace(model, h=lambda x: x).filter(y), r"h gets one state.*must return \(1,\)")
    refused(lambda: replace(model, h=lambda x: 1.0).filter(y), "it returned float")  # type: ignore[arg-type, return-value]
    refused(lambda: replace(model, h=lambda x: x[:1].float()).filter(y), "it returned torch.float32")
    refused(lambda: replace(model, h=lambda x: x[:1].float(), method="cubature").filter(y), "it returned torch.float32")
    refused(lambda: replace(model, f=3), "f as a function")  # type: ignore[arg-type]
    refused(lambda: replace(model, method="particle"), "its methods are extended, iterated, unscented, cubature")
    refused(lambda: replace(model, method=3), "method as a name")  # type: ignore[arg-type]
    refused(lambda: replace(model, method=Unscented(alpha=0.0)), "may give a matrix that is not a covariance")
    refused(
        lambda: replace(model, method=Unscented(alpha=1.0, beta=0.0, kappa=-1.0)),
        "may give a matrix that is not a covariance",
    )
    refused(lambda: replace(model, method=IteratedExtended(n_iterations=0)), "n_iterations")
    refused(lambda: replace(model, f=lambda x: (x, x)).filter(y), "f gets one state.*it returned tuple")  # type: ignore[arg-type, return-value]
    refused(lambda: replace(model, residual_y=lambda a, b: (a - b).sum(-1)).filter(y), "residual_y gets .* must return")
    refused(lambda: replace(model, residual_x=lambda a, b: 0.0).smooth(y), "residual_x gets .* it returned float")  # type: ignore[arg-type, return-value]
    refused(lambda: replace(model, R=torch.zeros(1, 2, dtype=D)), r"R of shape \(2, 2\)")
    refused(lambda: replace(model, covariance=torch.tensor([[1.0, 0.5], [0.0, 1.0]], dtype=D)), "covariance symmetric")
    refused(lambda: replace(model, Q=-model.Q), "positive semi-definite")
    refused(lambda: replace(model, mean=torch.zeros(3, dtype=D)), "mean of shape")
    refused(lambda: model.filter(y[..., :0]), r"y \(batch, length, 1\)")
    refused(lambda: model.filter(y, u=torch.zeros(1, 2, 1, dtype=D)), "u of shape")
    refused(
        lambda: model.filter(y, GaussianState(torch.zeros(1, 3, dtype=D), torch.zeros(1, 3, 3, dtype=D))), "state.mean"
    )
    refused(lambda: model.forecast(None, 3), "the state that filter returned")  # type: ignore[arg-type]
    refused(lambda: nees(model.filter(y)[0], y), "true states")
    around = model.filter(y)[0]
    turned = around.mean + 2 * math.pi * torch.tensor([1.0, 0.0], dtype=D)
    assert float(nees(around, turned).min()) > 1
    assert float(nees(around, turned, angles(0)).max()) < 1e-20
    refused(lambda: acceptance(0, 2), "n_runs")
    refused(lambda: acceptance(5, 2, 1.5), "between 0 and 1")
