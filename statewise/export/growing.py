"""The history of an attention layer as an exported program has it: longer after each call, or as long as its window."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from statewise.mixers.attention import Attention
from statewise.mixers.attention_state import AttentionState, Context, Dropout
from statewise.models.encoder import SequenceModel
from statewise.models.language_model import LanguageModel
from statewise.operators.state_shape import StandIn


class GrowingState(NamedTuple):
    """keys, values: (batch, history, n_kv_heads, d_head), the row's last ones last, zeros or others' before them; with
    a window there are always as many as it sees behind a token, or one if it sees none
    position: (batch,) int64, tokens of the row"""

    keys: Tensor
    values: Tensor
    position: Tensor


class GrowingHistory(StandIn):
    """What a layer gets instead of an ``AttentionState``; a :class:`GrowingState` is what it holds."""

    def __init__(self, state: GrowingState) -> None:
        self.state = state

    @property
    def position(self) -> Tensor:
        return self.state.position

    def extend(self, own: Context) -> tuple[Context, GrowingHistory]:
        """Rows that read fewer tokens than others are moved, so that the last of each is the last of its history."""
        keys, values, position = self.state
        n_history, length = keys.shape[1], own.keys.shape[1]
        new = (own.keys.to(keys.dtype), own.values.to(values.dtype))
        all_keys, all_values = (torch.cat(both, 1) for both in zip((keys, values), new))
        context = own._replace(keys=all_keys, values=all_values, lengths=None, n_history=n_history, oldest=-position)
        if own.lengths is None:
            position = position + length
        else:
            position = position + own.lengths
            place = torch.arange(n_history + length, device=keys.device) - (length - own.lengths)[:, None]
            place = place.clamp(min=0)[..., None, None]
            all_keys, all_values = (m.gather(1, place.expand(-1, -1, *m.shape[2:])) for m in (all_keys, all_values))
        if own.window is not None:
            all_keys, all_values = all_keys[:, length:], all_values[:, length:]
        return context, GrowingHistory(GrowingState(all_keys, all_values, position))

    def attend(self, q: Tensor, context: Context, dropout: Dropout | None = None) -> Tensor:
        return context.attend(q.to(self.state.keys.dtype), dropout)


def exported_rest(model: LanguageModel | SequenceModel, batch: int, device: Any = None) -> Any:
    """The state at rest as the program has it."""
    state = as_exported(model.initial_state(batch, device=device))
    layers = []
    for block, layer in zip(model.blocks, state.layers):
        mixer = next((part for part in block.mixer.parts() if isinstance(part, Attention)), None)
        window = None if mixer is None else mixer.config.window
        layers.append(layer if window is None else _map(partial(_slots, n=max(window - 1, 1)), layer, GrowingState))
    return state._replace(layers=tuple(layers))


def _slots(part: Any, n: int) -> Any:
    if not isinstance(part, GrowingState):
        return part
    return part._replace(**{name: m.new_zeros(len(m), n, *m.shape[2:]) for name, m in zip(part._fields[:2], part)})


def as_exported(state: Any) -> Any:
    """A model's state as the program has it: instead of each history, what is kept of it."""

    def convert(part: Any) -> Any:
        if isinstance(part, GrowingHistory):
            return part.state
        return GrowingState(part.keys, part.values, part.position) if isinstance(part, AttentionState) else part

    return _map(convert, state, (GrowingHistory, AttentionState))


def as_read(state: Any) -> Any:
    """The inverse: a state that the model's layers read."""
    return _map(lambda part: GrowingHistory(part) if isinstance(part, GrowingState) else part, state, GrowingState)


def _map(convert: Callable[[Any], Any], state: Any, kinds: Any) -> Any:
    return tree_map(convert, state, is_leaf=lambda part: isinstance(part, kinds))
