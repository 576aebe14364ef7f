"""The causal depthwise convolution y_t = sum_i taps_i x_{t-i} as one differentiable operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.short_convolution.reference import short_convolution_reference

__all__ = ["short_convolution", "short_convolution_reference"]


def _columns(taps: Tensor, ndim: int) -> tuple[Tensor, ...]:
    """taps_i, each shaped to broadcast over (batch, length, width, ...)."""
    return taps.reshape(*taps.shape, *[1] * (ndim - 3)).unbind(1)


def _same_segment(segments: Tensor, shift: int, ndim: int) -> Tensor:
    """(batch, length, 1...) whether x_{t-shift} belongs to the document of t; the history is segment 0."""
    before = segments.new_zeros(segments.shape[0], min(shift, segments.shape[1]))
    shifted = torch.cat([before, segments[:, : max(segments.shape[1] - shift, 0)]], 1)
    return (segments == shifted).reshape(*segments.shape, *[1] * (ndim - 2))


@torch.library.custom_op("statewise::short_convolution", mutates_args=())
def _short_convolution(x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None) -> Tensor:
    length, last = x.shape[1], taps.shape[1] - 1
    past = torch.cat([history, x], 1)  # one copy; every tap then reads a plain slice of it
    columns = _columns(taps, x.ndim)
    y = columns[0] * x
    for i in range(1, last + 1):
        term = past[:, last - i : last - i + length]
        if segments is not None:
            term = term * _same_segment(segments, i, x.ndim)
        y.addcmul_(columns[i], term)
    return y


@_short_convolution.register_fake
def _(x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Tensor | None], output: Tensor) -> None:
    x, taps, history, segments = inputs
    ctx.save_for_backward(x, taps, history, segments)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
    # Plain differentiable operations, so that second derivatives need nothing more.
    x, taps, history, segments = ctx.saved_tensors
    length, last = x.shape[1], taps.shape[1] - 1
    past = torch.cat([history, x], 1)
    columns = _columns(taps, x.ndim)
    grad_past, grad_columns = None, []
    reduce_axes = [0, 1, *range(3, x.ndim)]
    for i in range(last + 1):
        masked = grad if segments is None or i == 0 else grad * _same_segment(segments, i, x.ndim)
        window = past[:, last - i : last - i + length]
        grad_columns.append((masked * window).sum(reduce_axes))
        # term i reads past at offset last - i
        pad = [0, 0] * (x.ndim - 2) + [last - i, i]
        term = torch.nn.functional.pad(columns[i] * masked, pad)
        grad_past = term if grad_past is None else grad_past + term
    assert grad_past is not None
    return grad_past[:, last:], torch.stack(grad_columns, 1), grad_past[:, :last], None


_short_convolution.register_autograd(_backward, setup_context=_setup_context)


def short_convolution(x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None = None) -> Tensor:
    """Causal depthwise convolution: y_t = sum_{i < n_taps} taps_i * x_{t-i}.

    Shapes:   x: (batch, length, width, ...)   taps: (width, n_taps)   history: (batch, n_taps - 1, width, ...),
              the inputs before x, oldest first   ->   y like x.
              segments: (batch, length) integers that never fall; inputs of another segment (the history is
              segment 0) count as zero.
    Cost:     O(length * width * n_taps), one pass over the input for each tap.
    Errors:   InputError if the shapes disagree; the message gives them.
    Source:   the "conv1d" of Mamba, Gu & Dao 2023, arXiv:2312.00752, fig. 3.

    >>> short_convolution(torch.ones(1, 3, 1), torch.tensor([[1.0, 10.0]]), torch.zeros(1, 1, 1)).flatten()
    tensor([ 1., 11., 11.])
    """
    wanted = (x.shape[0], taps.shape[1] - 1, *x.shape[2:])
    if x.ndim < 3 or taps.ndim != 2 or taps.shape[0] != x.shape[2] or history.shape != wanted:
        raise InputError(
            "short_convolution needs x (batch, length, width, ...), taps (width, n_taps) and history "
            f"(batch, n_taps - 1, width, ...); got {tuple(x.shape)}, {tuple(taps.shape)}, {tuple(history.shape)}"
        )
    return _short_convolution(x, taps, history, segments)
