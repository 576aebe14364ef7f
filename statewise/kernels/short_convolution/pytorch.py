"""The convolution and its adjoint in PyTorch: one multiply-add over the sequence for each tap."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.short_convolution.reference import columns, same_segment


def forward(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> Tensor:
    z = _convolved(torch.cat([history, x.to(history.dtype)], 1), x.shape[1], taps, bias, segments)
    return (F.silu(z, inplace=True) if silu else z).to(x.dtype)


def backward(
    grad: Tensor, x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of x, taps, history and bias."""
    length, last = x.shape[1], taps.shape[1] - 1
    past, grad = torch.cat([history, x.to(history.dtype)], 1), grad.to(history.dtype)
    if silu:
        grad = torch.ops.aten.silu_backward(grad, _convolved(past, length, taps, bias, segments))
    grad_past, grad_taps = torch.zeros_like(past), torch.zeros_like(taps)
    weight = columns(taps, x.ndim)
    others = [0, 1, *range(3, x.ndim)]
    at_once = _rows_at_once(x)
    for row in range(0, x.shape[0], at_once):
        here = slice(row, row + at_once)
        for i in range(last + 1):
            masked, window = grad[here], slice(last - i, last - i + length)
            if segments is not None and i > 0:
                masked = masked * same_segment(segments[here], i, x.ndim)
            grad_taps[:, i] += (masked * past[here, window]).sum(others)
            grad_past[here, window].addcmul_(weight[i], masked)
    grad_x = grad_past[:, last:].to(x.dtype, copy=True)
    return grad_x, grad_taps, grad_past[:, :last].clone(), grad.sum(others)


def _rows_at_once(x: Tensor) -> int:
    """On a CPU one row stays in the cache through all taps; elsewhere each row would be a launch of its own."""
    return 1 if x.device.type == "cpu" else max(1, x.shape[0])


def _convolved(past: Tensor, length: int, taps: Tensor, bias: Tensor | None, segments: Tensor | None) -> Tensor:
    """``past`` has the history before the sequence: one copy, of which every tap then reads a plain slice."""
    last, ndim = taps.shape[1] - 1, past.ndim
    weight = columns(taps, ndim)
    y = weight[0] * past[:, last:]
    for i in range(1, last + 1):
        term = past[:, last - i : last - i + length]
        if segments is not None:
            term = term * same_segment(segments, i, ndim)
        y.addcmul_(weight[i], term)
    return y if bias is None else y.add_(bias.reshape(-1, *[1] * (ndim - 3)))
