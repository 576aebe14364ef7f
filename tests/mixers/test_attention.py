"""Attention: the fast forms against the definition, rotary angles, the laws."""

from __future__ import annotations

import itertools
from typing import Any

import laws
import pytest
import torch
import torch.nn.functional as F
from attention_layers import CONFIGS, build, decode, visible
from law_signals import prepared, same, through, warm_state
from torch import Tensor

from statewise.mixers import causal_attention
from statewise.mixers.attention import Attention, AttentionConfig
from statewise.mixers.causal_attention import attend, attention_reference
from statewise.mixers.rotary import rotate


@pytest.mark.parametrize("window", [None, 1, 3, 8])
@pytest.mark.parametrize(("length", "n_history"), [(1, 9), (7, 0), (25, 0), (26, 2), (27, 21)])
def test_attend_is_the_definition(
    length: int, n_history: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(causal_attention, "SMALLEST_BLOCK", 4)  # several blocks at these lengths
    batch = 2
    q = torch.randn(batch, length, 4, 3, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(batch, n_history + length, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    time = torch.arange(length)
    documents = torch.where(torch.rand(batch, length) < 0.2, time, -n_history).cummax(1).values
    for first in (None, documents[:1], documents):
        expected = attention_reference(q, k, v, n_history=n_history, first=first, window=window)
        weight = torch.randn_like(expected)
        expected_gradients = torch.autograd.grad((expected * weight).sum(), (q, k, v))
        for mask_elements in (2**22, 150):
            monkeypatch.setattr(causal_attention, "MASK_ELEMENTS", mask_elements)
            y = attend(q, k, v, n_history=n_history, first=first, window=window)
            same(y, expected, 1e-12, "attend")
            same(torch.autograd.grad((y * weight).sum(), (q, k, v)), expected_gradients, 1e-12, "gradients")


def test_attend_takes_histories_of_several_lengths() -> None:
    torch.manual_seed(0)
    counts = [0, 3, 5]
    for length, window in itertools.product((1, 4), (None, 1, 3)):
        q = torch.randn(3, length, 2, 4, dtype=torch.float64)
        k, v = (torch.randn(3, max(counts) + length, 1, 4, dtype=torch.float64) for _ in range(2))
        y = attend(q, k, v, n_history=torch.tensor(counts), window=window)
        for b, count in enumerate(counts):
            row = slice(b, b + 1)
            own = (q[row], k[row, : count + length], v[row, : count + length])
            same(y[row], attention_reference(*own, n_history=count, window=window), 1e-12, "a row")


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize(("length", "n_history"), [(1, 4), (7, 0), (9, 5)])
def test_dropout_of_the_weights_is_the_definition(
    length: int, n_history: int, window: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, length, 4, 3, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(2, n_history + length, 2, 3, dtype=torch.float64, requires_grad=True) for _ in range(2))
    time = torch.arange(length)
    documents = torch.where(torch.rand(2, length) < 0.2, time, -n_history).cummax(1).values
    for first, mask_elements in itertools.product((None, documents), (2**22, 40)):  # in one piece, and in several
        monkeypatch.setattr(causal_attention, "MASK_ELEMENTS", mask_elements)
        drawn: list[Tensor] = []

        def dropout(weights: Tensor, drawn: list[Tensor] = drawn) -> Tensor:
            drawn.append(F.dropout(torch.ones_like(weights), 0.4))
            return weights * drawn[-1]

        y = attend(q, k, v, n_history=n_history, first=first, window=window, dropout=dropout)
        noise = torch.cat([F.pad(part, (0, k.shape[1] - part.shape[-1])) for part in drawn], 2)
        assert noise.shape == (2, 4, length, k.shape[1])
        expected = attention_reference(q, k, v, n_history=n_history, first=first, window=window, noise=noise)
        same(y, expected, 1e-12, "attend")
        weight = torch.randn_like(expected)
        gradients = (torch.autograd.grad((each * weight).sum(), (q, k, v)) for each in (y, expected))
        same(*gradients, 1e-12, "gradients")


def test_dropout_is_of_training_alone() -> None:
    mixer = build(n_heads=2, dropout=0.5)
    plain = build(n_heads=2)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    expected = plain(x)[0]
    assert torch.equal(mixer.eval()(x)[0], expected)
    mixer.train()
    torch.manual_seed(3)
    drawn = torch.stack([mixer(x)[0] for _ in range(4000)])
    assert not torch.equal(drawn[0], drawn[1])
    same(drawn.mean(0), expected, 0.05, "the mean of many draws")
    torch.manual_seed(3)
    in_pieces = through(mixer, x.split(1, 1), mixer.initial_state(2))  # a state is no reason not to drop
    assert (in_pieces - expected).abs().max() > 1e-2


def test_memory_of_masks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    keys: list[int] = []
    inner = F.scaled_dot_product_attention

    def record(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        sizes.append(0 if attn_mask is None else attn_mask.numel())
        keys.append(k.shape[2])
        return inner(q, k, v, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", record)
    monkeypatch.setattr(causal_attention, "MASK_ELEMENTS", 2**12)
    mixer = AttentionConfig(n_heads=1).build(4)
    mixer(torch.randn(1, 500, 4))
    assert sizes == [0]  # a full causal range makes no mask
    starts = torch.zeros(1, 500, dtype=torch.bool)
    mixer(torch.randn(1, 500, 4), starts=starts)
    assert max(sizes) <= 2**12
    keys.clear()
    AttentionConfig(n_heads=1, window=32).build(4)(torch.randn(1, 500, 4), starts=starts)
    assert max(sizes) <= 2**12
    assert max(keys) == 64  # two blocks, however long the sequence
    sizes.clear()
    decode(mixer, torch.randn(1, 20, 4), mixer.initial_state(1))
    assert sizes == [0] * 20  # the range of a lone query is exact


def test_rotary_is_a_complex_rotation() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 10, dtype=torch.float64)
    position = torch.tensor([[0, 1, 2, 3, 4], [7, 100, 0, 5, 100_000]])
    y = rotate(x, position, d_rotary=6, base=50.0)
    assert torch.equal(y[..., 6:], x[..., 6:])
    z = torch.complex(x[..., :3], x[..., 3:6])
    angle = position[..., None] * torch.tensor([50.0 ** (-2 * i / 6) for i in range(3)], dtype=torch.float64)
    z = z * torch.polar(torch.ones_like(angle), angle)[:, :, None]
    same(y[..., :6], torch.cat((z.real, z.imag), -1), 1e-12, "rotation")
    far = torch.full_like(position, 1_000_000)
    single = rotate(x.float(), far, d_rotary=10)
    assert single.dtype == torch.float32
    same(single.double(), rotate(x, far, d_rotary=10), 1e-6, "float32, a million tokens on")


def normed_reference(x: Tensor, norm: Any, mixer: Attention) -> Tensor:
    """Queries or keys (batch, length, width), group by group."""
    weight = norm.weight + 1 if mixer.config.qk_norm_offset else norm.weight
    groups = x.split(weight.shape[0], -1)
    eps = mixer.config.qk_norm_eps
    return torch.cat([g / (g.square().mean(-1, keepdim=True) + eps).sqrt() * weight for g in groups], -1)


def mixer_reference(mixer: Attention, x: Tensor) -> Tensor:
    """The whole mixer on one document, from the definitions."""
    config, d_head = mixer.config, mixer.d_head
    n_kv_heads = config.n_kv_heads or config.n_heads
    position = torch.arange(x.shape[1])
    if mixer.positions is not None:
        x = x + mixer.positions.weight[position]
    qkv = x @ mixer.in_proj.weight.T + (mixer.in_proj.bias if config.bias else 0)
    d_q, d_kv = config.n_heads * d_head, n_kv_heads * d_head
    q, k, v, gate = qkv.split((d_q, d_kv, d_kv, d_q if config.gate else 0), -1)
    if config.qk_norm is not None:
        q, k = normed_reference(q, mixer.q_norm, mixer), normed_reference(k, mixer.k_norm, mixer)
    q, k, v = (part.unflatten(-1, (-1, d_head)) for part in (q, k, v))
    if config.positions == "rotary":
        half = (config.d_rotary or d_head) // 2
        frequency = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
        turn = torch.exp(1j * position[:, None] * frequency)[:, None]

        def turned(z: Tensor) -> Tensor:
            pair = torch.complex(z[..., :half], z[..., half : 2 * half]) * turn
            return torch.cat((pair.real, pair.imag, z[..., 2 * half :]), -1)

        q, k = turned(q), turned(k)
    y = attention_reference(q, k, v, window=config.window, scale=config.scale).flatten(2)
    y = y / (1 + torch.exp(-gate)) if config.gate else y
    return y @ mixer.out_proj.weight.T + (mixer.out_proj.bias if config.bias else 0)


@pytest.mark.parametrize("name", CONFIGS)
def test_mixer_is_its_definition(name: str) -> None:
    torch.manual_seed(0)
    mixer = prepared(CONFIGS[name].build(8 if name != "no positions" else 7))
    x = torch.randn(2, 71, mixer.d_model, dtype=torch.float64)
    expected = mixer_reference(mixer, x)
    same(mixer(x)[0], expected, 1e-11, "from rest")
    same(through(mixer, x.split((40, 30, 1), 1), mixer.initial_state(2)), expected, 1e-11, "in three calls")


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize(("length", "batch"), [(1, 1), (17, 3)])
def test_laws(name: str, length: int, batch: int) -> None:
    mixer = CONFIGS[name].build(8 if name != "no positions" else 7)
    laws.check_mixer_laws(mixer, length=length, batch=batch, visible=visible)


@pytest.mark.parametrize("name", ["grouped, bias", "partly rotary"])
def test_laws_over_many_blocks(name: str) -> None:
    laws.check_mixer_laws(CONFIGS[name].build(8), length=131, visible=visible)


@pytest.mark.parametrize("window", [None, 3])
def test_gradcheck(window: int | None) -> None:
    mixer = build(d_model=4, n_heads=2, n_kv_heads=1, window=window, bias=True)
    state = warm_state(mixer, 2, length=4)
    x = torch.randn(2, 4, 4, dtype=torch.float64, requires_grad=True)
    lengths, starts = torch.tensor([4, 2]), torch.tensor([[False, False, True, False], [False] * 4])

    def outputs(x: Tensor, keys: Tensor, values: Tensor, *parameters: Tensor) -> tuple[Tensor, ...]:
        own = dict(zip(dict(mixer.named_parameters()), parameters))
        call = (x, state._replace(keys=keys, values=values))
        y, after = torch.func.functional_call(mixer, own, call, {"lengths": lengths, "starts": starts})
        return y[0], y[1, :2], after.keys, after.values

    assert torch.autograd.gradcheck(outputs, (x, state.keys, state.values, *mixer.parameters()))


@pytest.mark.parametrize("window", [None, 6])
def test_compiles_to_one_graph_from_rest(window: int | None) -> None:
    mixer = build(n_heads=2, n_kv_heads=1, window=window)
    compiled = torch.compile(mixer, fullgraph=True, backend="eager")
    x = torch.randn(2, 80, 8, dtype=torch.float64)
    lengths, starts = torch.tensor([80, 31]), torch.rand(2, 80) < 0.1
    y = compiled(x, lengths=lengths, starts=starts)[0]
    same(y, mixer(x, lengths=lengths, starts=starts)[0], 1e-12, "compiled")
