"""Reading several tokens of which the last may be taken back: by a decoder in C, or by the model itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from statewise import kernels
from statewise.decoding import Decoder, check_weights, dequantised, why_not
from statewise.errors import InputError
from statewise.generation.stepping import WORTH_PACKING
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.models.rewinding import RewindableState, rewindable
from statewise.precision import full_precision


class ReadsAhead(Protocol):
    """``read`` tokens, perhaps several times, and then ``keep`` the first of them; see
    :class:`~statewise.decoding.ahead.Ahead`. Counts, tokens and logits are on the CPU."""

    def read(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor: ...

    def keep(self, counts: Tensor) -> None: ...


class ModelAhead:
    """The same by calls of the model; what is taken back is made again from the inputs of the recurrences."""

    def __init__(self, model: LanguageModel, state: LanguageModelState, most: int) -> None:
        self._model, self._most = model, most
        self._state: RewindableState = rewindable(state, last=most)

    def read(self, tokens: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Tensor:
        device = self._state.position.device
        lengths, starts = (x if x is None else x.to(device) for x in (lengths, starts))
        with evaluation_mode(self._model), torch.inference_mode():
            logits, state = self._model(tokens.to(device), self._state, lengths=lengths, starts=starts)
        assert isinstance(state, RewindableState)  # as the one that was given
        self._state = state
        return logits.to("cpu", full_precision(logits.dtype))

    def keep(self, counts: Tensor) -> None:
        with torch.inference_mode():
            state = self._state.at(self._state.n_kept - counts.to(self._state.position.device))
        self._state = rewindable(state, last=self._most)


def reading_ahead(
    model: LanguageModel, weights: str | Decoder | None, n_tokens: int
) -> Callable[[LanguageModelState, int], ReadsAhead]:
    """How the tokens behind the prompt are read, in the way in which :func:`~.stepping.stepping` reads them one by one:
    given a state, and how many tokens are read at most until it is said which of them stay.

    Errors:  InputError for ``weights`` that this model cannot have.
    """
    if isinstance(weights, Decoder):
        if weights.config != model.config:
            raise InputError("the decoder was made from a model with a different configuration; make one from this one")
        return weights.ahead
    on_cuda = model.embedding.weight.device.type == "cuda"
    if weights is not None:
        check_weights(model, weights)
    wanted = weights is not None or (n_tokens > WORTH_PACKING and kernels.backend.backend() != "torch")
    if wanted and not on_cuda and why_not(model) is None:
        return Decoder(model, weights).ahead
    reader = model if weights is None else dequantised(model, weights).eval()
    reader = freeze(reader) if has_operators_to_prepare(reader) else reader
    return lambda state, most: ModelAhead(reader, state, most)
