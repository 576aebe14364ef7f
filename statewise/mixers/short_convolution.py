"""The short causal convolution in front of a mixer's system, with its bias and activation, as a module."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.errors import ConfigError
from statewise.operators.causal_convolution import CausalConvolution, ConvolutionState
from statewise.operators.masks import NO_MASKS, Masks, build_masks
from statewise.operators.plan import plan


class ShortConvolution(nn.Module):
    """Depthwise causal convolution over time: (batch, length, width) -> the same shape.

    ``weight`` (width, n_taps) holds the taps newest first, so ``weight[:, 0]`` multiplies the present input
    (a published ``conv1d.weight`` is the same numbers in the opposite order). ``activation``, "silu" or None, is
    applied after the bias.
    """

    def __init__(self, width: int, n_taps: int, bias: bool = True, *, activation: str | None = None) -> None:
        super().__init__()
        if activation not in (None, "silu"):
            raise ConfigError(f'ShortConvolution has the activations "silu" and None; got {activation!r}')
        self.activation = activation
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
        masks: Masks | None = None,
    ) -> tuple[Tensor, ConvolutionState | None]:
        """``masks``, from a mixer that has checked its input: what ``lengths`` and ``starts`` mean."""
        operator = _WithActivation(self.weight, self.bias, self.activation)
        if masks is None:
            operator.check(x, state)
            masks = build_masks(x, lengths, starts)
        form = plan(CausalConvolution.rules, length=x.shape[1], n_taps=self.weight.shape[1]).form
        y, state = operator.apply(x, state, masks, form)
        return y, state


@dataclass(frozen=True, eq=False)
class _WithActivation(CausalConvolution):
    """f(bias + taps * u), under the masks and with the state of the convolution. It is not linear, so no operator."""

    bias: Tensor | None
    activation: str | None

    def direct(
        self, u: Tensor, state: ConvolutionState | None, masks: Masks = NO_MASKS
    ) -> tuple[Tensor, ConvolutionState | None]:
        return self.direct_with(u, state, masks, bias=self.bias, activation=self.activation)

    def fft(
        self, u: Tensor, state: ConvolutionState | None, masks: Masks = NO_MASKS
    ) -> tuple[Tensor, ConvolutionState | None]:
        y, state = super().fft(u, state, masks)
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        return (F.silu(y) if self.activation == "silu" else y), state
