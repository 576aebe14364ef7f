"""The short causal convolution in front of a mixer's system, with its bias and activation, as a module."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.errors import ConfigError
from statewise.kernels.exact import is_exact
from statewise.operators.causal_convolution import CausalConvolution, ConvolutionState, convolve
from statewise.operators.masks import Masks, build_masks
from statewise.operators.plan import plan
from statewise.precision import as_dtype


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
        if masks is None:
            self.operator.check(x, state)
            masks = build_masks(x, lengths, starts)
        y, state = self.operator.apply(x, state, masks, self._convolve)
        return y, state

    def _convolve(
        self, u: Tensor, state: ConvolutionState | None, masks: Masks
    ) -> tuple[Tensor, ConvolutionState | None]:
        """f(bias + taps * u), for few taps in one pass."""
        operator = self.operator
        if is_exact() or plan(operator.rules, length=u.shape[1], n_taps=self.weight.shape[1]).form == "direct":
            history = operator.history(u, state)
            y, u, history = convolve(
                *(u, as_dtype(self.weight, history.dtype), history, masks.segments),
                bias=self.bias,
                activation=self.activation,
            )
            return as_dtype(y, u.dtype), operator.following(u, history, state, masks)
        y, state = operator.fft(u, state, masks)
        y = y if self.bias is None else y + self.bias.to(y.dtype)
        return (F.silu(y) if self.activation == "silu" else y), state
