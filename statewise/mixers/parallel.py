"""Two mixers of one input, whose outputs are added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from statewise.configuration.types import Finite
from statewise.mixers.base import Mixer, MixerConfig, frozen_inside
from statewise.operators.masks import Masks


class ParallelState(NamedTuple):
    """The states of the two mixers."""

    first: Any
    second: Any


@dataclass(frozen=True, kw_only=True)
class ParallelMixersConfig(MixerConfig):
    """Two mixers side by side, as attention and Mamba-2 in Falcon-H1.

    input_scales:  by which the input of each is multiplied
    output_scales: by which the output of each is multiplied
    Source: Zuo et al. 2025 (Falcon-H1), arXiv:2507.22448, sec. 2.1, and the multipliers of sec. 3.2.3.
    """

    first: MixerConfig
    second: MixerConfig
    input_scales: tuple[Finite, Finite] = (1.0, 1.0)
    output_scales: tuple[Finite, Finite] = (1.0, 1.0)

    def build(self, d_model: int) -> ParallelMixers:
        return ParallelMixers(d_model, self)


class ParallelMixers(Mixer):
    """y = b_1 first(a_1 x) + b_2 second(a_2 x).

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`ParallelState`
    Cost:    that of both.

    >>> import torch
    >>> from statewise.mixers.attention import AttentionConfig
    >>> from statewise.mixers.mamba2 import Mamba2Config
    >>> config = ParallelMixersConfig(first=AttentionConfig(n_heads=2), second=Mamba2Config(d_state=8, d_head=8))
    >>> y, state = config.build(16)(torch.randn(1, 5, 16))
    >>> y.shape
    torch.Size([1, 5, 16])
    """

    def __init__(self, d_model: int, config: ParallelMixersConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.first, self.second = config.first.build(d_model), config.second.build(d_model)
        both = (self.first, self.second)
        self.is_causal = all(mixer.is_causal for mixer in both)
        self.bounded_state = all(mixer.bounded_state for mixer in both)
        self.reads_memory = any(mixer.reads_memory for mixer in both)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        self.first.reset_parameters(residual_scale)
        self.second.reset_parameters(residual_scale)

    def _like(self) -> Tensor:
        return self.first._like()

    def state_shape(self) -> ParallelState:
        return ParallelState(self.first.state_shape(), self.second.state_shape())

    def check_state(self, state: Any, x: Tensor) -> None:
        if isinstance(state, ParallelState):
            self.first.check_state(state.first, x)
            self.second.check_state(state.second, x)
        else:
            super().check_state(state, x)

    def with_room(self, state: ParallelState, length: int) -> ParallelState:
        return ParallelState(self.first.with_room(state.first, length), self.second.with_room(state.second, length))

    def with_memory(self, state: ParallelState, memory: Tensor, **masks: Tensor | None) -> ParallelState:
        first, second = self.first.with_memory(state.first, memory, **masks), state.second
        return ParallelState(first, self.second.with_memory(second, memory, **masks))

    def parts(self) -> tuple[Mixer, ...]:
        return (*self.first.parts(), *self.second.parts())

    def freeze(self) -> Mixer:
        return frozen_inside(self, "first", "second")

    def mix(self, x: Tensor, state: ParallelState | None, masks: Masks) -> tuple[Tensor, ParallelState | None]:
        (a, b), (c, d) = self.config.input_scales, self.config.output_scales
        states = (None, None) if state is None else state
        y, first = self.first(_times(x, a), states[0], masks=masks)
        z, second = self.second(_times(x, b), states[1], masks=masks)
        return _times(y, c) + _times(z, d), None if state is None else ParallelState(first, second)


def _times(x: Tensor, scale: float) -> Tensor:
    return x if scale == 1.0 else x * scale
