"""Sequences that are decoded together while they come and go: by a decoder in C, or by the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from statewise.decoding import Decoder
from statewise.mixers.attention_state import AttentionState, copy_with_room
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.precision import full_precision


class Rows(Protocol):
    """Up to ``n`` sequences, each under the number that it joined with."""

    n: int

    def join(self, row: int, state: LanguageModelState) -> None:
        """The state of one row is copied."""

    def leave(self, row: int) -> None: ...

    def step(self, tokens: Mapping[int, int]) -> Tensor:
        """One token of each of these rows -> their logits (rows, vocabulary), in the order of the mapping. The other
        rows wait."""

    def state(self, row: int) -> LanguageModelState:
        """A copy of a row's state."""


class DecoderRows:
    """Over a decoder's step. A row has a place of its own in the batch, and costs nothing while nobody has it.

    Numerics: in int8 and int4 a row's bits do not depend on the others. In float32 and bfloat16 they do not either, as
              long as two rows or more are decoded; a lone row differs by float32's rounding.
    """

    def __init__(self, decoder: Decoder, n: int) -> None:
        self.n = n
        self._decoder = decoder
        self._rest = decoder.initial_state(1)
        self._run = decoder.run(decoder.initial_state(n))
        self._used: set[int] = set()

    def join(self, row: int, state: LanguageModelState) -> None:
        self._used.add(row)
        self._run.put(row, state)

    def leave(self, row: int) -> None:
        self._used.discard(row)
        if not _has_history(self._rest):
            return
        if self._used:
            self._run.put(row, self._rest)  # a long history would set the size of every other
        else:
            self._run = self._decoder.run(self._decoder.initial_state(self.n))

    def step(self, tokens: Mapping[int, int]) -> Tensor:
        rows = list(tokens)
        ids = torch.zeros(self.n, dtype=torch.int64)
        lengths = torch.zeros(self.n, dtype=torch.int64)
        ids[rows] = torch.tensor(list(tokens.values()))
        lengths[rows] = 1
        logits = self._run.step(ids, lengths=lengths)
        assert logits is not None  # they were asked for
        return logits[rows]

    def state(self, row: int) -> LanguageModelState:
        return row_of(self._run.passing_state(), row)


class ModelRows:
    """Over the model, for layers without a step in C and for GPUs. The states of the rows are put together where a row
    joins or leaves."""

    def __init__(self, model: LanguageModel, n: int) -> None:
        self.n = n
        self._model = model
        self._apart: dict[int, LanguageModelState] = {}
        self._order: tuple[int, ...] = ()
        self._together: LanguageModelState | None = None

    def join(self, row: int, state: LanguageModelState) -> None:
        self._apart[row] = row_of(state, 0)

    def leave(self, row: int) -> None:
        self._separate()
        self._apart.pop(row, None)

    def step(self, tokens: Mapping[int, int]) -> Tensor:
        rows = tuple(tokens)
        if self._order != rows or self._together is None:
            self._separate()
            self._together, self._order = stacked([self._apart.pop(row) for row in rows]), rows
        ids = torch.tensor(list(tokens.values()), device=self._together.position.device)[:, None]
        features, after = self._model.features(ids, self._together)
        assert after is not None  # a state was given
        self._together = after
        logits = self._model.head(features[:, -1])
        return logits.to(full_precision(logits.dtype))

    def state(self, row: int) -> LanguageModelState:
        if row in self._order and self._together is not None:
            return row_of(self._together, self._order.index(row))
        return row_of(self._apart[row], 0)

    def _separate(self) -> None:
        if self._together is not None:
            self._apart |= {row: row_of(self._together, i) for i, row in enumerate(self._order)}
        self._order, self._together = (), None


def stacked(states: Sequence[LanguageModelState]) -> LanguageModelState:
    """States of one row each as those of one batch; copies.

    >>> import statewise as sw
    >>> model = sw.LanguageModelConfig(vocab_size=9, d_model=8, layers=(sw.S4DConfig(d_state=4),)).build()
    >>> stacked([model.initial_state(1), model.initial_state(1)]).position
    tensor([0, 0])
    """
    longest: dict[int, int] = {}

    def note(i: int, history: AttentionState) -> AttentionState:
        longest[i] = max(longest.get(i, 0), int(history.end - history.start) + 1)
        return history

    def even(i: int, history: AttentionState) -> AttentionState:
        fitting = copy_with_room(history, longest[i] - int(history.end - history.start))
        slots = slice(longest[i])
        return fitting._replace(keys=fitting.keys[:, slots], values=fitting.values[:, slots])

    for state in states:
        _map_histories(note, state)
    flat = [tree_flatten(_map_histories(even, state)) for state in states]
    leaves = [torch.cat(leaf) for leaf in zip(*(leaves for leaves, _ in flat), strict=True)]
    together: LanguageModelState = tree_unflatten(leaves, flat[0][1])
    return together


def row_of(state: LanguageModelState, row: int) -> LanguageModelState:
    """One row, in tensors of its own."""
    taken: LanguageModelState = tree_map(lambda leaf: leaf[row : row + 1].clone(), state)
    return _map_histories(lambda i, history: copy_with_room(history, 1), taken)


def _map_histories(change: Any, state: LanguageModelState) -> LanguageModelState:
    """The same state with ``change(number, history)`` in place of each history of attention."""
    count = iter(range(1 << 30))

    def inner(part: Any) -> Any:
        return change(next(count), part) if isinstance(part, AttentionState) else part

    is_history = partial(_is_a, AttentionState)
    changed: LanguageModelState = tree_map(inner, state, is_leaf=is_history)
    return changed


def _is_a(kind: type, part: Any) -> bool:
    return isinstance(part, kind)


def _has_history(state: LanguageModelState) -> bool:
    parts = tree_leaves(state, is_leaf=partial(_is_a, AttentionState))
    return any(isinstance(part, AttentionState) for part in parts)
