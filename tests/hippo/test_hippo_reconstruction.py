"""Reconstruction: bases, spans, many times at once; what cannot be is one clear error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from projected import options, randn
from torch import Tensor

from statewise.errors import InputError
from statewise.hippo import MEASURES, basis, initial_state, project, reconstruct


# Reconstruction
def test_bases_are_orthonormal_to_order_256() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(600)
    x, w = torch.from_numpy(nodes + 1) / 2, torch.from_numpy(weights) / 2
    identity = torch.eye(256, dtype=torch.float64)
    for measure in ("legs", "legt", "fourier"):
        values = basis(measure, 256, x, **({} if measure == "legs" else {"theta": 1.0}))
        expected = identity.clone()
        expected[1, 1] = 0 if measure == "fourier" else 1
        torch.testing.assert_close(values.T @ (w[:, None] * values), expected, rtol=0, atol=1e-11)
    root = torch.linspace(0, 38, 20_001, dtype=torch.float64)  # in sqrt(s) the functions oscillate evenly
    values = basis("lagt", 256, root**2)[:, [0, 1, 17, 200, 255]]
    products = torch.trapezoid(2 * root[:, None, None] * values[:, :, None] * values[:, None], root, dim=0)
    torch.testing.assert_close(products, torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-5)


@pytest.mark.parametrize("measure", ["legs", "lagt", "fourier_diag"])
def test_what_lies_in_the_span_comes_back(measure: str) -> None:
    """A past that is a combination of the functions themselves is reconstructed as it was."""
    n, length, dt, theta = 6, 20_000, 1e-3, 0.5
    ages = dt * (length - 0.5 - torch.arange(length, dtype=torch.float64))
    weights = randn(n, seed=4)
    kwargs = {"elapsed": length * dt} if measure == "legs" else {"theta": theta}
    u = basis(measure, n, ages, **kwargs) @ weights  # type: ignore[arg-type]
    coefficients, _ = project(u[None], measure, n, at=[-1], dt=dt, **options(measure, theta))
    points = torch.linspace(0.2, 0.9, 11, dtype=torch.float64) * (length * dt if measure == "legs" else theta)
    values = reconstruct(coefficients[0, 0], measure, points, **kwargs)  # type: ignore[arg-type]
    expected = basis(measure, n, points, **kwargs) @ weights  # type: ignore[arg-type]
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-4)


def noise(length: int, highest: int) -> Tensor:
    """Band-limited noise: random phases and amplitudes up to ``highest`` periods in the whole length."""
    t = (torch.arange(length, dtype=torch.float64) + 0.5) / length
    k = torch.arange(1, highest + 1, dtype=torch.float64)
    amplitude, phase = randn(highest, seed=5), 2 * math.pi * randn(highest, seed=6)
    return (amplitude * torch.cos(2 * math.pi * t[:, None] * k + phase)).sum(1) / math.sqrt(highest)


@pytest.mark.parametrize("measure", [m for m in MEASURES if m != "fourier_diag"])
def test_reconstruction_gets_better_with_n(measure: str) -> None:
    """The last half of 4000 samples with up to 24 periods: the error falls with n, by orders for the polynomials."""
    u = noise(4000, 24)
    theta = 60.0 if "lagt" in measure else 2000.0
    beta = {"beta": 0.05} if measure in ("tlagt", "glagt") else {}  # their functions reach as far as the measure does
    kwargs = {"elapsed": 4000.0} if measure == "legs" else {"theta": theta, **beta}
    ages = torch.arange(100, 1900, dtype=torch.float64) + 0.5
    expected = u.flip(0)[100:1900]
    errors = []
    for n in (8, 32, 128):
        coefficients, _ = project(u[None], measure, n, at=[-1], **options(measure, theta), **beta)
        values = reconstruct(coefficients[0, 0], measure, ages, **kwargs)  # type: ignore[arg-type]
        errors.append(float((values - expected).square().mean().sqrt() / expected.square().mean().sqrt()))
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < (0.1 if measure == "fourier" else 0.3 if "lagt" in measure else 1e-3)


def test_reconstruction_at_many_times_at_once() -> None:
    u = randn(2, 50, 3)
    coefficients, _ = project(u, "legs", 4)
    elapsed = torch.arange(1, 51, dtype=torch.float64)[:, None]  # of each time, for every channel
    ages = elapsed[..., None] * torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    values = reconstruct(coefficients, "legs", ages, elapsed=elapsed)
    assert values.shape == (2, 50, 3, 3)
    fractions = torch.tensor([0.0, 0.25, 1.0], dtype=torch.float64)
    torch.testing.assert_close(values, reconstruct(coefficients, "legs", fractions))
    assert reconstruct(coefficients.float(), "legs", fractions).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: project(torch.ones(3), "legs", 4), r"real and \(batch, length"),
        (lambda: project(torch.ones(1, 3, dtype=torch.int64), "legs", 4), "a signal is real"),
        (lambda: project(torch.ones(1, 3), "legs", 4, theta=3.0), "legs remembers all of the past"),
        (lambda: project(torch.ones(1, 3), "legt", 4), "legt needs theta"),
        (lambda: project(torch.ones(1, 3), "legt", 4, theta=-1.0), "theta is a length of time"),
        (
            lambda: project(torch.ones(1, 3), "legt", 4, theta=3.0, beta=2.0),
            "beta is of lagt, tlagt and glagt; legt has none",
        ),
        (lambda: project(torch.ones(1, 3), "legt", 4, theta=3.0, dt=0.0), "dt is the time"),
        (lambda: project(torch.ones(1, 3), "legs", 4, method="foh"), "projected by zoh, bilinear, euler, .* got 'foh'"),
        (lambda: project(torch.ones(1, 3), "legt", 4, theta=3.0, method="foh"), "got 'foh'"),
        (lambda: project(torch.ones(1, 3), "fourier", 5, theta=3.0), "use an even n"),
        (lambda: project(torch.ones(1, 3), "laguerre", 4, theta=3.0), "no measure 'laguerre'"),
        (lambda: project(torch.ones(1, 3), "legs", 4, at=[3]), "at has step 3, and the signal has 3 steps"),
        (lambda: project(torch.ones(1, 3), "legs", 4, at=[0.5]), "list of step numbers"),  # type: ignore[list-item]
        (lambda: project(torch.ones(1, 3), "legs", 4, initial_state(2, 4)), r"coefficients \(1, 4\)"),
        (lambda: project(torch.ones(1, 3, 2), "legs", 4, initial_state(1, 4)), r"coefficients \(1, 2, 4\)"),
        (
            lambda: reconstruct(torch.ones(4), "legt", torch.tensor([1.5])),
            "at most 1, as far as legt remembers; got 1.5",
        ),
        (lambda: reconstruct(torch.ones(4), "lagt", torch.tensor([-1.0])), "0 or more; got -1"),
        (lambda: reconstruct(torch.ones(4), "glagt", torch.zeros(1), alpha=-0.5), "infinite at age 0"),
        (lambda: reconstruct(torch.ones(4), "legs", torch.tensor([math.nan])), "got nan"),
        (lambda: reconstruct(torch.ones(4), "legs", torch.tensor([0.1]), theta=2.0), "give elapsed"),
        (lambda: reconstruct(torch.ones(4), "legs", torch.tensor([0.1]), elapsed=0.0), "there is no past"),
        (lambda: reconstruct(torch.ones(4), "legt", torch.tensor([0.1]), elapsed=2.0), "elapsed is for legs"),
        (lambda: reconstruct(torch.ones(4), "legt", torch.tensor(0.1)), "wrap it"),
        (lambda: reconstruct(torch.ones(4, dtype=torch.int64), "legt", torch.ones(1)), "coefficients are real"),
    ],
)
def test_what_cannot_be_is_one_clear_error(call: Any, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)
