"""States that can be taken back: ``state.at(k)`` is the state of a run that stopped k tokens ago."""

from __future__ import annotations

from typing import Any

import families
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import statewise as sw
from statewise.errors import InputError, StatewiseError
from statewise.mixers.attention_state import AttentionState

VOCABULARY = 11
HYBRID = (
    sw.Mamba2Config(d_state=4, d_head=4),
    sw.BlockConfig(mixer=sw.AttentionConfig(n_heads=2, window=5), mlp=sw.MLPConfig()),
    sw.MambaConfig(d_state=3),
    sw.AttentionConfig(n_heads=2),
)


def build(*layers: Any, d_model: int = 8, dtype: torch.dtype = torch.float64) -> sw.LanguageModel:
    torch.manual_seed(0)
    config = sw.LanguageModelConfig(vocab_size=VOCABULARY, d_model=d_model, layers=layers, embedding_std=0.5)
    return config.build().to(dtype).eval()


def tokens_of(batch: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(seed))


def models() -> list[Any]:
    """One of each mixer, where it can be a layer of a language model."""
    found = [pytest.param(HYBRID, id="hybrid")]
    for name, config in families.MIXERS.items():
        try:
            model = build(config, d_model=24)
            model(tokens_of(1, 2), model.initial_state(1))
        except StatewiseError:  # it reads in both directions, or a memory
            continue
        found.append(pytest.param((config,), id=name))
    return found


def said(state: Any, windows: list[int | None]) -> list[Tensor]:
    """What a state says: of histories the keys and values that the next token can see."""
    leaves = [state.position]
    for layer, window in zip(state.layers, windows, strict=True):
        parts = [layer] if isinstance(layer, (AttentionState, Tensor)) else list(layer)
        for part in parts:
            if not isinstance(part, AttentionState):
                leaves += tree_leaves(part)
                continue
            leaves.append(part.position)
            for row, (start, end) in enumerate(zip(part.start.tolist(), part.end.tolist())):
                first = start if window is None else max(start, end - window + 1)
                leaves += [part.keys[row, first:end], part.values[row, first:end]]
    return leaves


def check(model: sw.LanguageModel, found: Any, wanted: Any) -> None:
    windows = [getattr(block.mixer.config, "window", None) for block in model.blocks]
    for one, other in zip(said(found, windows), said(wanted, windows), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    after, _ = model(tokens_of(len(found.position), 3, 9), found)
    torch.testing.assert_close(after, model(tokens_of(len(found.position), 3, 9), wanted)[0], rtol=1e-11, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("layers", models())
def test_the_state_of_a_run_that_stopped_there(layers: tuple[Any, ...]) -> None:
    """From a state that has read, in one call and in several, for every number of tokens."""
    model = build(*layers, d_model=24)
    tokens = tokens_of(2, 14)
    _, before = model(tokens[:, :5], model.initial_state(2))
    untouched = tree_map(torch.clone, before)
    for pieces in ([9], [3, 1, 5]):
        state = sw.rewindable(before, last=9)
        logits = []
        for piece in tokens[:, 5:].split(pieces, 1):
            y, state = model(piece, state)
            logits.append(y)
        torch.testing.assert_close(torch.cat(logits, 1), model(tokens[:, 5:], before)[0])
        check(model, state.at(0), model(tokens[:, 5:], before)[1])
        for k in (1, 4, 8, 9):
            _, wanted = model(tokens[:, 5 : 14 - k], before)
            check(model, state.at(k), wanted if k < 9 else before)
    windows = [getattr(block.mixer.config, "window", None) for block in model.blocks]
    for one, other in zip(said(before, windows), said(untouched, windows), strict=True):
        assert torch.equal(one, other)


@torch.no_grad()
@pytest.mark.parametrize("layers", [HYBRID, (sw.S4DConfig(d_state=4),), (sw.GatedDeltaNetConfig(n_heads=2),)])
def test_rows_that_go_back_by_their_own(layers: tuple[Any, ...]) -> None:
    """Ragged calls, documents that begin, and another k for each row: each row as it is alone."""
    model = build(*layers)
    tokens, lengths = tokens_of(3, 8), torch.tensor([8, 5, 3])
    starts = torch.zeros(3, 8, dtype=torch.bool)
    starts[0, 3] = starts[1, 4] = starts[2, 0] = True
    _, before = model(tokens_of(3, 4, 1), model.initial_state(3))
    _, state = model(tokens, sw.rewindable(before, last=8), lengths=lengths, starts=starts)
    _, state = model(tokens[:, :2], state, lengths=torch.tensor([0, 2, 1]))
    assert state.n_kept.tolist() == [8, 7, 4]
    for back in ([0, 0, 0], [1, 2, 3], [5, 0, 4], [8, 7, 1], [0, 3, 0]):
        found = state.at(torch.tensor(back))
        for row, k in enumerate(back):
            alone = tree_map(lambda leaf, row=row: leaf[row : row + 1], before)
            n = int(state.n_kept[row]) - k
            whole = torch.cat([tokens[row, : lengths[row]], tokens[row, :2]])[None, :n]
            begins = torch.cat([starts[row, : lengths[row]], torch.zeros(2, dtype=torch.bool)])[None, :n]
            wanted = alone if n == 0 else model(whole, alone, starts=begins)[1]
            check(model, tree_map(lambda leaf, row=row: leaf[row : row + 1], found), wanted)


@torch.no_grad()
def test_two_states_are_kept_however_much_is_read() -> None:
    model = build(*HYBRID)
    tokens = tokens_of(1, 60)
    state: Any = sw.rewindable(model.initial_state(1), last=6)
    for t in range(60):
        _, state = model(tokens[:, t : t + 1], state)
        assert min(t + 1, 6) <= int(state.n_kept) <= 12
        assert len(state._chunks) <= 2
    for k in range(7):
        check(model, state.at(k), model(tokens[:, : 60 - k], model.initial_state(1))[1])


@torch.no_grad()
def test_counts_that_are_not_kept_are_refused() -> None:
    model = build(*HYBRID)
    _, state = model(tokens_of(2, 4), sw.rewindable(model.initial_state(2), last=4))
    for wrong in (5, -1, [1, 5], [1], 1.0, True):
        with pytest.raises(InputError, match="k="):
            state.at(wrong)
    for last in (0, -1, 1.5, True):
        with pytest.raises(InputError, match="last="):
            sw.rewindable(model.initial_state(1), last=last)
