"""The causal depthwise convolution y_t = f(bias + sum_i taps_i x_{t-i}) as one differentiable operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.arguments import Sizes
from statewise.kernels.short_convolution import native, pytorch
from statewise.kernels.short_convolution.reference import short_convolution_differentiable, short_convolution_reference
from statewise.kernels.stored import refuse_unreal, stored_refusal
from statewise.precision import full_precision

__all__ = ["short_convolution", "short_convolution_reference"]


def _no_taps(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    return None if sizes["taps"] else "at least one tap; got none"


_short_convolution = register_with_adjoint(
    "short_convolution",
    "Tensor x, Tensor taps, Tensor history, Tensor? bias, Tensor? segments, bool silu",
    native,
    pytorch,
    definition=short_convolution_differentiable,
    takes={  # x as it is stored, all else in full precision
        "x": "b l w *more: floating",
        "taps": "w taps: full x",
        "history": "b taps-1 w *more: full x",
        "bias": "w: full x",
        "segments": "b l: ids",
    },
    gives={"y": "b l w *more: as x"},
    needs=_no_taps,
    refusal=stored_refusal,
)


def short_convolution(
    x: Tensor,
    taps: Tensor,
    history: Tensor,
    segments: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """Causal depthwise convolution: y_t = f(bias + sum_{i < n_taps} taps_i * x_{t-i}).

    Shapes:   x: (batch, length, width, ...)   taps: (width, n_taps)   bias: (width,)
              history: (batch, n_taps - 1, width, ...), the inputs before x, oldest first   ->   y like x.
              segments: (batch, length) integers that never fall; inputs of another segment (the history is
              segment 0) count as zero.
              activation: f, "silu" or None for the identity
    Cost:     O(length * width * n_taps): in C one pass over x, and for the gradients one over x and dy; in PyTorch one
              for each tap.
    Numerics: computed in float32, or float64 if x is; y in the dtype of x.
    Errors:   InputError if the shapes disagree, for another activation, and for complex numbers or integers.
    Source:   the "conv1d" of Mamba, Gu & Dao 2023, arXiv:2312.00752, fig. 3.

    >>> short_convolution(torch.ones(1, 3, 1), torch.tensor([[1.0, 10.0]]), torch.zeros(1, 1, 1)).flatten()
    tensor([ 1., 11., 11.])
    """
    fits = x.ndim >= 3 and taps.ndim == 2 and taps.shape[0] == x.shape[2]
    if not (fits and history.shape == (x.shape[0], taps.shape[1] - 1, *x.shape[2:])):
        raise InputError(
            "short_convolution needs x (batch, length, width, ...), taps (width, n_taps) and history "
            f"(batch, n_taps - 1, width, ...); got {tuple(x.shape)}, {tuple(taps.shape)}, {tuple(history.shape)}"
        )
    if bias is not None and bias.shape != taps.shape[:1]:
        raise InputError(f"short_convolution needs a bias of shape ({taps.shape[0]},); got {tuple(bias.shape)}")
    if segments is not None and segments.shape != x.shape[:2]:
        raise InputError(f"short_convolution needs segments of shape {tuple(x.shape[:2])}; got {tuple(segments.shape)}")
    refuse_unreal("short_convolution", x=x, taps=taps, history=history, bias=bias)
    if activation not in (None, "silu"):
        raise InputError(f'short_convolution has the activations "silu" and None; got {activation!r}')
    return short_convolution_unchecked(x, taps, history, segments, bias=bias, activation=activation)


def short_convolution_unchecked(
    x: Tensor,
    taps: Tensor,
    history: Tensor,
    segments: Tensor | None,
    *,
    bias: Tensor | None,
    activation: str | None,
) -> Tensor:
    """:func:`short_convolution` of what its caller has checked; the registered operator holds it against the sizes that
    it reads."""
    dtype = torch.promote_types(full_precision(x.dtype), torch.promote_types(taps.dtype, history.dtype))
    x = x if full_precision(x.dtype) == dtype else x.to(dtype)
    bias = None if bias is None else bias.to(dtype)
    y: Tensor = _short_convolution(x, taps.to(dtype), history.to(dtype), bias, segments, activation == "silu")
    return y
