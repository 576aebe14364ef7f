"""The history of an attention layer in buffers that stay where they are, for a step that never asks the device."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from statewise.mixers.attention import Attention
from statewise.mixers.attention_state import AttentionState, Context, Dropout, copy_with_room
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.operators.state_shape import StandIn

ROOM = 256  # tokens at least until a whole history is copied into a larger buffer, and the step recorded again


class StaticHistory(StandIn):
    """What a layer gets for one token of each row instead of an ``AttentionState``, whose numbers it never reads.

    The token's key and value go into slot ``end`` of the buffers, which are the step's alone. A query looks at all
    slots, through a mask: O(capacity) whatever the history's length.
    """

    def __init__(self, state: AttentionState) -> None:
        self.state = state

    @property
    def position(self) -> Tensor:
        return self.state.position

    def extend(self, own: Context) -> tuple[Context, StaticHistory]:
        keys, values, start, end, position, _ = self.state
        rows = torch.arange(len(end), device=end.device)
        keys[rows, end] = own.keys[:, 0].to(keys.dtype)
        values[rows, end] = own.values[:, 0].to(values.dtype)
        context = own._replace(keys=keys, values=values, n_history=end, oldest=start - end)
        after = end + 1
        return context, StaticHistory(AttentionState(keys, values, start, after, position + 1, after))

    def attend(self, q: Tensor, context: Context, dropout: Dropout | None = None) -> Tensor:
        return context.attend(q.to(self.state.keys.dtype), dropout)


def with_histories(state: LanguageModelState) -> LanguageModelState:
    """The state as the model's layers read it in such a step."""
    return _map(lambda part: StaticHistory(part) if isinstance(part, AttentionState) else part, state)


def without_histories(state: LanguageModelState) -> LanguageModelState:
    """The inverse."""
    return _map(lambda part: part.state if isinstance(part, StaticHistory) else part, state)


def restarted(state: LanguageModelState, restarts: Tensor) -> LanguageModelState:
    """The same with rows at rest where ``restarts`` (batch,) bool says that a document begins."""

    def zeroed(leaf: Tensor) -> Tensor:
        return leaf.masked_fill(restarts.view(-1, *[1] * (leaf.ndim - 1)), 0)

    def convert(part: Any) -> Any:
        if isinstance(part, AttentionState):  # what is before the document stays where it is, and is not seen
            return part._replace(start=part.end.where(restarts, part.start), position=zeroed(part.position))
        return zeroed(part)

    return _map(convert, state)


def copied_with_room(model: LanguageModel, state: LanguageModelState) -> LanguageModelState:
    """A copy whose histories have room for at least one token, and without a window for ``ROOM``; it waits for the
    device."""
    layers = []
    for block, layer in zip(model.blocks, state.layers):
        mixer = next((part for part in block.mixer.parts() if isinstance(part, Attention)), None)
        window = None if mixer is None else mixer.config.window

        def convert(part: Any, window: int | None = window) -> Any:
            if isinstance(part, AttentionState):
                return copy_with_room(part, ROOM if window is None else 1, window)
            return part.detach().clone(memory_format=torch.contiguous_format)

        layers.append(_map(convert, layer))
    return LanguageModelState(state.position.detach().clone(), tuple(layers))


def room(state: LanguageModelState) -> int | None:
    """How many tokens every history has room for; None without one. It waits for the device."""
    found = [part.keys.shape[1] - int(part.end.max()) for part in histories(state) if len(part.end)]
    return min(found, default=None)


def histories(state: Any) -> list[AttentionState]:
    found: list[AttentionState] = []
    _map(lambda part: found.append(part) if isinstance(part, AttentionState) else None, state)
    return found


def _map(convert: Any, state: Any) -> Any:
    return tree_map(convert, state, is_leaf=lambda part: isinstance(part, (AttentionState, StaticHistory)))
