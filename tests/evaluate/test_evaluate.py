"""Evaluation: each token scored once, the definition written out, documents, streams, windows."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluated import DOCUMENT, build, close, nats_of
from hypothesis import given
from hypothesis import strategies as st

import statewise as sw
from statewise.errors import InputError
from statewise.evaluate import (
    evaluate_tokens,
    has_bounded_state,
)
from statewise.evaluate.text import perplexity


# The definition
@pytest.mark.parametrize("chunk_length", [1, 7, 64, 149, 1000])
def test_the_state_is_carried_whatever_the_chunks(
    model: sw.LanguageModel, tokens: torch.Tensor, chunk_length: int
) -> None:
    got = evaluate_tokens(model, tokens, n_bytes=300, n_words=20, chunk_length=chunk_length)
    nats = nats_of(model, tokens)
    assert got.nats == close(nats)
    assert (got.n_tokens, got.n_bytes, got.n_words, got.document_token_nats) == (149, 300, 20, 0)
    assert got.bits_per_byte == close(nats / math.log(2) / 300)
    assert got.perplexity_per_token == close(math.exp(nats / 149))
    assert got.perplexity_per_word == close(math.exp(nats / 20))
    assert got.tokens_per_second == close(149 / got.seconds)
    assert all(isinstance(value, (int, float)) for value in dataclasses.asdict(got).values())


@pytest.mark.parametrize("kind", ["array", "list", "memory map", "int32"])
def test_tokens_of_every_kind(model: sw.LanguageModel, tokens: torch.Tensor, kind: str, tmp_path: Path) -> None:
    array = tokens.numpy().astype(np.uint16)
    array.tofile(tmp_path / "tokens")
    given_tokens: Any = {
        "array": array,
        "list": tokens.tolist(),
        "memory map": np.memmap(tmp_path / "tokens", np.uint16, "r"),
        "int32": tokens.int(),
    }[kind]
    assert evaluate_tokens(model, given_tokens, n_bytes=1).nats == close(nats_of(model, tokens))


def test_uniform_predictions_cost_log_v_a_token() -> None:
    model = build(None)
    torch.nn.init.zeros_(model.head.weight)
    got = evaluate_tokens(model, [DOCUMENT, 1, 2, 3], n_bytes=3)
    assert got.nats == close(3 * math.log(31))
    assert got.perplexity_per_token == close(31)
    assert got.bits_per_byte == close(math.log2(31))
    assert got.perplexity_per_word is None
    assert evaluate_tokens(model, [1] * 400, n_bytes=1, n_words=1).perplexity_per_word is None


# Documents
def test_documents_know_nothing_of_each_other(model: sw.LanguageModel, tokens: torch.Tensor) -> None:
    documents = [tokens[:40], tokens[40:41], tokens[41:149], tokens[149:]]
    expected = boundaries = 0.0
    for document, following in itertools.pairwise(documents):
        expected += nats_of(model, torch.cat([document, following[:1]]))
        boundaries += nats_of(model, torch.cat([document, following[:1]]), 1)
    got = evaluate_tokens(model, tokens, n_bytes=146, document_token=DOCUMENT, chunk_length=16)
    assert got.nats == close(expected)
    assert got.document_token_nats == close(boundaries)
    # What it costs to say where documents end is part of the headline figure
    assert got.bits_per_byte == close(expected / math.log(2) / 146)
    carried = evaluate_tokens(model, tokens, n_bytes=146, document_token=DOCUMENT, across_documents=True)
    assert carried.nats == close(nats_of(model, tokens))
    assert 0 < carried.document_token_nats != close(boundaries)


# Streams and windows
def test_a_document_token_of_0_is_not_taken_for_padding(model: sw.LanguageModel, tokens: torch.Tensor) -> None:
    zero = tokens.roll(1).where(tokens.roll(1) != DOCUMENT, 0)[1:]
    streams = {
        n: evaluate_tokens(model, zero, n_bytes=1, document_token=0, n_streams=n, chunk_length=7) for n in (1, 3)
    }
    alone = [zero[0:50], zero[49:99], zero[98:]]
    pieces = [evaluate_tokens(model, piece, n_bytes=1, document_token=0).nats for piece in alone]
    assert [len(piece) - 1 for piece in alone] == [49, 49, 50]
    assert streams[3].nats == close(sum(pieces))


def test_streams_are_pieces_read_side_by_side(model: sw.LanguageModel, tokens: torch.Tensor) -> None:
    for n_streams in (2, 4, 149):
        cuts = [149 * i // n_streams for i in range(n_streams + 1)]
        expected = sum(nats_of(model, tokens[begin : end + 1]) for begin, end in itertools.pairwise(cuts))
        got = evaluate_tokens(model, tokens, n_bytes=1, n_streams=n_streams, chunk_length=16)
        assert got.nats == close(expected)
        assert got.n_tokens == 149


def windows_by_definition(model: sw.LanguageModel, tokens: torch.Tensor, window: int, stride: int) -> float:
    """For every target by itself: find its window, read it, score that one token."""
    n_targets, nats = len(tokens) - 1, 0.0
    ends = [min(window, n_targets)]
    while ends[-1] < n_targets:
        ends.append(min(ends[-1] + stride, n_targets))
    for target in range(1, n_targets + 1):
        end = next(end for end in ends if target <= end)
        nats += nats_of(model, tokens[max(0, end - window) : target + 1], 1)
    return nats


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 5), (20, 1), (1, 1), (149, 3), (500, 500)])
@pytest.mark.parametrize("carry", [True, False])
def test_windows(tokens: torch.Tensor, window: int, stride: int, carry: bool) -> None:
    model = build(sw.AttentionConfig(n_heads=2, window=7 if carry else None))
    got = evaluate_tokens(model, tokens, n_bytes=1, window=window, stride=stride)
    assert got.nats == close(windows_by_definition(model, tokens, window, stride))
    if window >= 149:
        assert got.nats == close(nats_of(model, tokens))


@given(st.integers(2, 60), st.integers(1, 70), st.integers(1, 70), st.integers(1, 5), st.one_of(st.none(), st.just(3)))
def test_every_token_but_the_first_is_scored_once(
    n: int, window: int, stride: int, n_streams: int, document_token: int | None
) -> None:
    """Whatever the options: the tokens are all different, so that each can be told from the others."""
    model = build_tiny()
    n_streams = min(n_streams, n - 1)
    streams = perplexity._Streams(np.arange(n), n_streams, document_token, torch.device("cpu"))
    with torch.no_grad():
        for predictions in (
            perplexity._carried(model, streams, window),
            perplexity._windows(model, streams, window, min(stride, window)),
        ):
            parts = list(predictions)
            assert all(len(features) == len(targets) for features, targets in parts)
            assert torch.cat([targets for _, targets in parts]).sort().values.tolist() == list(range(1, n))


@functools.cache
def build_tiny() -> sw.LanguageModel:
    return build(None, vocab_size=60)


def watched(model: sw.LanguageModel, tokens: Any, **options: Any) -> list[tuple[int, ...]]:
    """The shapes that the model reads."""
    shapes = []
    hook = model.embedding.register_forward_hook(lambda module, inputs, output: shapes.append(tuple(inputs[0].shape)))
    try:
        evaluate_tokens(model, tokens, n_bytes=1, **options)
    finally:
        hook.remove()
    return shapes


def test_which_models_carry_their_state(model: sw.LanguageModel) -> None:
    full = build(sw.AttentionConfig(n_heads=2))
    learned = build(sw.AttentionConfig(n_heads=2, window=7, positions="learned", max_positions=20))
    assert has_bounded_state(model)
    assert has_bounded_state(learned)
    assert not has_bounded_state(full)
    text = [1] * 1500
    assert watched(model, text, chunk_length=500) == [(1, 500), (1, 500), (1, 499)]
    assert watched(full, [1] * 1537) == [(1, 1024)] * 2
    assert watched(full, [1] * 1538) == [(1, 1024)] * 3
    assert watched(learned, [1] * 41) == [(1, 20)] * 3
    assert watched(model, [1] * 31, window=20) == [(1, 20), (1, 20)]
    assert watched(model, [1] * 1600, stride=600) == [(1, 1024), (1, 1024)]
    assert watched(model, [1] * 22, n_streams=2, chunk_length=8) == [(2, 8), (2, 3)]


# Numerics and side effects
def test_logits_are_computed_a_few_at_a_time(
    model: sw.LanguageModel, tokens: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(perplexity, "MAX_LOGITS", 31 * 10)
    rows = []
    hook = model.head.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    got = evaluate_tokens(model, tokens, n_bytes=1, chunk_length=25)
    hook.remove()
    assert got.nats == close(nats_of(model, tokens))
    assert max(rows) == 10
    assert sum(rows) == 149


def test_half_precision_is_summed_in_full(tokens: torch.Tensor) -> None:
    half = build(sw.AttentionConfig(n_heads=2, window=7)).bfloat16()
    with torch.no_grad():
        logits, _ = half(tokens[None, :-1], half.initial_state(1))
    expected = -logits[0].float().log_softmax(-1).gather(1, tokens[1:, None]).double().sum()
    assert evaluate_tokens(half, tokens, n_bytes=1, chunk_length=1000).nats == pytest.approx(float(expected), rel=1e-6)


def test_progress_and_the_models_mode(model: sw.LanguageModel, tokens: torch.Tensor) -> None:
    model.train()
    model.norm.eval()
    modes = [module.training for module in model.modules()]
    inside, seen = [], []
    hook = model.head.register_forward_hook(
        lambda module, inputs, output: inside.append((model.training, output.requires_grad))
    )
    evaluate_tokens(model, tokens, n_bytes=1, chunk_length=100, progress=lambda done, total: seen.append((done, total)))
    hook.remove()
    assert seen == [(100, 149), (149, 149)]
    assert inside == [(False, False)] * 2
    assert [module.training for module in model.modules()] == modes
    model.eval()


def test_predictions_that_are_not_finite_are_told(tokens: torch.Tensor) -> None:
    broken = build(None)
    with torch.no_grad():
        broken.head.weight[3, 3] = math.nan
    with pytest.raises(InputError, match="not finite among the first 100 tokens"):
        evaluate_tokens(broken, tokens, n_bytes=1, chunk_length=100)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tokens": [1]}, "at least 2 integers"),
        ({"tokens": np.zeros((2, 2), int)}, "at least 2 integers"),
        ({"tokens": [0.5, 1.5]}, "at least 2 integers"),
        ({"tokens": [1, 31]}, "the id 31; the model's vocabulary has the ids 0 to 30"),
        ({"tokens": [-1, 1]}, "the id -1"),
        ({"n_bytes": 0}, "n_bytes=0"),
        ({"n_words": 0}, "n_words=0"),
        ({"chunk_length": 0}, "chunk_length=0"),
        ({"window": 0}, "window=0"),
        ({"stride": 0}, "stride=0"),
        ({"window": 4, "stride": 5}, "stride=5 is longer than window=4"),
        ({"n_streams": 0}, "n_streams=0"),
        ({"n_streams": 3}, "n_streams=3"),
    ],
)
def test_mistakes_are_told(model: sw.LanguageModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        evaluate_tokens(model, **{"tokens": [1, 2, 3], "n_bytes": 2, **options})
    assert "\n" not in str(caught.value)


@pytest.mark.cuda
def test_cuda_scores_what_the_cpu_scores(tokens: torch.Tensor) -> None:
    model = build(sw.AttentionConfig(n_heads=2, window=7))
    options: dict[str, Any] = {"n_bytes": 1, "document_token": DOCUMENT, "chunk_length": 16, "n_streams": 3}
    expected = evaluate_tokens(model, tokens, **options)
    got = evaluate_tokens(model.cuda(), tokens.cuda(), **options)
    assert got.nats == close(expected.nats)
    assert got.document_token_nats == close(expected.document_token_nats)
