"""HiPPO's translated and generalised Laguerre measures against the inner products that define them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from projected import DURATION, THETA, randn, simulated, smooth, tilted
from scipy import special

from statewise.hippo import basis, project, reconstruct

LAGUERRE = [("tlagt", 0.0, 1.0), ("tlagt", 0.0, 0.0), ("tlagt", 0.0, -0.5), ("tlagt", 0.0, 2.0)]
LAGUERRE += [("glagt", 0.0, 0.01), ("glagt", 0.5, 1.0), ("glagt", -0.5, 0.3), ("glagt", 0.9, 2.0)]


@pytest.mark.parametrize(("measure", "alpha", "beta"), LAGUERRE)
def test_laguerre_measures_are_their_inner_products(measure: str, alpha: float, beta: float) -> None:
    """The definition: the past times the functions, integrated over the measure. Extrapolated from two steps."""
    n = 12
    nodes, weights = np.polynomial.legendre.leggauss(200)
    s, w = DURATION / THETA * torch.from_numpy(nodes + 1) / 2, DURATION / THETA * torch.from_numpy(weights) / 2
    functions, density = tilted(measure, n, s, alpha, beta)
    exact = functions @ (w * density * smooth(DURATION - THETA * s))
    kwargs = {"beta": beta} if measure == "tlagt" else {"alpha": alpha, "beta": beta}
    coarse, fine = (simulated(measure, n, length, **kwargs) for length in (1000, 2000))
    torch.testing.assert_close((4 * fine - coarse) / 3, exact, rtol=0, atol=1e-7 * float(exact.abs().max() + 1))


@pytest.mark.parametrize(("measure", "alpha", "beta"), LAGUERRE)
def test_laguerre_functions_are_orthogonal_in_their_measure(measure: str, alpha: float, beta: float) -> None:
    """Under the weight s^alpha e^-s that the product of two functions and the measure makes, by Gauss's rule for it:
    a sum over its nodes and no truncation. And the functions are those of scipy's polynomials."""
    n = 20
    s, w = (torch.from_numpy(m) for m in special.roots_genlaguerre(40, alpha))
    kwargs = {"beta": beta} if measure == "tlagt" else {"alpha": alpha, "beta": beta}
    values = basis(measure, n, 3.0 * s, theta=3.0, **kwargs)  # type: ignore[arg-type]
    expected, density = tilted(measure, n, s, alpha, beta)
    torch.testing.assert_close(values, expected.T, rtol=1e-9, atol=1e-9)
    weight = w * density / (s**alpha * torch.exp(-s))
    products = values.T @ (weight[:, None] * values)
    torch.testing.assert_close(products, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-10)


def test_laguerre_measures_contain_each_other() -> None:
    u = randn(1, 60)
    plain, _ = project(u, "lagt", 8, theta=5.0)
    none, _ = project(u, "tlagt", 8, theta=5.0, beta=0.0)
    torch.testing.assert_close(none, plain, rtol=0, atol=1e-14)
    translated, _ = project(u, "tlagt", 8, theta=5.0, beta=0.3)
    general, _ = project(u, "glagt", 8, theta=5.0, beta=0.3)
    torch.testing.assert_close(general, math.sqrt(0.3) * translated)
    ages = torch.linspace(0, 20, 7, dtype=torch.float64)
    torch.testing.assert_close(
        reconstruct(general, "glagt", ages, theta=5.0, beta=0.3),
        reconstruct(translated, "tlagt", ages, theta=5.0, beta=0.3),
    )
