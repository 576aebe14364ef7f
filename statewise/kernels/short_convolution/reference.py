"""The definition of the causal depthwise convolution, in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def short_convolution_reference(
    x: Tensor,
    taps: Tensor,
    history: Tensor,
    segments: Tensor | None = None,
    *,
    bias: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:
    """y_t = f(bias + sum_i taps_i x_{t-i}), one output after the other. Shapes as in the fast form."""
    n_taps = taps.shape[1]
    past = torch.cat([history, x], 1).unbind(1)
    weight = taps.reshape(*taps.shape, *[1] * (x.ndim - 3)).unbind(1)
    if segments is not None:
        before = segments.new_zeros(segments.shape[0], n_taps - 1)
        ids = torch.cat([before, segments], 1).unbind(1)
    outputs = []
    for t in range(x.shape[1]):
        y = torch.zeros_like(past[0]) if past else x[:, 0]
        for i in range(n_taps):
            source = t + n_taps - 1 - i
            term = weight[i] * past[source]
            if segments is not None:
                same = (ids[source] == ids[t + n_taps - 1]).reshape(-1, *[1] * (term.ndim - 1))
                term = term * same
            y = y + term
        outputs.append(y)
    z = torch.stack(outputs, 1) if outputs else torch.zeros_like(x)
    z = z if bias is None else z + bias.reshape(-1, *[1] * (x.ndim - 3))
    return F.silu(z) if activation == "silu" else z


def short_convolution_adjoint(
    grad: Tensor, x: Tensor, taps: Tensor, history: Tensor, bias: Tensor, segments: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, taps, history and bias in plain differentiable operations, to differentiate once more."""
    length, last = x.shape[1], taps.shape[1] - 1
    past = torch.cat([history, x], 1)
    weight = columns(taps, x.ndim)
    sources = [past[:, last - i : last - i + length] for i in range(last + 1)]
    same = [None if segments is None or i == 0 else same_segment(segments, i, x.ndim) for i in range(last + 1)]
    if silu:
        z = bias.reshape(-1, *[1] * (x.ndim - 3)).expand(x.shape)
        for column, source, mask in zip(weight, sources, same):
            z = z + column * (source if mask is None else source * mask)
        sigmoid = z.sigmoid()
        grad = grad * sigmoid * (1 + z * (1 - sigmoid))
    grad_past, grad_taps = torch.zeros_like(past), []
    others = [0, 1, *range(3, x.ndim)]
    for i, (column, source, mask) in enumerate(zip(weight, sources, same)):
        masked = grad if mask is None else grad * mask
        grad_taps.append((masked * source).sum(others))
        around = [0, 0] * (x.ndim - 2) + [last - i, i]
        grad_past = grad_past + F.pad(column * masked, around)
    return grad_past[:, last:], torch.stack(grad_taps, 1), grad_past[:, :last], grad.sum(others)


def columns(taps: Tensor, ndim: int) -> tuple[Tensor, ...]:
    """taps_i, each shaped to broadcast over (batch, length, width, ...)."""
    return taps.reshape(*taps.shape, *[1] * (ndim - 3)).unbind(1)


def same_segment(segments: Tensor, shift: int, ndim: int) -> Tensor:
    """(batch, length, 1...) whether x_{t-shift} belongs to the document of t; the history is segment 0."""
    before = segments.new_zeros(segments.shape[0], min(shift, segments.shape[1]))
    shifted = torch.cat([before, segments[:, : max(segments.shape[1] - shift, 0)]], 1)
    return (segments == shifted).reshape(*segments.shape, *[1] * (ndim - 2))
