"""Batches: every token once, rows that read on, and nothing but (seed, step) decides."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from statewise.data.batches import Batch, Batches
from statewise.data.text import TextDataConfig, TokenSplit, open_corpus
from statewise.errors import ConfigError, DataError

DOCUMENT = 60_000


def split_of(lengths: list[int]) -> TokenSplit:
    """Documents of these lengths (with their document token); all other tokens are distinct: their own place."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = np.arange(offsets[-1]).astype(np.uint16)
    tokens[offsets[:-1]] = DOCUMENT
    return TokenSplit("train", tokens, offsets, np.array(lengths, np.int64) - 1, DOCUMENT)


def equal(a: Batch, b: Batch) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b))


def rings(split: TokenSplit) -> list[list[int]]:
    """The documents as lists."""
    offsets = split.document_offsets
    return [split.tokens[offsets[i] : offsets[i + 1]].tolist() for i in range(split.n_documents)]


shapes = st.tuples(
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(1, 12),
    st.integers(0, 5),
    st.booleans(),
).filter(lambda case: sum(case[0]) >= case[1] * (case[2] + 1))


@given(shapes)
def test_every_batch_is_a_reading_of_whole_documents(case: tuple[list[int], int, int, int, bool]) -> None:
    """Within a row each token is followed by the next of its document, and a document by another from its beginning;
    targets are one ahead of inputs; documents begin where ``starts`` says, and nowhere else.
    """
    lengths, batch_size, length, seed, carry = case
    split = split_of(lengths)
    batches = Batches(split, batch_size, length, seed, carry)
    last = set((split.document_offsets[1:] - 1).tolist())
    for step in range(min(2 * batches.steps_per_epoch, 60)):
        inputs, targets, starts = batches[step]
        assert inputs.shape == targets.shape == starts.shape == (batch_size, length)
        assert (inputs.dtype, targets.dtype, starts.dtype) == (torch.int64, torch.int64, torch.bool)
        assert torch.equal(inputs[:, 1:], targets[:, :-1])
        begins = inputs == DOCUMENT
        if carry and step % batches.steps_per_epoch == 0:
            begins[:, 0] = True
        assert torch.equal(starts, begins)
        for token, following in zip(inputs.flatten().tolist(), targets.flatten().tolist()):
            if token != DOCUMENT and following != DOCUMENT:
                assert following == token + 1
            elif token != DOCUMENT:
                assert token in last


@given(shapes)
def test_an_epoch_has_every_token_at_most_once_as_a_target(case: tuple[list[int], int, int, int, bool]) -> None:
    lengths, batch_size, length, seed, carry = case
    split = split_of(lengths)
    batches = Batches(split, batch_size, length, seed, carry)
    for epoch in range(2):
        first = epoch * batches.steps_per_epoch
        targets = torch.cat([batches[first + step].targets.flatten() for step in range(batches.steps_per_epoch)])
        tokens, counts = targets.unique(return_counts=True)
        n_repeated = {int(token): int(count) for token, count in zip(tokens, counts) if count > 1}
        assert n_repeated.pop(DOCUMENT, 0) <= split.n_documents
        assert not n_repeated
        left_out = split.n_tokens - len(targets)
        assert 0 <= left_out < batch_size * length


def test_an_epoch_that_divides_evenly_leaves_nothing_out() -> None:
    split = split_of([7, 1, 12, 20, 8])
    for carry in (False, True):
        batches = Batches(split, 4, 6, 3, carry)
        assert batches.steps_per_epoch == 2
        targets = sorted(batches[0].targets.flatten().tolist() + batches[1].targets.flatten().tolist())
        assert targets == sorted(split.tokens.tolist())


def test_a_place_in_the_data_is_the_step_alone() -> None:
    """Any order of steps, a fresh object, another copy of the tokens: always the same batch."""
    split = split_of([random.Random(0).randrange(1, 50) for _ in range(60)])
    for carry in (False, True):
        batches = Batches(split, 3, 16, 7, carry)
        n = 3 * batches.steps_per_epoch
        expected = [batches[step] for step in range(n)]
        for step in random.Random(1).sample(range(n), n):
            assert equal(batches[step], expected[step])
        assert equal(Batches(split, 3, 16, 7, carry)[n - 1], expected[-1])
        assert not equal(Batches(split, 3, 16, 8, carry)[0], expected[0])


@pytest.mark.parametrize("lengths", [[500], [5] * 100])
@pytest.mark.parametrize("carry", [False, True])
def test_epochs_differ_also_where_there_is_one_document(lengths: list[int], carry: bool) -> None:
    batches = Batches(split_of(lengths), 4, 10, 0, carry)
    n = batches.steps_per_epoch
    assert not equal(batches[0], batches[n])
    assert not equal(batches[n], batches[2 * n])


def test_carried_rows_read_on_where_they_stopped() -> None:
    split = split_of([13, 40, 5, 70, 22, 51])
    batches = Batches(split, 4, 7, 2, carry=True)
    n = batches.steps_per_epoch
    assert n == 201 // 4 // 7
    for epoch in range(2):
        steps = [batches[epoch * n + step] for step in range(n)]
        for before, after in itertools.pairwise(steps):
            assert torch.equal(after.inputs[:, 0], before.targets[:, -1])
        rows = torch.cat([batch.inputs for batch in steps], dim=1)
        starts = torch.cat([batch.starts for batch in steps], dim=1)
        assert starts[:, 0].all()
        assert torch.equal(starts[:, 1:], rows[:, 1:] == DOCUMENT)


def test_the_order_of_an_epoch_is_a_permutation_of_its_documents() -> None:
    """Read with one row that fills the epoch exactly: the ring, entered somewhere."""
    split = split_of([3, 9, 1, 6, 6, 2, 12, 5])
    orders = set()
    for seed in range(5):
        batches = Batches(split, 1, split.n_tokens - 1, seed, carry=True)
        inputs, targets, _ = batches[0]
        ring = [*inputs[0].tolist(), int(targets[0, -1])]
        first = ring.index(DOCUMENT)
        ring = ring[first:] + ring[:first]
        cuts = [i for i, token in enumerate(ring) if token == DOCUMENT] + [len(ring)]
        found = [ring[a:b] for a, b in itertools.pairwise(cuts)]
        assert sorted(found) == sorted(rings(split))
        orders.add(tuple(map(tuple, found)))
    assert len(orders) == 5


def test_windows_are_shuffled_over_the_epoch() -> None:
    split = split_of([20_000])
    batches = Batches(split, 10, 10, 0, carry=False)
    places = torch.cat([batches[step].inputs[:, 1] for step in range(batches.steps_per_epoch)]).double()
    time = torch.arange(len(places)).double()
    assert abs(torch.corrcoef(torch.stack([places, time]))[0, 1]) < 0.1


def test_data_shorter_than_asked_for_is_refused_with_both_numbers() -> None:
    split = split_of([30, 35])
    assert Batches(split, 5, 12, 0, carry=False).steps_per_epoch == 1
    assert Batches(split, 5, 12, 0, carry=True).steps_per_epoch == 1
    with pytest.raises(DataError, match=r"the train split has 65 tokens, but batch_size 6 of length 12 needs 78; use"):
        Batches(split, 6, 12, 0, carry=False)
    for name, arguments in {"batch_size=0": (0, 1, 0), "length=0": (1, 0, 0), "seed=-1": (1, 1, -1)}.items():
        with pytest.raises(ConfigError, match=f"{name} is out of range; use at least"):
            Batches(split, *arguments, carry=False)
    with pytest.raises(IndexError, match="step -1"):
        Batches(split, 1, 1, 0, carry=False)[-1]


def test_the_standard_library_in_batches() -> None:
    """Real text: a window decodes to what stands in one of the files."""
    corpus = open_corpus(TextDataConfig())
    split = corpus.split("validation")
    batches = Batches(split, 8, 256, 0, carry=False)
    text = split.text_bytes()
    n_found = 0
    for step in random.Random(0).sample(range(batches.steps_per_epoch), 4):
        for row in batches[step].inputs:
            if not (row == corpus.tokenizer.document_token).any():
                n_found += 1
                assert bytes(row.tolist()) in text
    assert n_found > 20
