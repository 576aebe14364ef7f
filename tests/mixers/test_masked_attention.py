"""Structured masked attention: each decay and any mask against explicit sums, rectangles and padding, the laws."""

from __future__ import annotations

import itertools
from typing import Any

import laws
import pytest
import torch
import torch.nn.functional as F
from law_signals import gradients, prepared, same
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.mixers.masked_attention import DECAYS, StructuredMaskedAttention
from statewise.semiseparable import CumulativeSum, OneSemiseparable, SequentiallySemiseparable

D = torch.float64


def build(**options: Any) -> StructuredMaskedAttention:
    torch.manual_seed(0)
    mixer = prepared(sw.StructuredMaskedAttentionConfig(**{"n_heads": 2, "chunk_length": 4, **options}).build(8))
    assert isinstance(mixer, StructuredMaskedAttention)
    return mixer


def by_hand(mixer: Any, x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
    """One row; mask (n_heads, T, S)."""
    n = mixer.n_heads
    sizes = [count * width for count, width in zip(mixer.heads, (mixer.d_feature, mixer.d_feature, mixer.d_head))]
    weights, bias = mixer.in_proj.weight.split(sizes), mixer.in_proj.bias
    biases = (None,) * 3 if bias is None else bias.split(sizes)
    q, k, v = (F.linear(m, w, b) for m, w, b in zip((x, memory, memory), weights, biases))
    if mixer.config.feature_map == "elu":
        q, k = (torch.where(m > 0, m + 1, m.exp()) for m in (q, k))
    q, k, v = (m.reshape(len(m), count, -1) for m, count in zip((q, k, v), mixer.heads))
    outputs = []
    for t, h in itertools.product(range(len(x)), range(n)):
        qh, kh, vh = (h * count // n for count in mixer.heads)
        total, sum_of_weights = torch.zeros(mixer.d_head, dtype=D), torch.zeros((), dtype=D)
        for s in range(len(memory)):
            w = mask[h, t, s] * (q[t, qh] @ k[s, kh])
            total, sum_of_weights = total + w * v[s, vh], sum_of_weights + w
        outputs.append(total / sum_of_weights if mixer.config.normalize and sum_of_weights != 0 else total)
    return mixer.out_proj(torch.stack(outputs).reshape(len(x), -1))


def mask_of(mixer: StructuredMaskedAttention, x: Tensor) -> Tensor:
    """1SS(a) of one row, entry by entry: (n_heads, T, T)."""
    length, n = len(x), mixer.n_heads
    a = torch.ones(length, n, dtype=D)
    if mixer.dynamics is not None:
        logit = mixer.dynamics.logit.expand(length, n)
        a = torch.sigmoid(logit if mixer.decay_proj is None else logit + x @ mixer.decay_proj.weight.T)
    rows = [[a[s + 1 : t + 1].prod(0) * (s <= t) for s in range(length)] for t in range(length)]
    return torch.stack([torch.stack(row) for row in rows]).movedim(-1, 0)


OPTIONS = [
    {},
    {"normalize": False, "feature_map": "identity", "bias": True},
    {"n_heads": 4, "head_pattern": "multi_query", "n_groups": 2},
    {"n_heads": 4, "head_pattern": "multi_key"},
    {"n_heads": 4, "head_pattern": "multi_value", "n_groups": 2, "d_feature": 3},
]


@pytest.mark.parametrize("decay", DECAYS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_call_has_the_mask_that_decay_names(decay: str, options: dict) -> None:
    mixer = build(decay=decay, **options)
    x = torch.randn(2, 13, 8, dtype=D).requires_grad_()
    expected = torch.stack([by_hand(mixer, row, row, mask_of(mixer, row)) for row in x])
    y, _ = mixer(x)
    same(y, expected, 1e-9, "a call")
    same(gradients(mixer, y, x), gradients(mixer, expected, x), 1e-8, "gradients")
    with torch.no_grad():  # with a state: the rows from 5 on of the same mask, a rectangle
        _, state = mixer(x[:, :5], mixer.initial_state(2))
        rest, _ = mixer(x[:, 5:], state)
        rectangle = [by_hand(mixer, row[5:], row, mask_of(mixer, row)[:, 5:]) for row in x]
        same(rest, torch.stack(rectangle), 1e-9, "behind a state")


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_attend_takes_any_mask(options: dict) -> None:
    """Dense, rectangular, of a head, of a row, semiseparable of rank 1 and 3, of zeros and ones; with padding."""
    mixer = build(**options)
    n = mixer.n_heads
    x, memory = torch.randn(2, 7, 8, dtype=D).requires_grad_(), torch.randn(2, 10, 8, dtype=D)
    lengths = torch.tensor([6, 10])
    memory[0, 6:] = torch.nan
    memory.requires_grad_()
    for mask in (torch.rand(7, 10, dtype=D), torch.rand(n, 7, 10, dtype=D), torch.rand(2, n, 7, 10) < 0.5):
        y = mixer.attend(x, mask, memory, memory_lengths=lengths)
        each = mask.to(D).expand(2, n, 7, 10)
        expected = torch.stack([by_hand(mixer, x[b], memory[b, :m], each[b, :, :, :m]) for b, m in enumerate((6, 10))])
        same(y, expected, 1e-9, "a rectangle")
        found, wanted = (gradients(mixer, m, (x, memory)) for m in (y, expected))
        same(found, wanted, 1e-8, "gradients")
        assert all(grad.isfinite().all() for grad in found)
    for matrix in (
        CumulativeSum(7, D),
        OneSemiseparable(torch.rand(7, dtype=D)),
        OneSemiseparable(torch.rand(2, n, 7, dtype=D)),
        SequentiallySemiseparable(*(torch.rand(n, 7, 3, dtype=D) for _ in range(3))),
    ):
        dense = matrix.dense().expand(2, n, 7, 7)
        expected = torch.stack([by_hand(mixer, x[b], x[b], dense[b]) for b in range(2)])
        same(mixer.attend(x, matrix), expected, 1e-9, "a structured matrix")
        same(mixer.attend(x, matrix.dense()), expected, 1e-9, "its entries")
    assert mixer.attend(x, torch.ones(7, 0), memory[:, :0]).shape == (2, 7, 8)


@pytest.mark.parametrize("options", [{"decay": decay} for decay in DECAYS] + OPTIONS[1:], ids=str)
def test_laws(options: dict) -> None:
    if options.get("feature_map") != "identity":
        options = {**options, "d_feature": 3}
    laws.check_mixer_laws(build(**options), length=11)


def test_the_decays_begin_as_in_retention() -> None:
    mixer = sw.StructuredMaskedAttentionConfig(n_heads=4, decay="constant").build(8)
    torch.testing.assert_close(torch.sigmoid(mixer.dynamics.logit), 1 - 2.0 ** -torch.arange(5.0, 9.0))
    selective = sw.StructuredMaskedAttentionConfig(n_heads=4).build(8)
    assert selective.decay_proj.weight.std() < 0.05
    assert sw.StructuredMaskedAttentionConfig(n_heads=4, decay="ones").build(8).dynamics is None


def test_what_does_not_fit_is_refused() -> None:
    mixer = build()
    x, memory = torch.randn(2, 5, 8, dtype=D), torch.randn(2, 7, 8, dtype=D)
    for call, words in (
        (lambda: mixer.attend(x, torch.ones(5, 6, dtype=D), memory), r"\(T, S\).*\(5, 6\)"),
        (lambda: mixer.attend(x, torch.ones(3, 5, 7, dtype=D), memory), r"\(3, 5, 7\)"),
        (lambda: mixer.attend(x, torch.ones(5, dtype=D)), r"\(5,\)"),
        (lambda: mixer.attend(x, "causal"), "got str"),
        (lambda: mixer.attend(x, torch.ones(5, 5, dtype=torch.complex128)), "mask of real numbers or bool, got.*128"),
        (lambda: mixer.attend(x, OneSemiseparable(torch.rand(5, dtype=torch.complex128))), "mask of real numbers"),
        (lambda: mixer.attend(x[:1], torch.ones(5, 7, dtype=D), memory), r"\(1, 5, 8\)"),
        (lambda: mixer.attend(x.float(), torch.ones(5, 5)), "float64"),
        (lambda: mixer.attend(x, torch.ones(5, 7), memory.float()), "needs memory in the dtype of its parameters"),
        (lambda: mixer.attend(x, torch.ones(5, 7, dtype=D), memory, memory_lengths=torch.tensor([8, 1])), r"0\.\.7"),
        (lambda: mixer.attend(x, OneSemiseparable(torch.rand(5))), "float64, and the mask is .*float32"),
        (
            lambda: mixer.attend(x, torch.zeros(5, 5, dtype=D).fill_diagonal_(-torch.inf)),
            "NaN or infinity; it multiplies",
        ),
    ):
        with pytest.raises(InputError, match=words):
            call()
    with pytest.raises(ConfigError, match="decay='window'"):
        sw.StructuredMaskedAttentionConfig(n_heads=2, decay="window")
