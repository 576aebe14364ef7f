"""The bases that HiPPO projects on, by their three-term recurrences: stable on their intervals for every order."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


def legendre(n: int, z: Tensor) -> Tensor:
    """P_0(z) to P_{n-1}(z), for z in [-1, 1].

    Shapes:  z: (...)   ->   (n, ...)
    Source:  (k+1) P_{k+1} = (2k+1) z P_k - k P_{k-1}
    """
    values = z.new_empty((n, *z.shape))
    values[0] = 1
    if n > 1:
        values[1] = z
    for k in range(1, n - 1):
        torch.mul(values[k - 1], -k / (k + 1), out=values[k + 1])
        values[k + 1].addcmul_(z, values[k], value=(2 * k + 1) / (k + 1))
    return values


def normalised_legendre(n: int, x: Tensor) -> Tensor:
    """phi_i(x) = sqrt(2i+1) P_i(2x - 1): orthonormal on [0, 1].

    Shapes:  x: (...) in [0, 1]   ->   (n, ...)
    """
    root = (2 * torch.arange(n, dtype=x.dtype, device=x.device) + 1).sqrt()
    return legendre(n, 2 * x - 1) * root.reshape(-1, *[1] * x.ndim)


def laguerre_functions(n: int, x: Tensor, *, alpha: float = 0.0, decay: float = 0.5) -> Tensor:
    """e^(-decay x) L_0(x) to e^(-decay x) L_{n-1}(x), generalised by alpha: orthonormal on [0, infinity) as they are.

    The exponential is in the recurrence from its start, so nothing overflows while decay >= 1/2.

    Shapes:  x: (...) >= 0   ->   (n, ...)
    Source:  (k+1) L_{k+1} = (2k+1+alpha-x) L_k - (k+alpha) L_{k-1}
    """
    values = x.new_empty((n, *x.shape))
    values[0] = torch.exp(-decay * x)
    if n > 1:
        values[1] = (1 + alpha - x) * values[0]
    for k in range(1, n - 1):
        values[k + 1] = ((2 * k + 1 + alpha - x) * values[k] - (k + alpha) * values[k - 1]) / (k + 1)
    return values


def fourier(n: int, x: Tensor) -> Tensor:
    """1, 0, sqrt(2) cos 2 pi x, sqrt(2) sin 2 pi x, sqrt(2) cos 4 pi x, ...: orthonormal on [0, 1], n even.

    The sine of frequency zero keeps its place, as in the matrices.

    Shapes:  x: (...)   ->   (n, ...)
    """
    frequency = torch.arange(n // 2, dtype=x.dtype, device=x.device).reshape(-1, *[1] * x.ndim)
    angle = 2 * math.pi * torch.remainder(frequency * x, 1)
    values = math.sqrt(2) * torch.stack([angle.cos(), angle.sin()], dim=1).flatten(0, 1)
    values[0] = 1
    return values


@lru_cache(maxsize=4)
def gauss_legendre(n: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights on [0, 1] that integrate polynomials of degree 2n - 1 exactly, float64."""
    nodes, weights = np.polynomial.legendre.leggauss(n)
    return (torch.from_numpy(nodes) + 1) / 2, torch.from_numpy(weights) / 2
