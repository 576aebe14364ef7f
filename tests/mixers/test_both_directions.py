"""Layers that read in both directions, against explicit sums over the steps before and behind, in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from law_signals import gradients, prepared, same
from torch import Tensor

import statewise as sw
from statewise.errors import ConfigError, InputError
from statewise.mixers import full_attention
from statewise.mixers.full_attention import Seen, attend_fully, full_attention_reference

D = torch.float64
CONFIGS: dict[str, Any] = {
    "attention": sw.AttentionConfig(n_heads=2, positions=None, bidirectional=True),
    "attention, grouped, window": sw.AttentionConfig(
        n_heads=4, n_kv_heads=2, positions=None, window=4, bias=True, scale=0.7, bidirectional=True
    ),
    "linear attention": sw.LinearAttentionConfig(n_heads=2, bidirectional=True, chunk_length=4),
    "linear attention, multi-query": sw.LinearAttentionConfig(
        n_heads=4, bidirectional=True, head_pattern="multi_query", n_groups=2, normalize=False
    ),
    "structured, selective": sw.StructuredMaskedAttentionConfig(n_heads=2, bidirectional=True, chunk_length=4),
    "structured, constant": sw.StructuredMaskedAttentionConfig(n_heads=2, bidirectional=True, decay="constant"),
    "Mamba-2": sw.Mamba2Config(d_state=3, d_head=4, bidirectional=True),
    "Mamba-2, all of its own": sw.Mamba2Config(
        d_state=3, d_head=4, n_groups=2, head_pattern="multi_key", bidirectional=True, tied_directions=False,
        combine="concatenate", norm_groups=1,
    ),
    "H3": sw.H3Config(d_state=4, d_shift=3, bidirectional=True),
    "H3 with heads": sw.H3Config(d_state=4, d_head=2, bidirectional=True),
    "GSS": sw.GSSConfig(d_state=4, bidirectional=True),
}  # fmt: skip


def by_hand(mixer: Any, x: Tensor) -> Tensor:
    """One document (length, d_model), by sums over all pairs of steps."""
    kind = type(mixer).__name__
    inner = {
        "Attention": softmax_sums,
        "LinearAttention": linear_sums,
        "StructuredMaskedAttention": linear_sums,
        "Mamba2": mamba2_sums,
        "H3": h3_sums,
        "GSS": gss_sums,
    }[kind](mixer, x)
    return F.linear(inner, mixer.out_proj.weight, mixer.out_proj.bias)


def softmax_sums(mixer: Any, x: Tensor) -> Tensor:
    c, width, length = mixer.config, mixer.d_head, len(x)
    q, k, v = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias).split(
        [mixer.n_heads * width, *[mixer.n_kv_heads * width] * 2], -1
    )
    q, k, v = (m.reshape(length, -1, width) for m in (q, k, v))
    scale = c.scale or width**-0.5
    outputs = []
    for t, h in itertools.product(range(length), range(mixer.n_heads)):
        g = h * mixer.n_kv_heads // mixer.n_heads
        near = [s for s in range(length) if c.window is None or abs(s - t) < c.window]
        weights = {s: (scale * q[t, h] @ k[s, g]).exp() for s in near}
        outputs.append(sum(w * v[s, g] for s, w in weights.items()) / sum(weights.values()))
    return torch.stack(outputs).reshape(length, -1)


def linear_sums(mixer: Any, x: Tensor) -> Tensor:
    c, length, n = mixer.config, len(x), mixer.n_heads
    queries, keys, values = mixer.heads
    q, k, v = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias).split(
        [queries * mixer.d_feature, keys * mixer.d_feature, values * mixer.d_head], -1
    )
    q, k = (torch.where(m > 0, m + 1, m.exp()) for m in (q, k))
    q, k, v = (m.reshape(length, count, -1) for m, count in zip((q, k, v), mixer.heads))
    a = torch.ones(length, n, dtype=D)
    if getattr(mixer, "dynamics", None) is not None:
        logit = mixer.dynamics.logit.expand(length, n)
        a = torch.sigmoid(logit if mixer.decay_proj is None else logit + x @ mixer.decay_proj.weight.T)
    outputs = []
    for t, h in itertools.product(range(length), range(n)):
        qh, kh, vh = (h * count // n for count in mixer.heads)
        total, weights = torch.zeros(mixer.d_head, dtype=D), torch.zeros((), dtype=D)
        for s in range(length):
            mask = a[s + 1 : t + 1, h].prod() if s <= t else a[t:s, h].prod()
            w = mask * (q[t, qh] @ k[s, kh])
            total, weights = total + w * v[s, vh], weights + w
        outputs.append(total / weights if c.normalize else total)
    return torch.stack(outputs).reshape(length, -1)


def mamba2_sums(mixer: Any, x: Tensor) -> Tensor:
    projected = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias)

    def one_way(direction: Any, projected: Tensor) -> Tensor:
        c, length, n = mixer.config, len(projected), mixer.n_heads
        z, xBC, dt = projected.split(direction.sizes, -1)
        taps = direction.convolution.weight
        convolved = []
        for t in range(length):
            terms = [taps[:, i] * xBC[t - i] for i in range(taps.shape[1]) if t >= i]
            convolved.append(F.silu(sum(terms) + direction.convolution.bias))
        u, B, C = torch.stack(convolved).split(direction.convolved_sizes, -1)
        u, B, C = (m.reshape(length, -1, width) for m, width in ((u, c.d_head), (B, c.d_state), (C, c.d_state)))
        dt = F.softplus(dt + direction.dynamics.dt_bias)
        a = -dt * direction.dynamics.A_log.exp()
        y = []
        for t, h in itertools.product(range(length), range(n)):
            Ch, Bh, uh = (h * count // n for count in direction.heads)
            total = direction.dynamics.D[h] * u[t, uh]
            for s in range(t + 1):
                total = total + (C[t, Ch] @ B[s, Bh]) * a[s + 1 : t + 1, h].sum().exp() * dt[s, h] * u[s, uh]
            y.append(total)
        gated = (torch.stack(y).reshape(length, -1) * F.silu(z)).unflatten(-1, (direction.norm.n_groups, -1))
        normed = gated / (gated.square().mean(-1, keepdim=True) + direction.norm.eps).sqrt()
        return normed.flatten(-2) * direction.norm.weight

    ahead = one_way(mixer, projected)
    behind = one_way(mixer.backward_direction or mixer, projected.flip(0)).flip(0)
    return ahead + behind if mixer.config.combine == "sum" else torch.cat([ahead, behind], -1)


def h3_sums(mixer: Any, x: Tensor) -> Tensor:
    """y_t = sum over s of q_t C A^(t - s) B (k'_s v_s), k'_s being the sum of taps times k; and its mirror."""
    q, k, v = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias).chunk(3, -1)
    heads, width, length = mixer.n_heads, mixer.config.d_head, len(x)
    A, B = mixer.dynamics()

    def one_way(readout: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shift_B, shift_C = mixer.dynamics.shift_B, readout.shift_C
        n = shift_B.shape[1]
        taps = [sum(shift_C[:, i + j] * shift_B[:, j] for j in range(n - i)) for i in range(n)]
        shifted = []
        for t in range(length):
            total = readout.shift_D * k[t]
            for i in range(min(n, t + 1)):
                total = total + taps[i] * k[t - i]
            shifted.append(total)
        C = torch.view_as_complex(readout.C)
        y = torch.zeros(length, heads, width, dtype=D)
        y = [[torch.zeros(width, dtype=D) for _ in range(heads)] for _ in range(length)]
        for t, h in itertools.product(range(length), range(heads)):
            part = slice(h * width, (h + 1) * width)
            for s in range(t + 1):
                kernel = 2 * (C[h] * A[h] ** (t - s) * B[h]).sum().real + (readout.D[h] if s == t else 0)
                y[t][h] = y[t][h] + (q[t, part] @ shifted[s][part]) * kernel * v[s, part]
        return torch.stack([torch.cat(row) for row in y])

    ahead = one_way(mixer.readout, q, k, v)
    return ahead + one_way(mixer.backward_readout, q.flip(0), k.flip(0), v.flip(0)).flip(0)


def gss_sums(mixer: Any, x: Tensor) -> Tensor:
    u, v = F.gelu(F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias)).split([mixer.d_inner, mixer.d_ssm], -1)
    A = torch.complex(-mixer.dynamics.log_decay.exp(), mixer.dynamics.log_frequency.exp())
    B = (A.exp() - 1) / A
    ahead, behind = (torch.view_as_complex(C).squeeze(1) for C in (mixer.readout.C, mixer.readout.C_backward))
    rows = []
    for t in range(len(x)):
        total = mixer.readout.D.squeeze(1) * v[t]
        for s in range(len(x)):
            for C, counts in ((ahead, s <= t), (behind, s >= t)):
                if counts:
                    total = total + 2 * (C * (A * abs(t - s)).exp() * B).sum(-1).real * v[s]
        rows.append(total)
    return u * F.linear(torch.stack(rows), mixer.up_proj.weight, mixer.up_proj.bias)


def build(name: str) -> Any:
    torch.manual_seed(0)
    mixer = prepared(CONFIGS[name].build(8))
    assert not mixer.is_causal
    return mixer


@pytest.mark.parametrize("name", CONFIGS)
def test_equal_to_the_explicit_sums(name: str) -> None:
    """Outputs and gradients: of whole rows, and of documents and padding with NaN in it, each by itself."""
    mixer = build(name)
    x = torch.randn(2, 11, 8, dtype=D).requires_grad_()
    y, none = mixer(x)
    assert none is None
    expected = torch.stack([by_hand(mixer, row) for row in x])
    same(y, expected, 1e-9, "whole rows")
    same(gradients(mixer, y, x), gradients(mixer, expected, x), 1e-8, "gradients")

    lengths, starts = torch.tensor([10, 4]), torch.zeros(2, 11, dtype=torch.bool)
    starts[0, [0, 3, 4]] = True
    padded = x.detach().clone()
    padded[0, 10:], padded[1, 4:] = torch.nan, torch.nan
    padded.requires_grad_()
    for given, documents in (
        ({"lengths": lengths}, ([0, 10], [0, 4])),
        ({"lengths": lengths, "starts": starts}, ([0, 3, 4, 10], [0, 4])),
    ):
        y, _ = mixer(padded, **given)
        ours, theirs = [], []
        for row, edges in enumerate(documents):
            for t0, t1 in itertools.pairwise(edges):
                ours.append(y[row, t0:t1])
                theirs.append(by_hand(mixer, padded[row, t0:t1]))
        ours, theirs = torch.cat(ours), torch.cat(theirs)
        same(ours, theirs, 1e-9, "documents")
        found = gradients(mixer, ours, padded)
        same(found, gradients(mixer, theirs, padded), 1e-8, "gradients of documents")
        assert all(grad.isfinite().all() for grad in found)
    empty = mixer(x[:, :0])[0], mixer(x[:0])[0]
    assert [tuple(m.shape) for m in empty] == [(2, 0, 8), (0, 11, 8)]


@pytest.mark.parametrize("name", CONFIGS)
def test_there_is_no_state_and_no_language_model(name: str) -> None:
    mixer = CONFIGS[name].build(8)
    for call in (lambda: mixer.initial_state(1), lambda: mixer(torch.randn(1, 3, 8), (None, None))):
        with pytest.raises(InputError, match=rf"bidirectional {type(mixer).__name__} has no state"):
            call()
    with pytest.raises(ConfigError, match="both directions"):
        sw.LanguageModelConfig(vocab_size=5, d_model=8, layers=(CONFIGS[name],)).build()


@pytest.mark.parametrize("name", CONFIGS)
def test_autocast_and_freeze(name: str) -> None:
    torch.manual_seed(0)
    mixer = CONFIGS[name].build(8)
    x = torch.randn(2, 30, 8)
    expected = mixer(x)[0]
    torch.testing.assert_close(mixer.freeze()(x)[0], expected)
    starts = torch.zeros(2, 30, dtype=torch.bool)
    starts[:, 7] = True
    for given in ({}, {"starts": starts}):
        exact = mixer(x, **given)[0].detach()
        with torch.autocast("cpu", torch.bfloat16):
            y = mixer(x, **given)[0]
        torch.testing.assert_close(y.float(), exact, atol=0.06 * exact.abs().max().item(), rtol=0)


def test_the_last_step_sees_what_it_sees_causally() -> None:
    """With positions of every kind, which count from the beginning of each document."""
    for options in ({}, {"positions": "learned", "max_positions": 40}, {"d_rotary": 2}, {"window": 5}):
        torch.manual_seed(0)
        causal = prepared(sw.AttentionConfig(n_heads=2, **options).build(8))
        mixer = sw.AttentionConfig(n_heads=2, bidirectional=True, **options).build(8).double()
        mixer.load_state_dict(causal.state_dict())
        x = torch.randn(2, 33, 8, dtype=D)
        same(mixer(x)[0][:, -1], causal(x)[0][:, -1], 1e-12, "the last step")
        starts = torch.zeros(2, 33, dtype=torch.bool)
        starts[:, 20] = True
        packed = mixer(x, starts=starts)[0]
        same(packed, torch.cat([mixer(part)[0] for part in x.split((20, 13), 1)], 1), 1e-12, "two documents")


@pytest.mark.parametrize("window", [None, 1, 3, 40])
def test_attend_fully_is_the_definition(window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence and two, with rows that see nothing, in one piece and in several."""
    torch.manual_seed(0)
    monkeypatch.setattr(full_attention, "SMALLEST_BLOCK", 4)
    for length, n_keys in ((1, 1), (9, 9), (26, 26), (7, 12), (70, 3)):
        if window is not None and length != n_keys:
            continue
        q = torch.randn(2, length, 4, 3, dtype=D, requires_grad=True)
        k, v = (torch.randn(2, n_keys, 2, 3, dtype=D, requires_grad=True) for _ in range(2))
        valid = torch.arange(n_keys) < torch.tensor([[n_keys], [n_keys // 2]])
        own, theirs = torch.randint(3, (2, length)).sort(1).values, torch.randint(4, (2, n_keys)).sort(1).values
        for seen in (Seen(window=window), Seen(valid, None, window), Seen(valid, (own, theirs), window)):
            expected = full_attention_reference(q, k, v, seen)
            weight = torch.randn_like(expected)
            slopes = torch.autograd.grad((expected * weight).sum(), (q, k, v), materialize_grads=True)
            for elements in (2**22, 60):
                monkeypatch.setattr(full_attention, "MASK_ELEMENTS", elements)
                y = attend_fully(q, k, v, seen)
                same(y, expected, 1e-12, "attend_fully")
                found = torch.autograd.grad((y * weight).sum(), (q, k, v))
                same(found, slopes, 1e-12, "gradients")

            drawn: list[Tensor] = []

            def dropout(weights: Tensor, drawn: list[Tensor] = drawn) -> Tensor:
                drawn.append(F.dropout(torch.ones_like(weights), 0.4))
                return weights * drawn[-1]

            monkeypatch.setattr(full_attention, "MASK_ELEMENTS", 2**22)
            if window is None:
                y = attend_fully(q, k, v, seen, dropout=dropout)
                same(y, full_attention_reference(q, k, v, seen, noise=drawn[0]), 1e-12, "with dropout")


def test_a_window_costs_no_more_than_its_width(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[int] = []
    inner = F.scaled_dot_product_attention

    def record(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        widths.append(k.shape[2])
        return inner(q, k, v, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    sw.AttentionConfig(n_heads=2, window=100, bidirectional=True).build(4)(torch.randn(1, 1000, 4))
    assert max(widths) <= 300
    assert len(widths) == 10


def test_options_that_do_not_fit_are_refused() -> None:
    for config, options, words in (
        (sw.AttentionConfig, {"n_heads": 2, "n_taps": 3, "bidirectional": True}, "n_taps=3 with bidirectional=True"),
        (sw.Mamba2Config, {"tied_directions": False}, "bidirectional=True"),
        (sw.Mamba2Config, {"combine": "concatenate"}, "bidirectional=True"),
        (sw.H3Config, {"bidirectional": 1}, "bidirectional=1"),
    ):
        with pytest.raises(ConfigError, match=words):
            config(**options)


def test_the_mean_over_a_row_needs_no_direction() -> None:
    """What the flag is for: a classifier of a row and of the same row with its end cut off differ at every step."""
    for name in CONFIGS:
        mixer = build(name)
        x = torch.randn(1, 12, 8, dtype=D)
        changed = x.clone()
        changed[:, -1] += 1
        moved = (mixer(changed)[0] - mixer(x)[0]).detach().abs().amax(-1)[0]
        reach = 4 if "window" in name else 12
        assert (moved[-reach:] > 0).all(), name
