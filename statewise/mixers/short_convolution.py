"""The short causal convolution in front of a mixer's system, with its bias, as a module."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from statewise.operators.causal_convolution import CausalConvolution, ConvolutionState


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over time: (batch, length, width) -> the same shape.

    ``weight`` (width, n_taps) holds the taps newest first, so ``weight[:, 0]`` multiplies the present input
    (a published ``conv1d.weight`` is the same numbers in the opposite order).
    """

    def __init__(self, width: int, n_taps: int, bias: bool = True) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, n_taps))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform in +-1/sqrt(n_taps), as PyTorch draws a depthwise Conv1d and its bias."""
        bound = 1 / math.sqrt(self.weight.shape[1])
        nn.init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            nn.init.uniform_(self.bias, -bound, bound)

    @property
    def operator(self) -> CausalConvolution:
        return CausalConvolution(self.weight)

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> ConvolutionState:
        return self.operator.initial_state(batch, device=device, dtype=dtype)

    def forward(
        self,
        x: Tensor,
        state: ConvolutionState | None = None,
        *,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
    ) -> tuple[Tensor, ConvolutionState | None]:
        y, state = self.operator(x, state, lengths=lengths, starts=starts)
        return (y if self.bias is None else y + self.bias.to(y.dtype)), state
