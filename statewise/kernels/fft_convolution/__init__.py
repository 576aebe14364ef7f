"""The causal convolution y_t = sum_i K_i u_{t-i} with a long filter, by FFT, as one differentiable operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import Path, Refusal, register_with_adjoint
from statewise.kernels.arguments import Sizes
from statewise.kernels.fft_convolution import native, pytorch
from statewise.kernels.fft_convolution.reference import fft_convolution_differentiable, fft_convolution_reference

__all__ = ["fft_convolution", "fft_convolution_reference"]


def _no_taps(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    return None if sizes["taps"] else "a filter of at least one tap; got none"


def register_convolution(name: str, native: Path | None, pytorch: Path, refusal: Refusal) -> Callable[..., Tensor]:
    """``statewise::name``, from what computes it and its adjoint."""
    return register_with_adjoint(
        name,
        "Tensor u, Tensor impulse_response, Tensor? history",
        native,
        pytorch,
        definition=fft_convolution_differentiable,
        takes={"u": "b l w t: floating", "impulse_response": "w p taps: floating", "history": "b taps-1 w t: floating"},
        gives={"y": "b l w p t: as u"},
        needs=_no_taps,
        refusal=refusal,
    )


_fft_convolution = register_convolution("fft_convolution", native, pytorch, native.refusal)


def fft_convolution(u: Tensor, impulse_response: Tensor, history: Tensor | None = None) -> Tensor:
    """Causal convolution with a long filter, by FFT: y_t = sum_{i < taps} K_i u_{t-i}.

    Shapes:   u: (batch, length, width, *trailing)   impulse_response: (width, taps), or (width, p, taps) for p
              outputs of each channel; history: (batch, taps - 1, width, *trailing), the inputs before u, oldest
              first, zero if not given   ->   y: (batch, length, width, *trailing) or (..., width, p, *trailing),
              in the dtype of u.
    Cost:     O(length log taps) for each channel, as one FFT over the sequence, or in chunks of overlap-save where
              the filter is much shorter. Memory above the output: a few times the padded filters and one row of
              the batch, and not more than about 100 MB on a CPU unless one channel alone needs it.
    Numerics: real FFTs in float32, or float64 if an input is; lower dtypes are widened. An FFT's rounding is
              relative to the largest value around: the error is at most about 1e-6 (float32) or 2e-15 (float64)
              of sum_i |K_i| max|u|, also where y itself is small. One NaN in u spoils its chunk and channel.
              Triton's kernel, where it is asked for, multiplies bfloat16 and float16 in float16: about 1e-3.
    Errors:   InputError if shapes or dtypes do not fit; the message gives them.
    Source:   Gu et al. 2022 (S4), arXiv:2111.00396, sec. 2.4; overlap-save: Stockham (1966).

    >>> import torch
    >>> fft_convolution(torch.ones(1, 3, 1), torch.tensor([[1.0, 10.0]])).flatten()
    tensor([ 1., 11., 11.])
    """
    return convolve("fft_convolution", _fft_convolution, u, impulse_response, history)


def convolve(name: str, operator: Callable[..., Tensor], u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    """The registered operator, for arguments as the public functions take them."""
    if u.ndim < 3 or K.ndim not in (2, 3) or K.shape[0] != u.shape[2] or K.shape[-1] < 1:
        raise InputError(
            f"{name} needs u (batch, length, width, ...) and impulse_response (width, taps >= 1) or "
            f"(width, p, taps >= 1); got {tuple(u.shape)}, {tuple(K.shape)}"
        )
    if history is not None and history.shape != (u.shape[0], K.shape[-1] - 1, *u.shape[2:]):
        raise InputError(
            f"{name} needs a history of shape {(u.shape[0], K.shape[-1] - 1, *u.shape[2:])} "
            f"(batch, taps - 1, width, ...); got {tuple(history.shape)}"
        )
    tensors = [m for m in (u, K, history) if m is not None]
    if not all(m.is_floating_point() for m in tensors):
        raise InputError(f"{name} needs real floating-point tensors; got {[str(m.dtype) for m in tensors]}")
    several, trailing = K.ndim == 3, u.shape[3:]
    if history is None:
        K = K[..., : max(u.shape[1], 1)]  # later taps meet no input
    columns = u.reshape(*u.shape[:3], trailing.numel())
    before = None if history is None else history.reshape(*history.shape[:3], trailing.numel())
    y = operator(columns, K if several else K.unsqueeze(1), before)
    return y.reshape(*u.shape[:3], *K.shape[1:-1], *trailing)
