"""What a model knows after reading, and how it reads more: with the model or with a decoder."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from statewise.decoding import Running
from statewise.decoding.static import StaticRun
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.precision import full_precision

N_RECENT = 8  # tokens that the text of the next one may depend on: a character's bytes, a word's leading space


class Reading(NamedTuple):
    """What a model knows after reading, and all that generation needs to continue.

    A pytree of tensors, batch first, never mutated: keep it, save it, move it, continue from it as often as you like.

    logits: (batch, vocabulary) float32 or wider, of the next token
    state:  the model's state after the last token that was read
    seen:   (batch, vocabulary) bool, the ids read so far, for the repetition penalty
    recent: (batch, 8) int64, the last ids read, -1 for none, from which the text continues
    """

    logits: Tensor
    state: LanguageModelState
    seen: Tensor
    recent: Tensor


def nothing_read(model: LanguageModel, batch: int, state: LanguageModelState | None) -> Reading:
    state = model.initial_state(batch) if state is None else state
    weight = model.head.weight
    return Reading(
        logits=torch.zeros(batch, model.config.vocab_size, dtype=full_precision(weight.dtype), device=weight.device),
        state=state,
        seen=torch.zeros(batch, model.config.vocab_size, dtype=torch.bool, device=weight.device),
        recent=torch.full((batch, N_RECENT), -1, device=weight.device),
    )


def extend(
    model: LanguageModel, reading: Reading, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None
) -> Reading:
    """The Reading after these tokens (batch, length); a row of length 0 keeps its own."""
    features, state = model.features(tokens, reading.state, lengths=lengths, starts=starts)
    assert state is not None  # a state was given
    if lengths is None:
        logits = model.head(features[:, -1])
        seen = reading.seen.scatter(1, tokens, True)
        recent = torch.cat([reading.recent, tokens[:, -N_RECENT:]], dim=1)[:, -N_RECENT:]
        return Reading(logits.to(full_precision(logits.dtype)), state, seen, recent)
    rows, read_any = torch.arange(len(tokens), device=tokens.device), (lengths > 0)[:, None]
    logits = model.head(features[rows, (lengths - 1).clamp(min=0)])
    # Padding repeats the row's first token, which is marked anyway if the row has any.
    real = torch.arange(tokens.shape[1], device=tokens.device) < lengths[:, None]
    seen = reading.seen.scatter(1, tokens.where(real, tokens[:, :1]), True)
    back = torch.arange(N_RECENT, device=tokens.device) + lengths[:, None]
    return Reading(
        logits.to(full_precision(logits.dtype)).where(read_any, reading.logits),
        state,
        seen.where(read_any, reading.seen),
        torch.cat([reading.recent, tokens], dim=1).gather(1, back),
    )


def extend_by_one(
    running: Running | StaticRun, reading: Reading, tokens: Tensor, lengths: Tensor | None, starts: Tensor | None
) -> Reading:
    """As :func:`extend` by one token (batch, 1) of each row. The state of both Readings is ``running``'s, and the next
    step writes over it."""
    logits = running.step(tokens, lengths=lengths, starts=starts)
    assert logits is not None  # they were asked for
    return behind_one(reading, logits, running.passing_state(), tokens, lengths)


def behind_one(
    reading: Reading, logits: Tensor, state: LanguageModelState, tokens: Tensor, lengths: Tensor | None
) -> Reading:
    """The Reading behind one more token (batch, 1) of each row, of which these are the logits and the state."""
    seen = reading.seen.scatter(1, tokens, True)
    recent = torch.cat([reading.recent[:, 1:], tokens], dim=1)
    if lengths is None:
        return Reading(logits, state, seen, recent)
    read = (lengths > 0)[:, None]
    return Reading(
        logits.where(read, reading.logits),
        state,
        seen.where(read, reading.seen),
        recent.where(read, reading.recent),
    )


def read_again(model: LanguageModel, reading: Reading, written: list[list[int]], document_token: int | None) -> Reading:
    """What the model knows behind a Reading and the tokens written since, of each step those of all rows; -1 is none.

    document_token: if it begins a new document
    """
    tokens = torch.tensor(written, dtype=torch.int64, device=reading.logits.device)
    if not tokens.numel():
        return copied(reading)
    with evaluation_mode(model), torch.no_grad():
        starts = None if document_token is None else tokens == document_token
        return extend(model, reading, tokens.clamp(min=0), (tokens >= 0).sum(1), starts)


def copied(reading: Reading) -> Reading:
    """Tensors like any other: those of inference mode can be neither trained with nor appended to outside of it."""
    copied: Reading = tree_map(torch.clone, reading)
    return copied
