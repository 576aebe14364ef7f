"""The definition of the causal convolution with a long filter, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def fft_convolution_reference(u: Tensor, impulse_response: Tensor, history: Tensor | None = None) -> Tensor:
    """y_t = sum_i K_i u_{t-i}, one output after the other. Shapes as :func:`statewise.kernels.fft_convolution`."""
    taps = impulse_response.shape[-1]
    several = impulse_response.ndim == 3
    if history is None:
        history = u.new_zeros(u.shape[0], taps - 1, *u.shape[2:])
    past = torch.cat([history, u], 1)
    trailing = u.ndim - 3
    weight = impulse_response.reshape(*impulse_response.shape[:-1], *[1] * trailing, taps).movedim(-1, 0).flip(0)
    outputs = []
    for t in range(u.shape[1]):
        window = past[:, t : t + taps]  # (batch, taps, width, *trailing)
        outputs.append((weight * (window.unsqueeze(3) if several else window)).sum(1))
    if outputs:
        return torch.stack(outputs, 1)
    return u.new_zeros(*u.shape[:3], *impulse_response.shape[1:-1], *u.shape[3:]) * impulse_response.sum()
