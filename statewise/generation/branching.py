"""Several continuations of one prompt, which share what they continue: by a decoder in C, or by the model itself."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from statewise.decoding import Decoder, with_weights
from statewise.generation.reading import Reading, behind_one, copied
from statewise.generation.stepping import Step, wants_decoder
from statewise.mixers.attention_state import AttentionState
from statewise.mixers.branched_history import BranchedHistory, Tails
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.precision import full_precision

ROOM = 64  # tokens behind the prompt that there is room for at first


class Branches(Protocol):
    """n continuations of each row of a state; see :class:`~statewise.decoding.branches.DecoderBranches`."""

    def step(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor: ...

    def take(self, parents: Tensor) -> None: ...

    def whole(self) -> LanguageModelState: ...


class ModelBranches:
    """The same by calls of the model."""

    def __init__(self, model: LanguageModel, state: LanguageModelState, n: int) -> None:
        self._model = model
        self._tails = Tails(len(state.position) * n, ROOM, state.position.device)
        self._state = _each(
            lambda part: BranchedHistory.of(part, n, self._tails),
            lambda leaf: leaf.repeat_interleave(n, 0),
            state,
            AttentionState,
        )

    def step(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        tokens = tokens.reshape(-1, 1)
        if self._tails.n_used == self._tails.capacity:
            self._tails.grow()
            _each(BranchedHistory.grow, _same, self._state, BranchedHistory)
        with evaluation_mode(self._model), torch.inference_mode():
            features, after = self._model.features(tokens, self._state, lengths=lengths, starts=starts)
            logits = self._model.head(features[:, -1])
        assert after is not None  # a state was given
        self._state = after
        self._tails.n_used += 1
        logits = logits.to(full_precision(logits.dtype))
        return logits if lengths is None else logits.masked_fill((lengths == 0)[:, None], 0.0)

    def take(self, parents: Tensor) -> None:
        self._tails.take(parents)
        with torch.inference_mode():

            def moved(history: BranchedHistory) -> BranchedHistory:
                history.take(parents)
                return history

            self._state = _each(moved, lambda leaf: leaf[parents], self._state, BranchedHistory)

    def whole(self) -> LanguageModelState:
        return _each(BranchedHistory.whole, torch.clone, self._state, BranchedHistory)


class Branching:
    """How the tokens behind a prompt are read when n continuations are written.

    Errors:  InputError for ``weights`` that this model cannot have.
    """

    def __init__(self, model: LanguageModel, weights: str | Decoder | None, n_tokens: int, n: int) -> None:
        self.n = n
        self._model, self._weights = model, weights
        self._in_c = wants_decoder(model, weights, n_tokens)
        self._branches: Branches | None = None

    def begun(self, reading: Reading) -> Reading:
        """Behind the prompt: a row for each continuation. The state stays that of the prompt."""
        logits, seen, recent = (x.repeat_interleave(self.n, 0) for x in (reading.logits, reading.seen, reading.recent))
        return Reading(logits, reading.state, seen, recent)

    def branches(self, reader: LanguageModel, state: LanguageModelState) -> Branches:
        """reader: the model, perhaps frozen"""
        if self._in_c:
            weights = self._weights
            decoder = weights if isinstance(weights, Decoder) else Decoder(self._model, weights)
            return decoder.branches(state, self.n)
        if self._weights is not None:
            reader = with_weights(self._model, str(self._weights), len(state.position) * self.n)
        return ModelBranches(reader, state, self.n)

    def steps(self, reader: LanguageModel, reading: Reading) -> Step:
        """As :func:`~statewise.generation.stepping.stepping`."""
        self._branches = self.branches(reader, reading.state)
        return partial(_extend, self._branches)

    def apart(self, reading: Reading) -> Reading:
        """A copy of what each continuation knows, with a state of its own."""
        if self._branches is None:
            return copied(reading._replace(state=repeated(reading.state, self.n)))
        with torch.inference_mode():
            state = self._branches.whole()
        return copied(reading._replace(state=state))


def repeated(state: Any, n: int) -> Any:
    """Each row n times: copies."""
    return tree_map(lambda leaf: leaf.repeat_interleave(n, 0), state)


def _extend(
    branches: Branches, reading: Reading, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None
) -> Reading:
    logits = branches.step(tokens, lengths=lengths, starts=starts)
    return behind_one(reading, logits, reading.state, tokens, lengths)


def _each(history: Callable[[Any], Any], leaf: Callable[[Tensor], Any], state: Any, kind: type) -> Any:
    """The state with its histories, which are of this kind, and its other leaves changed."""

    def changed(part: Any) -> Any:
        return history(part) if isinstance(part, kind) else leaf(part)

    return tree_map(changed, state, is_leaf=lambda part: isinstance(part, kind))


def _same(part: Any) -> Any:
    return part
