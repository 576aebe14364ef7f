"""Signals and options of projection."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from statewise.hippo import project

THETA = 0.7
DURATION = 2.0


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def options(measure: str, theta: float = THETA) -> dict[str, Any]:
    return {} if measure == "legs" else {"theta": theta}


def smooth(t: Tensor) -> Tensor:
    """Analytic, and zero with its first derivatives at t = 0, where the sliding windows begin empty."""
    return (1 - torch.exp(-((t / 0.3) ** 4))) * (torch.sin(5 * t) + 0.4 * torch.cos(11 * t + 1))


def tilted(measure: str, n: int, s: Tensor, alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """The functions g_i of HiPPO's Laguerre measures, from scipy's polynomials, and the density of the measure at s.

    glagt's are orthonormal under a density of mass 1; tlagt's are plain polynomials under e^(-beta s).
    """
    i = np.arange(n)[:, None]
    functions = special.eval_genlaguerre(i, alpha, s.numpy()) * np.exp(-(1 - beta) * s.numpy() / 2)
    weight = np.exp(-beta * s.numpy())
    if measure == "glagt":
        mass = special.gamma(1 - alpha) * beta ** (alpha - 1)
        norm = np.sqrt(mass * special.gamma(i + 1) / special.gamma(i + alpha + 1))
        functions, weight = norm * functions * s.numpy() ** alpha, weight * s.numpy() ** -alpha / mass
    return torch.from_numpy(functions), torch.from_numpy(weight)


def simulated(measure: str, n: int, length: int, method: str = "zoh", where: float = 0.5, **kwargs: float) -> Tensor:
    dt = DURATION / length
    u = smooth((torch.arange(length, dtype=torch.float64) + where) * dt)[None]
    return project(u, measure, n, at=[-1], dt=dt, method=method, **options(measure), **kwargs)[0][0, 0]
