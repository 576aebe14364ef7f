"""Sequences that leave a running batch, and others that join it."""

from __future__ import annotations

import pytest
import torch
from decoded_models import LAYERS, build, needs_library, said, tokens_of
from torch.utils._pytree import tree_map

import statewise as sw
from statewise.decoding import Decoder

pytestmark = needs_library


def row_of(state: sw.models.LanguageModelState, row: int) -> sw.models.LanguageModelState:
    return tree_map(lambda leaf: leaf[row : row + 1].clone(), state)


@pytest.mark.parametrize("layers", LAYERS)
def test_a_row_that_joins_says_what_it_says_alone(layers: str) -> None:
    model = build(layers)
    decoder = Decoder(model)
    with torch.no_grad():
        _, long = model(tokens_of(1, 17), model.initial_state(1))
        _, short = model(tokens_of(2, 3)[1:], model.initial_state(1))
    before = [leaf.clone() for leaf in said(model, long)]
    run, alone = decoder.run(decoder.initial_state(3)), [decoder.run(long), decoder.run(short), decoder.run(long)]
    ids = tokens_of(3, 12)
    lengths = torch.tensor([0, 0, 0])
    for t, (slot, state) in enumerate([(1, short), (0, long), (2, long)] * 2):
        if t >= 3:  # a slot is used again
            alone[slot] = decoder.run(state)
        run.put(slot, state)
        lengths[slot] = 1
        for column in (2 * t, 2 * t + 1):
            logits = run.step(ids[:, column], lengths=lengths)
            assert logits is not None
            for i in range(3):
                if lengths[i]:
                    want = alone[i].step(ids[i : i + 1, column])
                    torch.testing.assert_close(logits[i : i + 1], want, rtol=1e-4, atol=1e-4)
        if t == 2:  # those that began on their own have been stepped since
            kept = run.state
            run.put(0, long)
            for i in range(3):
                ours, theirs = said(model, row_of(kept, i)), said(model, row_of(alone[i].state, 0))
                for got, want in zip(ours, theirs, strict=True):
                    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
            run.put(0, row_of(kept, 0))
    for got, want in zip(said(model, long), before, strict=True):
        assert torch.equal(got, want)


def test_what_does_not_fit_is_refused() -> None:
    decoder = Decoder(build("mamba"))
    run = decoder.run(decoder.initial_state(2))
    with pytest.raises(sw.errors.InputError, match="batch"):
        run.put(0, decoder.initial_state(2))
