"""Arithmetic with numbers kept as an unevaluated sum of two floats: about 75 bits for matrices where float64 has 53.

A stiff matrix squares its exponential dozens of times, and each squaring doubles the rounding errors of the slow
modes. Carrying the rounding of every operation in a second word keeps them below the last bit of the result. It is not
for
autograd: gradients take the plain path (see ``statewise.systems.exponential``).
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class DoubleWord:
    """high + low, with low below the last bit of high (for matrices: of the largest entries of high).

    Sums, products with exact fractions, and matrix products. Real and complex; sums and fractions act on real and
    imaginary parts by themselves.

    Cost:    a matrix product is three of PyTorch's.
    Source:  Dekker 1971; Knuth, TAOCP 2, sec. 4.2.2; the matrix product after Ozaki et al. 2012,
             Numer. Algorithms 59:95, cut after the first slice.
    """

    high: Tensor
    low: Tensor

    def __add__(self, other: DoubleWord | Tensor) -> DoubleWord:
        return self.plus(other)

    def plus(self, other: DoubleWord | Tensor) -> DoubleWord:
        """The sum; torch.compile follows it under this name only."""
        high, rest = two_sum(self.high, other.high if isinstance(other, DoubleWord) else other)
        rest = rest + self.low
        return DoubleWord(*two_sum(high, rest + other.low if isinstance(other, DoubleWord) else rest))

    def __matmul__(self, other: DoubleWord) -> DoubleWord:
        inner = self.high.shape[-1]
        A, B = _leading_bits(self.high, -1, inner), _leading_bits(other.high, -2, inner)
        # A @ B is exact, whatever the order of its sums; the other two products are 2^-20 as large, and so are
        # their roundings
        rest = A @ ((other.high - B) + other.low) + ((self.high - A) + self.low) @ other.high
        return DoubleWord(*two_sum(A @ B, rest))

    def scale(self, factor: Fraction) -> DoubleWord:
        dtype = real_dtype(self.high)
        leading = float(factor)
        if dtype == torch.float32:
            leading = struct.unpack("f", struct.pack("f", leading))[0]
        product = exact_product(torch.full((), leading, dtype=dtype, device=self.high.device), self.high)
        rest = float(factor - Fraction(leading))
        return DoubleWord(*two_sum(product.high, product.low + (rest * self.high + leading * self.low)))

    def __getitem__(self, key: Any) -> DoubleWord:
        return DoubleWord(self.high[key], self.low[key])

    def expand(self, like: Tensor) -> DoubleWord:
        """With the leading axes of another matrix."""
        shape = (*like.shape[:-2], *self.high.shape[-2:])
        return DoubleWord(self.high.expand(shape), self.low.expand(shape))

    def rounded(self) -> Tensor:
        return self.high + self.low


def two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """a + b as rounded, and exactly what the rounding lost."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def exact_product(scale: Tensor, x: Tensor) -> DoubleWord:
    """scale * x for a real scale and a real or complex x, exactly; autograd goes through ``high``.

    Entries so large that their halves overflow have a low word of zero.
    """
    high = scale * x
    with torch.no_grad():
        if x.is_complex():
            s, v, p = scale.unsqueeze(-1), torch.view_as_real(x.resolve_conj()), torch.view_as_real(high)
        else:
            s, v, p = scale, x, high
        (s1, s2), (v1, v2) = _halves(s), _halves(v)
        low = ((s1 * v1 - p) + s1 * v2 + s2 * v1) + s2 * v2
        low = torch.where(low.isfinite(), low, torch.zeros_like(low))
        return DoubleWord(high, torch.view_as_complex(low.contiguous()) if x.is_complex() else low)


def real_dtype(x: Tensor) -> torch.dtype:
    """The dtype of the real part. (``dtype.to_real`` cannot be compiled.)"""
    return torch.float64 if x.dtype in (torch.float64, torch.complex128) else torch.float32


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as a sum of two numbers of half its bits."""
    bits = 27 if x.dtype == torch.float64 else 12
    c = (2.0**bits + 1) * x
    high = c - (c - x)
    return high, x - high


def _leading_bits(x: Tensor, dim: int, inner: int) -> Tensor:
    """x rounded to so few bits below the largest entry along ``dim`` that a sum of ``inner`` products is exact."""
    parts = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    if x.is_complex():
        dim, inner = dim - 1, 2 * inner
    bits = (52 - math.ceil(math.log2(max(inner, 2)))) // 2
    largest = parts.abs().amax((dim, -1) if x.is_complex() else dim, keepdim=True)
    exponent = torch.frexp(largest)[1]
    # adding 1.5 * 2^(e - bits + 52) rounds to a multiple of 2^(e - bits)
    shift = torch.ldexp(torch.full_like(largest, 1.5), (exponent + (52 - bits)).clamp(max=1023))
    parts = (parts + shift) - shift
    return torch.view_as_complex(parts) if x.is_complex() else parts
