"""The feed-forward half of a block: plain (two projections) or gated (three)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn

from statewise.configuration import Config
from statewise.configuration.types import Count, Finite, OneOf, Positive
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal


@dataclass(frozen=True, kw_only=True)
class MLPConfig(Config):
    """``W2 f(W1 x)``, or with ``gated`` the GLU form ``W2 (f(W1 x) * (V x))`` (Shazeer 2020, arXiv:2002.05202).

    expand:      the hidden width as a multiple of d_model, rounded up to a multiple of ``multiple_of``
    gate_scale:  by which the activation's input is multiplied
    output_scale: by which the output is multiplied
    weight_std:  standard deviation of the weights at the start
    """

    without_type: ClassVar[bool] = True

    expand: Positive = 4.0
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "gelu"
    gated: bool = False
    bias: bool = True
    multiple_of: Count = 1
    gate_scale: Finite = 1.0
    output_scale: Finite = 1.0
    weight_std: Positive = WEIGHT_STD

    def hidden_width(self, d_model: int) -> int:
        """Exact where ``expand`` is the quotient of two widths."""
        return -(-round(self.expand * d_model) // self.multiple_of) * self.multiple_of

    def build(self, d_model: int) -> MLP:
        return MLP(d_model, self)


class MLP(nn.Module):
    """Acts on each time step alone: (..., d_model) -> (..., d_model), and has no state."""

    def __init__(self, d_model: int, config: MLPConfig) -> None:
        super().__init__()
        self.config = config
        d_hidden = config.hidden_width(d_model)
        parts = (d_hidden,) * (2 if config.gated else 1)
        self.in_proj = Linear(d_model, sum(parts), bias=config.bias, parts=parts)
        self.out_proj = Linear(d_hidden, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        draw_normal(self.config.weight_std, self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)

    def forward(self, x: Tensor) -> Tensor:
        config = self.config
        h = self.in_proj(x)
        h, value = h.chunk(2, dim=-1) if config.gated else (h, None)
        h = self.activation(h if config.gate_scale == 1.0 else h * config.gate_scale)
        y = self.out_proj(h if value is None else h * value)
        return y if config.output_scale == 1.0 else y * config.output_scale
