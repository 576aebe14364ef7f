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


def fft_convolution_differentiable(u: Tensor, impulse_response: Tensor, history: Tensor | None) -> Tensor:
    """The same map as one FFT over everything: what a second derivative is taken through.

    Shapes as the registered operator's: u (b, l, w, t), impulse_response (w, p, taps) -> y (b, l, w, p, t).
    """
    length, taps = u.shape[1], impulse_response.shape[-1]
    past = u if history is None else torch.cat([history, u], 1)
    n = past.shape[1] + taps - 1
    dtype = torch.promote_types(torch.float32, torch.promote_types(past.dtype, impulse_response.dtype))
    spectrum = torch.fft.rfft(past.to(dtype).permute(0, 2, 3, 1), n=n).unsqueeze(2)  # (b, w, 1, t, f)
    y = torch.fft.irfft(spectrum * torch.fft.rfft(impulse_response.to(dtype), n=n).unsqueeze(2), n=n)
    return y[..., past.shape[1] - length : past.shape[1]].permute(0, 4, 1, 2, 3).to(u.dtype)
