"""Observations that the steps before tell exactly have no density: one line says so, in every form."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from estimation_models import D, refused
from torch import Tensor

from statewise import kernels
from statewise.estimation import LinearGaussian, NonlinearGaussian
from statewise.estimation.transforms import METHODS


def m(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=D)


EYE = torch.eye(2, dtype=D)
A = m([0.6, 0.3], [-0.2, 0.8])
# and the step at which nothing new can be seen
SINGULAR = {
    "a number": (LinearGaussian(m([0.9]), m([0.0]), m([1.0]), m([0.0])), 1),
    "known from the start": (LinearGaussian(m([0.9]), m([0.0]), m([1.0]), m([0.0]), covariance=m([0.0])), 0),
    "two numbers": (LinearGaussian(A, 0 * EYE, m([1.0, 0.3]), m([0.0]), covariance=100 * EYE), 2),
    "a sensor twice": (LinearGaussian(A, EYE, m([1.0, 0.3], [0.7, 0.21]), 0 * EYE), 0),
    "one exact sensor": (
        LinearGaussian(A, 0 * EYE, m([1.0, 0.3], [0.0, 1.0]), torch.diag(torch.tensor([0.0, 1.0], dtype=D))),
        2,
    ),
}
LINE = 1e-2 * torch.arange(20, dtype=D).reshape(1, 20, 1)


@pytest.mark.parametrize("kernel", ["auto", "torch"])
@pytest.mark.parametrize("form", LinearGaussian.forms)
@pytest.mark.parametrize("name", SINGULAR)
def test_an_innovation_without_variance_is_refused(name: str, form: str, kernel: str) -> None:
    model, step = SINGULAR[name]
    y = model.simulate(2, 20, generator=torch.Generator().manual_seed(0))[1]
    told = rf"singular at step {step} of row 0.*give R a positive variance"
    with kernels.use(kernel):  # type: ignore[arg-type]
        if form == "recurrent":  # covariances keep fewer digits, and so notice later
            told = "singular at step"
        elif form != "square_root":
            told = f"form '{form}' needs noise in every part of y"
        refused(lambda: model.filter(y, form=form), told)
        refused(lambda: model.smooth(y, form=form), "singular at step" if form == "recurrent" else "needs noise")


def test_what_follows_may_be_left_out() -> None:
    """A number that says nothing new is no fault if it is missing; nor is one beside a smooth trend, which is new."""
    model, _ = SINGULAR["a number"]
    y = torch.full((1, 20, 1), torch.nan, dtype=D)
    y[0, 3] = 2.0
    for form in ("recurrent", "square_root"):
        posterior = model.filter(y, form=form)[0]
        assert bool(posterior.log_likelihood.isfinite())
        assert float(posterior.mean[0, -1, 0]) == pytest.approx(2.0 * 0.9**16)
    trend = LinearGaussian(
        m([1.0, 1.0], [0.0, 1.0]), m([0.0, 0.0], [0.0, 1e-6]), m([1.0, 0.0]), m([0.0]), covariance=1e6 * EYE
    )
    want, got = (trend.filter(LINE, form=form)[0].log_likelihood for form in ("recurrent", "square_root"))
    assert float(got) == pytest.approx(float(want), rel=1e-4)  # covariances lose digits
    narrow = LinearGaussian(*[k.float() for k in (trend.A, trend.Q, trend.C, trend.R)], covariance=1e6 * EYE.float())
    assert float(narrow.filter(LINE.float())[0].log_likelihood) == pytest.approx(float(want), rel=1e-2)


def test_an_innovation_without_variance_within_vmap() -> None:
    """Of one copy of several, also where numbers are missing; and none of them where all have a density."""
    y = torch.arange(8.0, dtype=D).reshape(1, 8, 1)
    gaps = torch.stack([y, y, y])
    gaps[1, 0, 1:] = torch.nan

    def likelihood(y: Tensor, R: Tensor) -> Tensor:
        return LinearGaussian(m([0.9]), m([0.0]), m([1.0]), R.reshape(1, 1)).filter(y)[0].log_likelihood

    R = torch.tensor([0.5, 0.0, 1.0], dtype=D)
    found = torch.func.vmap(likelihood)(gaps, R)
    torch.testing.assert_close(found, torch.stack([likelihood(*each) for each in zip(gaps, R)]))
    refused(lambda: torch.func.vmap(likelihood, in_dims=(None, 0))(y, R), "covariance is singular: R has no noise")
    refused(
        lambda: torch.func.vmap(likelihood, in_dims=(0, None))(gaps, R[1]), "covariance is singular: R has no noise"
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", SINGULAR)
def test_an_innovation_without_variance_of_functions(name: str, method: str) -> None:
    model, _ = SINGULAR[name]
    y = model.simulate(2, 20, generator=torch.Generator().manual_seed(0))[1]
    A, C = model.A, model.C
    given = NonlinearGaussian(
        lambda x: A @ x, model.Q, lambda x: C @ x, model.R, covariance=model.covariance, method=method
    )
    refused(lambda: given.filter(y + 1), "singular at step .*give R a positive variance")
    refused(lambda: given.smooth(y + 1), "singular at step")
    moved = replace(
        given, Q=given.Q + 1e-6 * torch.eye(len(A), dtype=D), R=given.R + 1e-12 * torch.eye(len(C), dtype=D)
    )
    assert bool(moved.filter(y)[0].log_likelihood.isfinite().all())
