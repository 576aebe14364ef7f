"""A layer of a model: norm, mixer, residual; then, if there is one, norm, MLP, residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from statewise.errors import ConfigError
from statewise.mixers.base import MixerConfig
from statewise.models.mlp import MLPConfig

NORMS = ("rms", "layer")


def build_norm(kind: str, d_model: int, eps: float) -> nn.RMSNorm | nn.LayerNorm:
    """RMSNorm or LayerNorm over the last axis, both with learned weights."""
    return nn.RMSNorm(d_model, eps=eps) if kind == "rms" else nn.LayerNorm(d_model, eps=eps)


@dataclass(frozen=True, kw_only=True)
class BlockConfig:
    """One layer. A bare mixer config stands for a block without an MLP (see :func:`as_block`)."""

    mixer: MixerConfig
    mlp: MLPConfig | None = None
    norm: str = "rms"
    norm_eps: float = 1e-5
    dropout: float = 0.0  # of each branch, before it joins the residual stream

    def __post_init__(self) -> None:
        if not isinstance(self.mixer, MixerConfig):
            raise ConfigError(
                f"BlockConfig.mixer={self.mixer!r} is of type {type(self.mixer).__name__}; expected a mixer's config"
            )
        if self.mlp is not None and not isinstance(self.mlp, MLPConfig):
            raise ConfigError(
                f"BlockConfig.mlp={self.mlp!r} is of type {type(self.mlp).__name__}; expected an MLPConfig or None"
            )
        if self.norm not in NORMS:
            raise ConfigError(f"BlockConfig.norm={self.norm!r} is unknown; use one of {list(NORMS)}")
        if not 0.0 <= self.dropout < 1.0:
            raise ConfigError(f"BlockConfig.dropout={self.dropout} is out of range; use 0 <= dropout < 1")

    @property
    def n_branches(self) -> int:
        """How many branches write into the residual stream."""
        return 1 if self.mlp is None else 2

    def build(self, d_model: int) -> Block:
        return Block(d_model, self)


def as_block(layer: BlockConfig | MixerConfig) -> BlockConfig:
    """A bare mixer config becomes a pre-norm block without an MLP."""
    return layer if isinstance(layer, BlockConfig) else BlockConfig(mixer=layer)


class Block(nn.Module):
    """Pre-norm residual block; calls and state are its mixer's."""

    def __init__(self, d_model: int, config: BlockConfig) -> None:
        super().__init__()
        self.config = config
        self.mixer_norm = build_norm(config.norm, d_model, config.norm_eps)
        self.mixer = config.mixer.build(d_model)
        self.mlp_norm = None if config.mlp is None else build_norm(config.norm, d_model, config.norm_eps)
        self.mlp = None if config.mlp is None else config.mlp.build(d_model)
        self.dropout = nn.Dropout(config.dropout)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        for norm in (self.mixer_norm, self.mlp_norm):
            if norm is not None:
                norm.reset_parameters()
        self.mixer.reset_parameters(residual_scale)
        if self.mlp is not None:
            self.mlp.reset_parameters(residual_scale)

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        return self.mixer.initial_state(batch, device=device, dtype=dtype)

    def forward(
        self, x: Tensor, state: Any = None, *, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Any]:
        y, state = self.mixer(self.mixer_norm(x), state, lengths=lengths, starts=starts)
        x = x + self.dropout(y)
        if self.mlp is not None and self.mlp_norm is not None:
            x = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return x, state
