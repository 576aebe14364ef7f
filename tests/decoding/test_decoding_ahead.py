"""Several tokens of a row in one step of C: bit for bit one at a time, and what is taken back was never there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from decoded_models import (
    LAYERS,
    VOCABULARY,
    build,
    decodes,
    equal,
    needs_library,
    options,
    ragged_state,
    said,
    tokens_of,
)
from torch import Tensor
from torch.utils._pytree import tree_map

import statewise as sw
from statewise import native
from statewise.decoding import PRECISIONS, Decoder
from statewise.decoding.packing import pack
from statewise.decoding.product import Product
from statewise.errors import InputError

ROUNDS = ((3, 2), (1, 1), (4, 0), (2, 2), (5, 3))  # tokens that are read, and kept


def one_by_one(decoder: Any, state: Any, tokens: Tensor) -> tuple[Tensor, Any]:
    """Each row by itself: the logits behind each token, and the states at the end."""
    running = decoder.run(state)
    logits = [running.step(tokens[:, t]) for t in range(tokens.shape[1])]
    return torch.stack(logits or [torch.empty(0)], 1 if logits else 0), running.state


def row_of(state: Any, row: int) -> Any:
    return tree_map(lambda leaf: leaf[row : row + 1], state)


@torch.no_grad()
def check_rounds(model: sw.LanguageModel, precision: str, batch: int) -> None:
    """Several rounds; in each some tokens stay and others do not, and every number is that of one at a time."""
    decoder, state = Decoder(model, precision), ragged_state(model, batch)
    before = [leaf.clone() for leaf in said(model, state)]
    ahead = decoder.ahead(state, most=5)
    for number, (n, kept) in enumerate(ROUNDS):
        tokens = torch.randint(VOCABULARY, (batch, n), generator=torch.Generator().manual_seed(number))
        logits = torch.cat([ahead.read(part) for part in tokens.split([1, n - 1], 1) if part.shape[1]], 1)
        rows = [one_by_one(decoder, row_of(state, row), tokens[row : row + 1]) for row in range(batch)]
        equal([logits[row : row + 1] for row in range(batch)], [row[0] for row in rows])
        ahead.keep([kept] * batch)
        states = [one_by_one(decoder, row_of(state, row), tokens[row : row + 1, :kept])[1] for row in range(batch)]
        state = ahead.state
        for row in range(batch):
            equal(said(model, row_of(state, row)), said(model, states[row]))
    equal(before, said(model, ragged_state(model, batch)))


@needs_library
@pytest.mark.parametrize("config", list(options()))
def test_every_option_of_every_mixer_ahead(config: Any) -> None:
    model = decodes(config)
    if model is not None:
        check_rounds(model, "float32", 2)


@needs_library
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("layers", LAYERS)
def test_every_layer_ahead(layers: str, precision: str) -> None:
    options: dict[str, Any] = {"norm": "layer", "max_positions": 40} if layers == "mamba" else {}
    check_rounds(build(layers, **options), precision, 1)


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_row_of_a_product_as_if_alone(precision: str, instructions: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(9, 83)
    with native.forced(instructions):
        product = Product(pack(torch.randn(37, 83), precision))
        alone = torch.cat([product(row) for row in x.split(1)])
        for n in range(1, 10):
            assert torch.equal(product(x[:n], alike=True), alone[:n])


@needs_library
@pytest.mark.parametrize("rests", [False, True], ids=["from a state", "from rest"])
@pytest.mark.parametrize(
    "layers", ["hybrid", "fast weights", "gated memories", "turning", "latent", "attention, convolved"]
)
@torch.no_grad()
def test_rows_that_keep_different_counts_and_begin_documents(layers: str, rests: bool) -> None:
    """Rows of different lengths, some of which read nothing, on one thread and on three."""
    model = build(layers)
    decoder, tokens = Decoder(model), tokens_of(4, 5)
    state = decoder.initial_state(4) if rests else ragged_state(model, 4)
    lengths, kept = torch.tensor([5, 3, 0, 4]), torch.tensor([2, 3, 0, 4])
    starts = torch.zeros(4, 5, dtype=torch.bool)
    starts[0, 1] = starts[1, 2] = starts[3, 0] = starts[3, 3] = starts[1, 4] = True
    threads = torch.get_num_threads()
    for n_threads in (1, 3):
        torch.set_num_threads(n_threads)
        ahead = decoder.ahead(state, most=5)
        logits = ahead.read(tokens, lengths=lengths, starts=starts)
        ahead.keep(kept)
        more = ahead.read(tokens[:, :1])
        torch.set_num_threads(threads)
        for row in range(4):
            running = decoder.run(row_of(state, row))
            for t in range(int(lengths[row])):
                if t == kept[row]:
                    equal(said(model, row_of(ahead.state, row)), said(model, running.state))
                step = running.step(tokens[row : row + 1, t], starts=starts[row : row + 1, t])
                assert torch.equal(step, logits[row : row + 1, t])
            assert not logits[row, int(lengths[row]) :].any()
            running = decoder.run(row_of(state, row))
            for t in range(int(kept[row])):
                running.step(tokens[row : row + 1, t], starts=starts[row : row + 1, t])
            equal(said(model, row_of(ahead.state, row)), said(model, running.state))
            assert torch.equal(running.step(tokens[row : row + 1, 0]), more[row])


@needs_library
@torch.no_grad()
def test_calls_ahead_that_do_not_fit_are_refused() -> None:
    model = build("attention")
    ahead = Decoder(model).ahead(model.initial_state(2), most=3)
    for wrong in (tokens_of(2, 4), tokens_of(3, 1), tokens_of(2, 1)[:, 0], tokens_of(2, 1) + VOCABULARY, None):
        with pytest.raises(InputError):
            ahead.read(wrong)
    ahead.read(tokens_of(2, 2))
    for counts in ([3, 0], [-1, 0], [1]):
        with pytest.raises(InputError, match="keep takes"):
            ahead.keep(counts)
    ahead.keep([2, 2])
    for _ in range(12):
        ahead.read(tokens_of(2, 3))
        ahead.keep([3, 3])
    with pytest.raises(InputError, match="max_positions=40"):  # of which 38 are taken
        ahead.read(tokens_of(2, 3))
