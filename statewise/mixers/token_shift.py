"""RWKV's token shift: each channel reads between its present input and the one before."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.operators.causal_convolution import CausalConvolution


def token_shift(d_model: int, like: Tensor) -> CausalConvolution:
    """The input before, as a filter of taps 0 and 1; a sequence and a document begin behind zeros."""
    taps = torch.arange(2, dtype=like.dtype, device=like.device)
    return CausalConvolution(taps.expand(d_model, 2))


def between(x: Tensor, last: Tensor, mu: Tensor) -> Tensor:
    """x_t + mu (x_{t-1} - x_t), mu a number a channel."""
    return torch.addcmul(x, mu.to(x.dtype), last.to(x.dtype) - x)
