"""Zamba2's layer: a Transformer that several layers share is read into a mixer of each layer's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Natural, NonNegative
from statewise.errors import ConfigError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import Mixer, MixerConfig, frozen_inside
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.mixers.rms_norm import RMSNorm
from statewise.models.mlp import MLPConfig
from statewise.operators.masks import Masks


class SharedTransformerState(NamedTuple):
    """The states of the attention and of the layer's own mixer."""

    attention: Any
    mixer: Any


@dataclass(frozen=True, kw_only=True)
class SharedTransformerConfig(MixerConfig):
    """A mixer whose input is first joined by what a shared Transformer makes of it, and of the model's embedding.

    mixer:      the layer's own
    attention:  of width 2 d_model, with ``d_head`` set; its output has width d_model
    mlp:        behind the attention
    shared:     layers of one number share attention, MLP and their norms
    d_adapter:  each layer adds maps of this rank to the first map of the MLP; None: none
    attention_adapters: and to those of queries, keys and values
    norm_eps:   of the three norms
    Source: Glorioso et al. 2024 (Zamba2), arXiv:2411.15242, sec. 2, fig. 2.
    """

    mixer: MixerConfig
    attention: AttentionConfig
    mlp: MLPConfig
    shared: Natural = 0
    d_adapter: Count | None = None
    attention_adapters: bool = False
    norm_eps: NonNegative = 1e-5

    def __post_init__(self) -> None:
        if self.attention.d_head is None:
            raise ConfigError("SharedTransformerConfig.attention reads twice d_model features; set its d_head")
        if self.attention_adapters and self.d_adapter is None:
            raise ConfigError("SharedTransformerConfig.attention_adapters without d_adapter, their rank; set it")

    def build(self, d_model: int) -> SharedTransformer:
        return SharedTransformer(d_model, self)


class Adapted(nn.Module):
    """A map, and one of lower rank beside each of its parts: W x + [U_1 V_1 x, U_2 V_2 x, ...]."""

    def __init__(self, base: Linear, rank: int, parts: Sequence[int]) -> None:
        super().__init__()
        self.base = base
        self.down = Linear(base.in_features, rank * len(parts), bias=False, parts=(rank,) * len(parts))
        self.ups = nn.ModuleList(Linear(rank, size, bias=False) for size in parts)

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        low = self.down(x).chunk(len(self.ups), -1)
        return self.base(x) + torch.cat([up(part) for up, part in zip(self.ups, low)], -1)


class SharedTransformer(Mixer):
    """t = W mlp(norm(attention(norm([x, e])))), y = mixer(norm(x + t)), with e the embedding of the token.

    Without a language model around it e is x. It norms what it reads, so that its block does not.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`SharedTransformerState`
    Cost:    that of the attention over 2 d_model features, of the MLP and of the mixer.
    """

    has_norm = True
    reads_embedding = True

    def __init__(self, d_model: int, config: SharedTransformerConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        attention, mlp, rank = config.attention.build(2 * d_model), config.mlp.build(d_model), config.d_adapter
        out = attention.out_proj
        attention.out_proj = Linear(out.in_features, d_model, bias=out.bias is not None)
        if rank is not None and config.attention_adapters:
            attention.in_proj = Adapted(attention.in_proj, rank, attention.in_proj.parts)  # type: ignore[assignment]
        if rank is not None:
            mlp.in_proj = Adapted(mlp.in_proj, rank, (mlp.in_proj.out_features,))  # type: ignore[assignment]
        self.attention_norm, self.mlp_norm = (
            RMSNorm(2 * d_model, eps=config.norm_eps),
            RMSNorm(d_model, eps=config.norm_eps),
        )
        self.attention, self.mlp = attention, mlp
        self.linear = Linear(d_model, d_model, bias=False)
        self.norm = RMSNorm(d_model, eps=config.norm_eps)
        self.mixer = config.mixer.build(d_model)
        self.is_causal = self.attention.is_causal and self.mixer.is_causal
        self.bounded_state = self.attention.bounded_state and self.mixer.bounded_state
        self.reads_memory = self.mixer.reads_memory
        self.reset_parameters()

    def _shared(self) -> tuple[nn.Module, ...]:
        """The modules whose parameters several layers may have in common."""
        attention, mlp = self.attention, self.mlp
        maps = [m.base if isinstance(m, Adapted) else m for m in (attention.in_proj, mlp.in_proj)]
        return (self.attention_norm, self.mlp_norm, *maps, attention.out_proj, mlp.out_proj)

    def share(self, owner: SharedTransformer) -> None:
        """Takes the parameters of another layer in place of those of its own, where they are shared."""
        for mine, theirs in zip(self._shared(), owner._shared()):
            for name, parameter in theirs.named_parameters():
                setattr(mine, name, parameter)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        for module in (*self._shared(), self.linear, self.norm):
            if isinstance(module, Linear):
                draw_normal(WEIGHT_STD, module)
            elif isinstance(module, RMSNorm):
                module.reset_parameters()
        for module in (self.attention.in_proj, self.mlp.in_proj):
            if isinstance(module, Adapted):
                draw_normal(WEIGHT_STD, module.down, *module.ups)
        self.mixer.reset_parameters(residual_scale)

    def parts(self) -> tuple[Mixer, ...]:
        return (*self.attention.parts(), *self.mixer.parts())

    def _like(self) -> Tensor:
        return self.linear.weight

    def state_shape(self) -> SharedTransformerState:
        return SharedTransformerState(self.attention.state_shape(), self.mixer.state_shape())

    def check_state(self, state: Any, x: Tensor) -> None:
        if isinstance(state, SharedTransformerState):
            self.attention.check_state(state.attention, x)
            self.mixer.check_state(state.mixer, x)
        else:
            super().check_state(state, x)

    def with_room(self, state: SharedTransformerState, length: int) -> SharedTransformerState:
        attention = self.attention.with_room(state.attention, length)
        return SharedTransformerState(attention, self.mixer.with_room(state.mixer, length))

    def with_memory(
        self, state: SharedTransformerState, memory: Tensor, **masks: Tensor | None
    ) -> SharedTransformerState:
        return state._replace(mixer=self.mixer.with_memory(state.mixer, memory, **masks))

    def freeze(self) -> Mixer:
        return frozen_inside(self, "mixer")

    def mix(
        self, x: Tensor, state: SharedTransformerState | None, masks: Masks
    ) -> tuple[Tensor, SharedTransformerState | None]:
        history, before = (None, None) if state is None else state
        embedded = x if masks.embedded is None else masks.embedded
        z, history = self.attention(self.attention_norm(torch.cat((x, embedded), -1)), history, masks=masks)
        t = self.linear(self.mlp(self.mlp_norm(z)))
        y, after = self.mixer(self.norm(x + t), before, masks=masks)
        return y, None if state is None else SharedTransformerState(history, after)


def share_weights(mixers: Iterable[Mixer]) -> None:
    """Layers with one number have one set of shared weights, those of the first of them.

    Errors:  ConfigError where their configs make different weights.
    """
    first: dict[int, SharedTransformer] = {}
    for mixer in mixers:
        if not isinstance(mixer, SharedTransformer):
            continue
        owner = first.setdefault(mixer.config.shared, mixer)
        mine, theirs = mixer.config, owner.config
        if (mine.attention, mine.mlp, mine.norm_eps) != (theirs.attention, theirs.mlp, theirs.norm_eps):
            raise ConfigError(f"layers with shared={mine.shared} differ in attention, mlp or norm_eps; make them equal")
        if mixer is not owner:
            mixer.share(owner)
