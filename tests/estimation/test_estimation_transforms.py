"""The unscented transform as published, and the iterated filter's most likely state."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from estimation_models import D, covariance
from test_estimation import close
from test_estimation_nonlinear import pendulum
from torch import Tensor

from statewise.estimation import Cubature, IteratedExtended, Unscented
from statewise.estimation.transforms import Rows, difference


def published_weights(n: int, alpha: float, beta: float, kappa: float) -> tuple[float, Tensor, Tensor]:
    """lambda, and the weights of mean and covariance: Wan & van der Merwe 2000, eq. 15."""
    scale = alpha**2 * (n + kappa) - n
    mean = torch.full((2 * n + 1,), 1 / (2 * (n + scale)), dtype=D)
    mean[0] = scale / (n + scale)
    cov = mean.clone()
    cov[0] += 1 - alpha**2 + beta
    return scale, mean, cov


@pytest.mark.parametrize(
    "parameters", [(1.0, 0.0, 0.0), (0.5, 2.0, 0.0), (0.3, 0.0, 1.5), (1.0, 2.0, -1.0), (1.2, 0.7, 0.0)]
)
def test_the_unscented_transform_as_published(parameters: tuple[float, float, float]) -> None:
    """With weights of any sign, from square roots alone; and the joint columns give the cross-covariance."""
    g = torch.Generator().manual_seed(0)
    mean, P = torch.randn(3, dtype=D, generator=g), covariance(3, 3, generator=g)
    L = torch.linalg.cholesky(P)

    def function(x: Tensor) -> Tensor:
        return torch.stack([x[0] * x[1], torch.sin(x[2]) + x[0] ** 2])

    scale, wm, wc = published_weights(3, *parameters)
    points = torch.cat([mean[None], mean + math.sqrt(3 + scale) * L.T, mean - math.sqrt(3 + scale) * L.T])
    images = torch.func.vmap(function)(points)
    want = (wm[:, None] * images).sum(0)
    away = images - want
    method = Cubature() if parameters == (1.0, 0.0, 0.0) else Unscented(*parameters)
    method.check(3)
    got = method.transform(Rows("f", function, 2), mean[None], L[None], None, difference)
    close([got.mean[0], got.M[0] @ got.M[0].T], [want, torch.einsum("i,ia,ib->ab", wc, away, away)], 1e-12)
    close([got.X[0] @ got.M[0].T], [torch.einsum("i,ia,ib->ab", wc, points - mean, away)], 1e-12)
    close([got.X[0] @ got.X[0].T], [P], 1e-12)


def test_the_iterated_filter_finds_the_most_likely_state() -> None:
    model = pendulum(IteratedExtended(n_iterations=30), covariance=0.5 * torch.eye(2, dtype=D))
    model = replace(model, R=0.01 * model.R)
    y = torch.tensor([[[0.2]]], dtype=D)
    posterior, _ = model.filter(y)
    ahead = replace(model, R=1e12 * model.R).filter(y)[0]  # the forecast, as nothing is learned

    def misfit(x: Tensor) -> Tensor:
        e = torch.linalg.solve_triangular(ahead.factor[0, 0], (x - ahead.mean[0, 0])[:, None], upper=False)
        return e.square().sum() + (y[0, 0] - torch.sin(x[:1])).square().sum() / model.R[0, 0]

    slope = torch.func.grad(misfit)(posterior.mean[0, 0])
    assert float(slope.abs().max()) < 1e-5
    once = replace(model, method="extended").filter(y)[0].mean[0, 0]
    assert float(misfit(posterior.mean[0, 0])) < float(misfit(once))
