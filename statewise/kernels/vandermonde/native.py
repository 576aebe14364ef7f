"""The Vandermonde product in C (vandermonde.c): two tables of powers and a product for each channel."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.stored import plain
from statewise.native.memory import empty

_LANES = 16  # whole vectors of the widest instruction set, in float32


def forward(c: Tensor, A: Tensor, length: int) -> Tensor:
    """c (w, p, n) and A (w, n), both real or both complex, float32 or float64 -> (w, p, length), real."""
    (w, p, n), dtype = c.shape, c.real.dtype
    if w * p * n * length == 0:
        return torch.zeros(w, p, length, dtype=dtype)
    K = empty(w, p, length, dtype=dtype)
    q = _row(length, 1)
    scratch = _scratch(n, length, q)
    native.function("vandermonde_forward", dtype, "pppllllllpll")(
        plain(c), plain(A), K, w, p, n, length, _parts(c), q, scratch, scratch.shape[1], native.n_threads()
    )
    return K


def backward(grad: Tensor, c: Tensor, A: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The gradients of c and A for one of K (w, p, length)."""
    w, p, n = c.shape
    make = torch.zeros if w * p * n * length == 0 else torch.empty
    dc, dA = make(c.shape, dtype=c.dtype), make(A.shape, dtype=A.dtype)
    if w * p * n * length == 0:
        return dc, dA
    q = _row(length, 2)
    scratch = _scratch(n, length, q)
    native.function("vandermonde_backward", c.real.dtype, "pppppllllllpll")(
        *(plain(grad), plain(c), plain(A), dc, dA, w, p, n, length, _parts(c), q),
        *(scratch, scratch.shape[1], native.n_threads()),
    )
    return dc, dA


def _parts(x: Tensor) -> int:
    return 2 if x.is_complex() else 1


def _row(length: int, times: int) -> int:
    """q, the columns of a table of powers: a power of two near ``times`` sqrt(length), and whole vectors."""
    q = 2 * _LANES
    while q * q < length * times * times and q < 512:
        q *= 2
    return q


def _scratch(n: int, length: int, q: int) -> Tensor:
    """For each thread the squares (up to 62 levels), the rows, the table and the weights of one channel."""
    padded = -(-n // _LANES) * _LANES
    rows = -(-length // q)
    numbers = 2 * padded * (64 + q + 2 * rows) + 2 * padded * (2 * q + 32) + 4 * q
    return torch.empty(native.n_threads(), numbers, dtype=torch.float64)
