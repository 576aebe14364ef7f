"""RWKV-7's channel mixing: an MLP that also sees the input before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statewise.configuration.types import Positive
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.projection import Linear, draw_default
from statewise.mixers.token_shift import between, token_shift
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.masks import Masks


@dataclass(frozen=True, kw_only=True)
class ChannelMixConfig(MixerConfig):
    """RWKV-7's channel mixing. In a model it is a layer of its own, behind one of ``RWKV7Config``.

    expand: the hidden width as a multiple of d_model

    Source: Peng et al. 2025, arXiv:2503.14456, its MLP; RWKV_CMix_x070 in https://github.com/BlinkDL/RWKV-LM.
    """

    expand: Positive = 4.0

    def hidden_width(self, d_model: int) -> int:
        """Exact where ``expand`` is the quotient of two widths."""
        return max(round(self.expand * d_model), 1)

    def build(self, d_model: int) -> ChannelMix:
        return ChannelMix(d_model, self)


class ChannelMix(Mixer):
    """y_t = W_2 max(W_1 (x_t + mu * (x_{t-1} - x_t)), 0)^2, with x_{-1} = 0.

    Shapes:  x: (batch, length, d_model) -> y the same; state: the last input,
             :class:`~statewise.operators.causal_convolution.ConvolutionState`
    Cost:    for each token 2 d_model^2 expand multiply-adds
    Errors:  InputError for shapes or states that do not fit.
    Source:  Peng et al. 2025, arXiv:2503.14456, its MLP.

    >>> import torch
    >>> mixer = ChannelMixConfig().build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.inputs.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 1, 16]))
    """

    def __init__(self, d_model: int, config: ChannelMixConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        d_hidden = config.hidden_width(d_model)
        self.mu = nn.Parameter(torch.empty(d_model))
        self.in_proj = Linear(d_model, d_hidden, bias=False)
        self.out_proj = Linear(d_hidden, d_model, bias=False)
        self.activation = ACTIVATIONS["relu2"]
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default for the projections, the output's scaled; mu as published for the first layer."""
        draw_default(self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
            self.mu.copy_(1 - torch.arange(self.d_model, device=self.mu.device) / self.d_model)

    def state_shape(self) -> ConvolutionState:
        return token_shift(self.d_model, self._like()).state_shape()

    def mix(self, x: Tensor, state: ConvolutionState | None, masks: Masks) -> tuple[Tensor, ConvolutionState | None]:
        last, state = token_shift(self.d_model, self._like()).apply(x, state, masks)
        return self.out_proj(self.activation(self.in_proj(between(x, last, self.mu)))), state
