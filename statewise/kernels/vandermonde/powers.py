"""Powers A^0, A^1, A^2, ... as accurate as their dtype allows, however long.

Repeated squaring in plain arithmetic doubles the relative error each time, and exp(l log A) multiplies that of the
logarithm by l: at l = 16,384 either is about 1e-12 in float64. So each square keeps what its rounding lost, by
error-free products (Dekker 1971; Ogita, Rump & Oishi 2005, "Accurate sum and dot product", algorithms 3.1 to 3.3).
"""

from __future__ import annotations

import torch
from torch import Tensor

_SPLITTER = 2.0**27 + 1


def squares(A: Tensor, count: int, *, compensated: bool) -> list[Tensor]:
    """[A, A^2, A^4, ...], ``count`` of them, for A of dtype float64 or complex128.

    With ``compensated`` each has a relative error of about 2e-16; without, of up to its exponent times 2e-16.
    """
    found, lost = [A], torch.zeros_like(A)  # lost: the true power is found (1 + lost)
    exact = [A]
    for _ in range(count - 1):
        square = found[-1] * found[-1]
        if compensated:
            relative = _rounding_of_square(found[-1], square) / square
            lost = 2 * lost + torch.where(relative.isfinite(), relative, 0)  # a power that is 0 has lost nothing
            exact.append(square + square * lost)
        else:
            exact.append(square)
        found.append(square)
    return exact[:count]


def rounded_squares(A: Tensor, count: int) -> tuple[Tensor, ...]:
    """(A, A^2, A^4, ...), ``count`` of them in the dtype of A, each rounded once: squared in float64."""
    precise = A.to(torch.complex128 if A.is_complex() else torch.float64)
    return tuple(square.to(A.dtype) for square in squares(precise, count, compensated=False))


def powers(squares: list[Tensor], count: int) -> Tensor:
    """(..., count): A^0, ..., A^(count - 1), by doubling, each the product of at most log2(count) squares."""
    A = squares[0]
    table = torch.empty(*A.shape, count, dtype=A.dtype, device=A.device)
    table[..., 0] = 1
    have, level = 1, 0
    while have < count:
        more = min(have, count - have)
        torch.mul(table[..., :more], squares[level].unsqueeze(-1), out=table[..., have : have + more])
        have, level = have + more, level + 1
    return table


def _rounding_of_square(x: Tensor, square: Tensor) -> Tensor:
    """x^2 - square, where square = fl(x^2), to the relative accuracy of the dtype."""
    if not x.is_complex():
        return _rounding_of_product(x, x, square)
    re, im = x.real, x.imag
    re_re, im_im, re_im = re * re, im * im, re * im
    difference = re_re - im_im
    part = difference - re_re  # error-free subtraction (Knuth's two-sum)
    rounding = (re_re - (difference - part)) - (im_im + part)
    rounding = rounding + _rounding_of_product(re, re, re_re) - _rounding_of_product(im, im, im_im)
    real = rounding + (difference - square.real)  # how the square was computed is not known, only its value
    imag = 2 * _rounding_of_product(re, im, re_im) + (2 * re_im - square.imag)
    return torch.complex(real, imag)


def _rounding_of_product(a: Tensor, b: Tensor, product: Tensor) -> Tensor:
    """a b - product exactly, for product = fl(a b)."""
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)


def _split(a: Tensor) -> tuple[Tensor, Tensor]:
    """a = high + low, each of at most 26 bits, so that their products are exact."""
    scaled = _SPLITTER * a
    high = scaled - (scaled - a)
    return high, a - high
