"""The block FFT of the fused convolution (triton_kernels.py) in PyTorch: its tables, a filter's spectrum, and back.

A window of n = N1 N2 real numbers is taken at the n odd half frequencies, x^(f) = sum_t x_t e(-(f + 1/2) t / n) with
e(a) = exp(2 pi i a): what wraps around changes its sign, which nobody sees, and frequencies f and n - 1 - f are
conjugates, so that exactly half of them are enough. With t = n1 N2 + n2 and f = k1 + N1 k2, for k1 < N1 / 2,

    x^ = ((F1 x) * T) F2,   F1 = e(-(k1 + 1/2) n1 / N1),   T = e(-(k1 + 1/2) n2 / n),   F2 = e(-n2 k2 / N2).

Source: the split into two products and a table is that of Gentleman and Sande 1966; on matrix units and fused with the
filter, Fu et al. 2023 (FlashFFTConv), arXiv:2311.05908. The half frequencies stand for their packing of two real
windows into a complex one: a row's rounding is its own.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor


class Tables(NamedTuple):
    """first (2, N1 / 2, N1), twiddle (2, N1 / 2, N2) and second (2, N2, N2): real and imaginary parts."""

    first: Tensor
    twiddle: Tensor
    second: Tensor


@functools.lru_cache(maxsize=16)
def tables(half: int, n2: int, device: torch.device) -> Tables:
    """For N1 = 2 ``half``, rounded once to float32. They are kept: a CUDA graph could not make them."""

    def turns(rows: Tensor, columns: int, denominator: int) -> Tensor:
        steps = -rows[:, None] * torch.arange(columns, device=device) % denominator  # in whole numbers
        angle = 2 * math.pi * steps.double() / denominator
        return torch.stack([angle.cos(), angle.sin()]).float()

    frequencies = 2 * torch.arange(half, device=device) + 1  # twice as large
    return Tables(
        turns(frequencies, 2 * half, 4 * half),
        turns(frequencies, n2, 4 * half * n2),
        turns(torch.arange(n2, device=device), n2, n2),
    )


def spectra(K: Tensor, half: int, n2: int) -> Tensor:
    """(..., taps <= half n2) -> (..., 2, half, n2) in float32."""
    first, twiddle, second = tables(half, n2, K.device)
    x = torch.nn.functional.pad(K.float(), (0, half * n2 - K.shape[-1])).unflatten(-1, (half, n2))
    re, im = first[0, :, :half] @ x, first[1, :, :half] @ x
    re, im = re * twiddle[0] - im * twiddle[1], re * twiddle[1] + im * twiddle[0]
    return torch.stack([re @ second[0] - im @ second[1], re @ second[1] + im @ second[0]], -3)


def responses(spectrum: Tensor, taps: int) -> Tensor:
    """The inverse of :func:`spectra`: (..., 2, half, n2) -> (..., taps)."""
    half, n2 = spectrum.shape[-2:]
    first, twiddle, second = tables(half, n2, spectrum.device)
    re, im = spectrum.unbind(-3)
    re, im = re @ second[0] + im @ second[1], im @ second[0] - re @ second[1]
    re, im = re * twiddle[0] + im * twiddle[1], im * twiddle[0] - re * twiddle[1]
    x = first[0, :, :half].mT @ re + first[1, :, :half].mT @ im
    return (x * (1.0 / (half * n2))).flatten(-2)[..., :taps]
