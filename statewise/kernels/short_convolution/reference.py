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


def short_convolution_differentiable(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> Tensor:
    """The same map by taps and not by steps: what a second derivative is taken through. Arguments as registered."""
    length, last = x.shape[1], taps.shape[1] - 1
    past = torch.cat([history, x.to(history.dtype)], 1)
    z = torch.zeros((), dtype=past.dtype, device=past.device) if bias is None else bias.reshape(-1, *[1] * (x.ndim - 3))
    for i, column in enumerate(columns(taps, x.ndim)):
        source = past[:, last - i : last - i + length]
        z = z + column * (source if segments is None or i == 0 else source * same_segment(segments, i, x.ndim))
    return (F.silu(z) if silu else z).to(x.dtype)


def columns(taps: Tensor, ndim: int) -> tuple[Tensor, ...]:
    """taps_i, each shaped to broadcast over (batch, length, width, ...)."""
    return taps.reshape(*taps.shape, *[1] * (ndim - 3)).unbind(1)


def same_segment(segments: Tensor, shift: int, ndim: int) -> Tensor:
    """(batch, length, 1...) whether x_{t-shift} belongs to the document of t; the history is segment 0."""
    before = segments.new_zeros(segments.shape[0], min(shift, segments.shape[1]))
    shifted = torch.cat([before, segments[:, : max(segments.shape[1] - shift, 0)]], 1)
    return (segments == shifted).reshape(*segments.shape, *[1] * (ndim - 2))
