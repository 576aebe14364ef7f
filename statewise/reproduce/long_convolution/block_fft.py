"""The FFT of a real sequence as products with small matrices: F_N = P (I x F_N1) P^T D (I x F_N2) P.

With t = n1 + N1 n2 and k = k2 + N2 k1 the transform of N = N1 N2 points falls apart into N1 transforms of N2 points,
a multiplication by the twiddles D, and N2 transforms of N1 points:

    X[k2 + N2 k1] = sum_n1 W_N1^(n1 k1)  W_N^(n1 k2)  sum_n2 W_N2^(n2 k2) x[n1 + N1 n2]      W_n = exp(-2 pi i / n)

x is real, so the inner sums for N2 - k2 are the conjugates of those for k2, and so is all that follows from them: only
k2 = 0 ... N2 // 2 is computed. These functions are the definition, plain and in any dtype; block_convolution.py is the
fast form.

Source: Fu et al. 2023 (H3), arXiv:2212.14052, sec. 4.1 and appendix C (FlashConv); Bailey (1990), the four-step FFT.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def dft_matrix(n: int, *, dtype: torch.dtype = torch.complex128) -> Tensor:
    """F_n = exp(-2 pi i k t / n), (k, t). The angle is rounded once: k t is taken modulo n before."""
    index = torch.arange(n)
    return _roots(torch.outer(index, index), n).to(dtype)


def twiddles(n1: int, n2: int, *, dtype: torch.dtype = torch.complex128) -> Tensor:
    """D: exp(-2 pi i n1 k2 / (N1 N2)) by (k2, n1), for k2 = 0 ... N2 - 1."""
    return _roots(torch.outer(torch.arange(n2), torch.arange(n1)), n1 * n2).to(dtype)


def half(n2: int) -> int:
    """How many k2 are computed: the others are conjugates of these."""
    return n2 // 2 + 1


def block_fft(x: Tensor, n1: int, n2: int) -> Tensor:
    """The DFT of complex or real x (..., N1 N2), factor by factor as the formula has them. O(N (N1 + N2)) work."""
    x = x.to(torch.promote_types(x.dtype, torch.complex64))
    grid = x.unflatten(-1, (n2, n1)).mT  # P: (..., n1, n2), the points of one inner transform side by side
    grid = grid @ dft_matrix(n2, dtype=x.dtype).mT  # I x F_N2: (..., n1, k2)
    grid = grid.mT * twiddles(n1, n2, dtype=x.dtype)  # P^T D: (..., k2, n1)
    grid = grid @ dft_matrix(n1, dtype=x.dtype).mT  # I x F_N1: (..., k2, k1)
    return grid.mT.flatten(-2)  # P: k = k2 + N2 k1


def block_rfft(x: Tensor, n1: int, n2: int) -> Tensor:
    """X_k of real x (..., N1 N2) for k = 0 ... N // 2, as ``torch.fft.rfft``, from the half of the k2 alone."""
    return unfold_spectrum(real_blocks(x, n1, n2), n1, n2)


def block_irfft(X: Tensor, n1: int, n2: int) -> Tensor:
    """The inverse of :func:`block_rfft`: (..., N // 2 + 1) -> real (..., N)."""
    return from_real_blocks(fold_spectrum(X, n1, n2), n1, n2)


def real_blocks(x: Tensor, n1: int, n2: int) -> Tensor:
    """The spectrum of real x (..., N1 N2) as it is computed: (..., N2 // 2 + 1, N1) by (k2, k1), complex.

    Where k2 is 0, and N2 / 2 of an even N2, the row holds the values of both halves: nothing else is done twice.
    """
    dtype = torch.promote_types(x.dtype, torch.complex64)
    inner = dft_matrix(n2, dtype=dtype)[: half(n2)] @ x.unflatten(-1, (n2, n1)).to(dtype)  # (..., k2, n1)
    return (inner * twiddles(n1, n2, dtype=dtype)[: half(n2)]) @ dft_matrix(n1, dtype=dtype).mT


def from_real_blocks(blocks: Tensor, n1: int, n2: int) -> Tensor:
    """The inverse of :func:`real_blocks`: each factor conjugated, in turn from the last; the missing k2 add the
    conjugates of what is there, so that these count twice and the real part is taken."""
    dtype = blocks.dtype
    outer = blocks @ dft_matrix(n1, dtype=dtype).conj().mT * twiddles(n1, n2, dtype=dtype)[: half(n2)].conj()
    inner = dft_matrix(n2, dtype=dtype)[: half(n2)].conj().mT * counts(n2, blocks.real.dtype)
    return (inner @ outer).real.flatten(-2) / (n1 * n2)


def counts(n2: int, dtype: torch.dtype) -> Tensor:
    """For how many of all N2 rows each computed row stands: 1 or 2."""
    k2 = torch.arange(half(n2))
    return torch.where((k2 == 0) | (2 * k2 == n2), 1, 2).to(dtype)


def unfold_spectrum(blocks: Tensor, n1: int, n2: int) -> Tensor:
    """(..., k2, k1) -> X_k, k = 0 ... N // 2: X_(N - k) = conj X_k where k2 > N2 // 2."""
    k = torch.arange(n1 * n2 // 2 + 1)
    here = k % n2 < half(n2)
    source = torch.where(here, k, n1 * n2 - k)
    values = blocks[..., source % n2, source // n2]
    return torch.where(here, values, values.conj())


def fold_spectrum(X: Tensor, n1: int, n2: int) -> Tensor:
    """The inverse of :func:`unfold_spectrum`."""
    k = torch.arange(half(n2))[:, None] + n2 * torch.arange(n1)
    here = k <= n1 * n2 // 2
    values = X[..., torch.where(here, k, n1 * n2 - k)]
    return torch.where(here, values, values.conj())


def _roots(power: Tensor, n: int) -> Tensor:
    """exp(-2 pi i power / n), exact where it is 1, -1 or on an axis."""
    turns = (power % n).to(torch.float64) / n
    angle = -2 * math.pi * turns
    real, imaginary = torch.cos(angle), torch.sin(angle)
    quarter = (power % n) * 4
    for value, re, im in ((1, 0.0, -1.0), (2, -1.0, 0.0), (3, 0.0, 1.0)):
        there = quarter == value * n
        real, imaginary = real.masked_fill(there, re), imaginary.masked_fill(there, im)
    return torch.complex(real, imaginary)
