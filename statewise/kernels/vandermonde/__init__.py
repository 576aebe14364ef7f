"""The Vandermonde product K_l = sum_n c_n A_n^l: the impulse response of a diagonal system."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.arguments import Sizes
from statewise.kernels.vandermonde import native, pytorch
from statewise.kernels.vandermonde.reference import vandermonde_differentiable, vandermonde_reference

__all__ = ["vandermonde", "vandermonde_reference"]


def _negative(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    return None if given["length"] >= 0 else f"a length of at least 0; got {given['length']}"


_vandermonde = register_with_adjoint(
    "vandermonde",
    "Tensor c, Tensor A, SymInt length",
    native,
    pytorch,
    definition=vandermonde_differentiable,
    takes={"c": "w p n: number", "A": "w n: as c"},
    gives={"K": "w p length: parts c"},
    needs=_negative,
)


def vandermonde(c: Tensor, A: Tensor, length: int) -> Tensor:
    """K_l = sum_n c_n A_n^l for l < length; twice its real part if c or A is complex (conjugate pairs, one of each).

    Shapes:   c: (width, n) or (width, p, n)   A: (width, n)   ->   (width, length) or (width, p, length), real
    Cost:     O(width p n length) in matrix products, and tables of about 2 sqrt(length) powers for each A, a few
              channels at a time; the adjoint recomputes them. Nothing of size (width, n, length) is made, except
              by second derivatives, which go through the plain form.
    Numerics: in float32, or float64 if an input is; lower dtypes are widened. The powers are computed in float64
              (in Triton, which has no float64 inputs, from logarithms of 64 bits).
              Relative to max |K|, the error is about 1e-6 in float32, and in float64 below 1e-14 at a length of
              16,384 with |A| = 1. A that grows, |A| > 1, is computed too, but only while |A|^length, and in the
              adjoint its sums, stay below the largest number of the dtype: beyond it the result may be NaN where
              the sum is 0 or infinite. A = 0 is exact (0^0 = 1), and so is its derivative.
    Errors:   InputError if the shapes disagree or the length is negative; the message gives them.
    Source:   Gu et al. 2022 (S4D), arXiv:2206.11893, sec. 3.1 and eq. 6.

    >>> vandermonde(torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 0.5]]), 4)
    tensor([[3.0000, 2.0000, 1.5000, 1.2500]])
    """
    if A.ndim != 2 or c.ndim not in (2, 3) or (c.shape[0], c.shape[-1]) != tuple(A.shape):
        raise InputError(
            f"vandermonde needs c (width, n) or (width, p, n) and A (width, n); got {tuple(c.shape)}, {tuple(A.shape)}"
        )
    if not isinstance(length, (int, torch.SymInt)) or length < 0:
        raise InputError(f"vandermonde needs a length that is an integer >= 0; got {length!r}")
    dtype = torch.float64 if {c.dtype, A.dtype} & {torch.float64, torch.complex128} else torch.float32
    if c.is_complex() or A.is_complex():
        dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
    c, A = c.to(dtype), A.to(dtype)
    K: Tensor = _vandermonde(c if c.ndim == 3 else c.unsqueeze(1), A, length)
    return K if c.ndim == 3 else K.squeeze(1)
