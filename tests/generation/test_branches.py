"""Continuations that share a prefix: each says what it says with a copy, by the model and by the step in C."""

from __future__ import annotations

from typing import Any

import families
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
from statewise.decoding import Decoder
from statewise.errors import InputError, StatewiseError
from statewise.generation.branching import ModelBranches, repeated
from statewise.mixers.branched_history import BranchedHistory

N, STEPS = 3, 6
PARTED = (2, 4)  # the steps at which rows go on from other ones


def parents_of(step: int, batch: int) -> Tensor:
    """Each row's, of the same row of the prefix."""
    generator = torch.Generator().manual_seed(step)
    return (torch.arange(batch)[:, None] * N + torch.randint(N, (batch, N), generator=generator)).flatten()


def steps(batch: int) -> Any:
    """Tokens, how many of them a row reads, and where documents begin."""
    for t in range(STEPS):
        generator = torch.Generator().manual_seed(t)
        tokens = torch.randint(VOCABULARY, (batch * N, 1), generator=generator)
        lengths = (torch.rand(batch * N, generator=generator) < 0.8).long() if t > max(PARTED) else None
        starts = torch.rand(batch * N, 1, generator=generator) < 0.3 if t == 3 else None
        yield tokens, lengths, starts


def rows_of(state: Any, rows: Tensor) -> Any:
    return tree_map(lambda leaf: leaf[rows], state)


@torch.no_grad()
def check_model(model: sw.LanguageModel, state: Any, *, exact: bool = False) -> None:
    """Against copies of the state, which are gathered where rows part."""
    batch = len(state.position)
    branches, plain = ModelBranches(model, state, N), repeated(state, N)
    for t, (tokens, lengths, starts) in enumerate(steps(batch)):
        if t in PARTED:
            branches.take(parents_of(t, batch))
            plain = rows_of(plain, parents_of(t, batch))
        logits = branches.step(tokens, lengths=lengths, starts=starts)
        wanted, plain = model(tokens, plain, lengths=lengths, starts=starts)
        read = slice(None) if lengths is None else lengths > 0
        assert not exact or torch.equal(logits[read], wanted[read, 0])
        torch.testing.assert_close(logits[read], wanted[read, 0], rtol=1e-9, atol=1e-9)
    whole = branches.whole()
    assert torch.equal(whole.position, plain.position)
    again, _ = model(tokens_of(batch * N, 2), whole)
    wanted, _ = model(tokens_of(batch * N, 2), plain)
    torch.testing.assert_close(again, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", families.MIXERS)
def test_every_mixer_by_the_model(name: str) -> None:
    try:
        model = build((families.MIXERS[name],), d_model=24).double()
        state = ragged_state(model, 2)
    except StatewiseError:  # it reads in both directions
        return
    check_model(model, state)


@pytest.mark.parametrize("layers", LAYERS)
def test_models_by_the_model(layers: str) -> None:
    model = build(layers).double()
    check_model(model, ragged_state(model, 2))
    check_model(model, model.initial_state(2))


@needs_library
def test_exact_mode_has_the_same_bits() -> None:
    model = build((sw.Mamba2Config(d_state=8, d_head=8), sw.AttentionConfig(n_heads=2, window=4)), d_model=16)
    with sw.exact():
        check_model(model, ragged_state(model, 2), exact=True)


@torch.no_grad()
def check_decoder(model: sw.LanguageModel, weights: str, batch: int) -> None:
    """Against a run over copies, bit for bit."""
    decoder, state = Decoder(model, weights), ragged_state(model, batch)
    before = [leaf.clone() for leaf in said(model, state)]
    branches, running = decoder.branches(state, N), decoder.run(repeated(state, N))
    for t, (tokens, lengths, starts) in enumerate(steps(batch)):
        if t in PARTED:
            branches.take(parents_of(t, batch))
            running = decoder.run(rows_of(running.state, parents_of(t, batch)))
        logits = branches.step(tokens, lengths=lengths, starts=starts)
        assert torch.equal(logits, running.step(tokens, lengths=lengths, starts=starts))
    equal(said(model, branches.whole()), said(model, running.state))
    equal(before, said(model, state))


@needs_library
@pytest.mark.parametrize("config", list(options()))
def test_every_option_of_every_mixer_in_c(config: Any) -> None:
    model = decodes(config)
    if model is not None:
        check_decoder(model, "float32", 2)


@needs_library
@pytest.mark.parametrize("instructions", native.instruction_sets())
@pytest.mark.parametrize("layers", LAYERS)
def test_every_layer_in_c(layers: str, instructions: str) -> None:
    options: dict[str, Any] = {"norm": "layer", "max_positions": 40} if layers == "mamba" else {}
    with native.forced(instructions):
        check_decoder(build(layers, **options), "int8" if layers == "hybrid" else "float32", 2)


@needs_library
@torch.no_grad()
def test_prefixes_longer_than_a_run_of_keys_and_tails_that_grow() -> None:
    layers = (sw.AttentionConfig(n_heads=2), sw.MambaConfig(d_state=4), sw.AttentionConfig(n_heads=2, window=90))
    model = build(layers, d_model=24)
    decoder = Decoder(model)
    _, state = model(tokens_of(2, 150), model.initial_state(2), lengths=torch.tensor([150, 101]))
    branches, by_model, running = decoder.branches(state, N), ModelBranches(model, state, N), None
    running = decoder.run(repeated(state, N))
    for t in range(150):
        tokens = torch.randint(VOCABULARY, (2 * N,), generator=torch.Generator().manual_seed(t))
        logits = branches.step(tokens)
        assert torch.equal(logits, running.step(tokens))
        torch.testing.assert_close(by_model.step(tokens), logits, rtol=1e-3, atol=1e-3)


@needs_library
@torch.no_grad()
def test_nothing_of_a_prefix_is_copied() -> None:
    """Its keys and values are those of the state, and what each continuation has does not depend on how long it is."""
    model = build((sw.AttentionConfig(n_heads=2), sw.Mamba2Config(d_state=8, d_head=12)), d_model=24)
    held: dict[int, int] = {}
    for length in (10, 2000):
        _, state = model(tokens_of(1, length), model.initial_state(1))
        for branches in (ModelBranches(model, state, 8), Decoder(model).branches(state, 8)):
            layers = branches._state.layers if isinstance(branches, ModelBranches) else branches._layers
            history = layers[0]
            assert isinstance(history, BranchedHistory)
            assert history.prefix.keys.data_ptr() == state.layers[0].keys.data_ptr()
            assert history.prefix.values.data_ptr() == state.layers[0].values.data_ptr()
            branches.take(torch.zeros(8, dtype=torch.int64))
            branches.step(torch.ones(8, dtype=torch.int64))
            held[length] = sum(x.untyped_storage().nbytes() for x in (history.keys, history.values))
    assert held[10] == held[2000] == 8 * 64 * 2 * 24 * 4


@needs_library
def test_errors() -> None:
    model = build((sw.AttentionConfig(n_heads=2),), d_model=24)
    decoder, state = Decoder(model), model.initial_state(1)
    with pytest.raises(InputError, match="n=0 is out of range"):
        decoder.branches(state, 0)
    with pytest.raises(InputError, match="one token of each row"):
        decoder.branches(state, 2).step(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(InputError, match="outside the vocabulary"):
        decoder.branches(state, 2).step(torch.tensor([0, VOCABULARY]))
    branches = ModelBranches(model, state, 2)
    with pytest.raises(InputError, match="one token at a time, not 2"):
        model(torch.zeros(2, 2, dtype=torch.int64), branches._state)
