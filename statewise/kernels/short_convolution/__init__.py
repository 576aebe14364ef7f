"""The causal depthwise convolution y_t = sum_i taps_i x_{t-i} as one differentiable operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.registration import register
from statewise.kernels.short_convolution.batching import vmap_rule
from statewise.kernels.short_convolution.reference import (
    columns,
    same_segment,
    short_convolution_adjoint,
    short_convolution_reference,
)

__all__ = ["short_convolution", "short_convolution_reference"]


def _forward(x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None) -> Tensor:
    length, last = x.shape[1], taps.shape[1] - 1
    past = torch.cat([history, x], 1)  # one copy; every tap then reads a plain slice of it
    weight = columns(taps, x.ndim)
    y = weight[0] * past[:, last:]
    for i in range(1, last + 1):
        term = past[:, last - i : last - i + length]
        if segments is not None:
            term = term * same_segment(segments, i, x.ndim)
        y.addcmul_(weight[i], term)
    return y


def _fake_forward(x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _adjoint(
    grad: Tensor, x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    length, last = x.shape[1], taps.shape[1] - 1
    past = torch.cat([history, x], 1)
    grad_past, grad_taps = torch.zeros_like(past), torch.zeros_like(taps)
    weight = columns(taps, x.ndim)
    others = [0, 1, *range(3, x.ndim)]
    for row in range(x.shape[0]):  # one row at a time stays in the cache through all taps
        here = slice(row, row + 1)
        for i in range(last + 1):
            masked, window = grad[here], slice(last - i, last - i + length)
            if segments is not None and i > 0:
                masked = masked * same_segment(segments[here], i, x.ndim)
            grad_taps[:, i] += (masked * past[here, window]).sum(others)
            grad_past[here, window].addcmul_(weight[i], masked)
    return grad_past[:, last:].clone(), grad_taps, grad_past[:, :last].clone()


def _fake_adjoint(
    grad: Tensor, x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dtaps, dhistory = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (x, taps, history))
    return dx, dtaps, dhistory


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *_short_convolution_backward(grad, *ctx.saved_tensors), None


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through its plain form: rare, so it need not be fast."""
    *tensors, segments = ctx.saved_tensors
    with torch.enable_grad():
        leaves = [m.detach().requires_grad_() for m in tensors]
        grad, x, taps, history = leaves
        first = short_convolution_adjoint(grad, x, taps, history, segments)
        return *torch.autograd.grad(first, leaves, grads, materialize_grads=True), None


_short_convolution = register(
    "short_convolution",
    "(Tensor x, Tensor taps, Tensor history, Tensor? segments) -> Tensor",
    _forward,
    fake=_fake_forward,
    setup_context=_setup_context,
    backward=_backward,
    vmap=vmap_rule,
)
_short_convolution_backward = register(
    "short_convolution_backward",
    "(Tensor grad, Tensor x, Tensor taps, Tensor history, Tensor? segments) -> (Tensor, Tensor, Tensor)",
    _adjoint,
    fake=_fake_adjoint,
    setup_context=_setup_context,
    backward=_second_backward,
)


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
    y: Tensor = _short_convolution(x, taps, history, segments)
    return y
