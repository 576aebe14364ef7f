"""The definition of the causal depthwise convolution, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def short_convolution_reference(x: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None = None) -> Tensor:
    """y_t = sum_i taps_i x_{t-i}, one output after the other. Shapes as in the fast form."""
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
    return torch.stack(outputs, 1) if outputs else torch.zeros_like(x)
