"""LFM2's short convolution between two gates: what a layer remembers is a handful of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.configuration.types import Count
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.projection import Linear, draw_default
from statewise.mixers.short_convolution import ShortConvolution
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.masks import Masks


@dataclass(frozen=True, kw_only=True)
class GatedConvolutionConfig(MixerConfig):
    """LFM2's gated short convolution.

    n_taps: of the convolution
    bias:   whether the convolution and both projections have one

    Source: Liquid AI 2025, arXiv:2511.23404, sec. 2.
    """

    n_taps: Count = 3
    bias: bool = False

    def build(self, d_model: int) -> GatedConvolution:
        return GatedConvolution(d_model, self)


class GatedConvolution(Mixer):
    """y = W_o (C * conv(B * u)), with B, C, u = W x and a depthwise causal convolution of ``n_taps`` taps.

    Shapes:  x: (batch, length, d_model) -> y the same; state: the last n_taps - 1 products B * u,
             :class:`~statewise.operators.causal_convolution.ConvolutionState`. ``in_proj.weight``: the rows of B, C and
             u (d_model each)
    Cost:    for each token d_model (4 d_model + n_taps + 2) multiply-adds
    Errors:  InputError for shapes or states that do not fit.
    Source:  Liquid AI 2025, arXiv:2511.23404, sec. 2.

    >>> import torch
    >>> mixer = GatedConvolutionConfig().build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.inputs.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 2, 16]))
    """

    def __init__(self, d_model: int, config: GatedConvolutionConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.in_proj = Linear(d_model, 3 * d_model, bias=config.bias, parts=(d_model,) * 3)
        self.convolution = ShortConvolution(d_model, config.n_taps, config.bias)
        self.out_proj = Linear(d_model, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default for the projections (biases zero), the output's scaled."""
        draw_default(self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
        self.convolution.reset_parameters()

    def state_shape(self) -> ConvolutionState:
        return self.convolution.operator.state_shape()

    def mix(self, x: Tensor, state: ConvolutionState | None, masks: Masks) -> tuple[Tensor, ConvolutionState | None]:
        B, C, u = self.in_proj(x).chunk(3, -1)
        u, state = self.convolution(B * u, state, masks=masks)
        return self.out_proj(C * u.to(C.dtype)), state
