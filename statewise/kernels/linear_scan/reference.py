"""The definition of the diagonal linear recurrence, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def linear_scan_reference(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """h_t = a_t * h_{t-1} + b_t, one step after the other. Shapes as :func:`statewise.kernels.linear_scan`."""
    h, states = h0, []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1)):
        h = a_t * h + b_t
        states.append(h)
    return torch.stack(states, 1) if states else torch.zeros_like(b)
