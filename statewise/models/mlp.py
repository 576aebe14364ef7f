"""The feed-forward half of a block: plain (two projections) or gated (three)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statewise.errors import ConfigError
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.projection import WEIGHT_STD, Linear, check_weight_std, draw_normal


@dataclass(frozen=True, kw_only=True)
class MLPConfig:
    """``W2 f(W1 x)``, or with ``gated`` the GLU form ``W2 (f(W1 x) * (V x))`` (Shazeer 2020, arXiv:2002.05202).

    expand:      the hidden width as a multiple of d_model, rounded up to a multiple of ``multiple_of``
    weight_std:  standard deviation of the weights at the start
    """

    expand: float = 4.0
    activation: str = "gelu"
    gated: bool = False
    bias: bool = True
    multiple_of: int = 1
    weight_std: float = WEIGHT_STD

    def __post_init__(self) -> None:
        if self.activation not in ACTIVATIONS:
            raise ConfigError(f"MLPConfig.activation={self.activation!r} is unknown; use one of {sorted(ACTIVATIONS)}")
        if self.expand <= 0 or self.multiple_of < 1:
            raise ConfigError(
                f"MLPConfig needs expand > 0 and multiple_of >= 1, got {self.expand} and {self.multiple_of}"
            )
        check_weight_std(self)

    def build(self, d_model: int) -> MLP:
        return MLP(d_model, self)


class MLP(nn.Module):
    """Acts on each time step alone: (..., d_model) -> (..., d_model), and has no state."""

    def __init__(self, d_model: int, config: MLPConfig) -> None:
        super().__init__()
        self.config = config
        multiple = config.multiple_of
        d_hidden = -(-round(config.expand * d_model) // multiple) * multiple
        self.in_proj = Linear(d_model, d_hidden * (2 if config.gated else 1), bias=config.bias)
        self.out_proj = Linear(d_hidden, d_model, bias=config.bias)
        self.activation = ACTIVATIONS[config.activation]

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        draw_normal(self.config.weight_std, self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)

    def forward(self, x: Tensor) -> Tensor:
        h = self.in_proj(x)
        if self.config.gated:
            h, value = h.chunk(2, dim=-1)
            return self.out_proj(self.activation(h) * value)
        return self.out_proj(self.activation(h))
