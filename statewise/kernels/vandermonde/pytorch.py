"""The Vandermonde product by two tables of powers and a matrix product; and its adjoint.

With l = i q + j, A^l = (A^q)^i A^j: sum_n c_n A_n^l is the product of the matrices (c_n A_n^(q i)) and (A_n^j),
and both tables have about sqrt(length) columns. Notation: w width, p outputs, n state, i blocks of q steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.kernels.pairs import as_complex
from statewise.kernels.vandermonde.powers import powers, squares

_BLOCK = 2**16  # numbers in a table: a megabyte of complex128
_ELSEWHERE = 2**24  # on a device that is not a CPU


class Tables(NamedTuple):
    """small: (w, n, q) powers A^j; big: (w, n, i) powers A^(q i); both float64 or complex128."""

    channels: slice
    small: Tensor
    big: Tensor


def forward(c: Tensor, A: Tensor, length: int) -> Tensor:
    """c (w, p, n) and A (w, n), both real or both complex -> (w, p, length) in their real dtype."""
    (w, p, _), dtype = c.shape, c.real.dtype
    K = torch.empty(w, p, length, dtype=dtype, device=c.device)
    if K.numel() == 0 or A.numel() == 0:
        return K.zero_()
    for channels, small, big in _tables(A, length, p):
        here = small.shape[0]
        q, i = small.shape[2], big.shape[2]
        coefficients = c[channels].mT.unsqueeze(3)  # (w, n, p, 1)
        left = _stacked(coefficients * big.to(c.dtype).unsqueeze(2), dtype, sign=-1).reshape(here, -1, p * i)
        right = _stacked(small, dtype).reshape(here, -1, q)
        if q * i == length:
            torch.bmm(left.mT, right, out=K[channels].view(here, p * i, q))
        else:
            K[channels] = torch.bmm(left.mT, right).view(here, p, i * q)[..., :length]
    return K.mul_(2) if c.is_complex() else K


def backward(grad: Tensor, c: Tensor, A: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Gradients of c and A: sum_l grad_l A^l, and c sum_l grad_l l A^(l-1), conjugated and doubled if complex.

    The derivative of A^(q i + j) is (q i) A^(q i - 1) A^j + A^(q i) j A^(j - 1): nothing is divided by A.
    """
    (_, p, n), dtype = c.shape, c.real.dtype
    dc, dA = (torch.zeros(m.shape, dtype=m.dtype, device=m.device) for m in (c, A))
    if grad.numel() == 0 or A.numel() == 0:
        return dc, dA
    for channels, small, big in _tables(A, length, p):
        here, q, i = small.shape[0], small.shape[2], big.shape[2]
        padded = grad[channels]
        if q * i != length:
            padded = torch.nn.functional.pad(padded, (0, q * i - length))
        d_small, d_big = torch.zeros_like(small), torch.zeros_like(big)
        steps = torch.arange(1, max(q, i), dtype=torch.float64, device=c.device)
        torch.mul(small[..., :-1], steps[: q - 1], out=d_small[..., 1:])
        torch.mul(big[..., :-1], small[..., -1:] * (q * steps[: i - 1]), out=d_big[..., 1:])
        right = torch.cat([_stacked(small, dtype), _stacked(d_small, dtype)], 1).reshape(here, -1, q)
        inner = torch.bmm(right, padded.reshape(here, p * i, q).mT)
        inner = inner.view(here, 2, -1, n, p, i)  # (w, derivative, re and im, n, p, i)
        inner = as_complex(inner.movedim(2, -1)) if c.is_complex() else inner.squeeze(2)
        value, slope = inner.unbind(1)  # (w, n, p, i)
        big, d_big = big.to(c.dtype).unsqueeze(2), d_big.to(c.dtype).unsqueeze(2)
        dc[channels] = (value * big).sum(-1).mT
        dA[channels] = ((value * d_big + slope * big).sum(-1) * c[channels].mT).sum(-1)
    return (dc.conj_physical_().mul_(2), dA.conj_physical_().mul_(2)) if c.is_complex() else (dc, dA)


def _tables(A: Tensor, length: int, p: int) -> Iterator[Tables]:
    """The two tables, some channels at a time; in float64 whatever A is, and compensated if A is that wide."""
    q = 2 ** math.ceil(math.log2(math.sqrt(length)))
    i = -(-length // q)
    precise = A.to(torch.complex128 if A.is_complex() else torch.float64)
    levels = max(1, math.ceil(math.log2(q))) + max(1, math.ceil(math.log2(i)))
    all_squares = squares(precise, levels, compensated=A.real.dtype == torch.float64)
    limit = _BLOCK if A.device.type == "cpu" else _ELSEWHERE
    block = max(1, limit // (A.shape[1] * max(q, p * i)))
    for start in range(0, A.shape[0], block):
        channels = slice(start, min(start + block, A.shape[0]))
        here = [square[channels] for square in all_squares]
        yield Tables(channels, powers(here, q), powers(here[round(math.log2(q)) :], i))


def _stacked(x: Tensor, dtype: torch.dtype, sign: int = 1) -> Tensor:
    """(w, ...) -> (w, 2, ...) real: the real part and ``sign`` times the imaginary part; (w, 1, ...) if real."""
    if not x.is_complex():
        return x.to(dtype).unsqueeze(1)
    stacked = torch.empty(x.shape[0], 2, *x.shape[1:], dtype=dtype, device=x.device)
    stacked[:, 0] = x.real
    stacked[:, 1] = x.imag if sign == 1 else -x.imag
    return stacked
