"""Attention: the fast forms against the definition, and the laws of every mixer."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import laws
import pytest
import torch
import torch.nn.functional as F
from attention_layers import CONFIGS, build, decode, visible
from torch import Tensor
from torch.utils import _pytree as pytree

from statewise.errors import ConfigError, InputError
from statewise.mixers import causal_attention
from statewise.mixers.attention import Attention, AttentionConfig
from statewise.mixers.causal_attention import attend, attention_reference
from statewise.mixers.rotary import rotate

# ---- the computation


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
            laws.same(y, expected, 1e-12, "attend")
            laws.same(torch.autograd.grad((y * weight).sum(), (q, k, v)), expected_gradients, 1e-12, "gradients")


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
            laws.same(y[row], attention_reference(*own, n_history=count, window=window), 1e-12, "a row")


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
        laws.same(y, expected, 1e-12, "attend")
        weight = torch.randn_like(expected)
        gradients = (torch.autograd.grad((each * weight).sum(), (q, k, v)) for each in (y, expected))
        laws.same(*gradients, 1e-12, "gradients")


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
    laws.same(drawn.mean(0), expected, 0.05, "the mean of many draws")
    torch.manual_seed(3)
    in_pieces = laws.through(mixer, x.split(1, 1), mixer.initial_state(2))  # a state is no reason not to drop
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
    laws.same(y[..., :6], torch.cat((z.real, z.imag), -1), 1e-12, "rotation")
    far = torch.full_like(position, 1_000_000)
    single = rotate(x.float(), far, d_rotary=10)
    assert single.dtype == torch.float32
    laws.same(single.double(), rotate(x, far, d_rotary=10), 1e-6, "float32, a million tokens on")


def mixer_reference(mixer: Attention, x: Tensor) -> Tensor:
    """The whole mixer on one document, from the definitions."""
    config, d_head = mixer.config, mixer.d_head
    n_kv_heads = config.n_kv_heads or config.n_heads
    position = torch.arange(x.shape[1])
    if mixer.positions is not None:
        x = x + mixer.positions.weight[position]
    qkv = x @ mixer.in_proj.weight.T + (mixer.in_proj.bias if config.bias else 0)
    d_q, d_kv = config.n_heads * d_head, n_kv_heads * d_head
    q, k, v = (part.unflatten(-1, (-1, d_head)) for part in (qkv[..., :d_q], *qkv[..., d_q:].split(d_kv, -1)))
    if config.positions == "rotary":
        half = (config.d_rotary or d_head) // 2
        frequency = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
        turn = torch.exp(1j * position[:, None] * frequency)[:, None]

        def turned(z: Tensor) -> Tensor:
            pair = torch.complex(z[..., :half], z[..., half : 2 * half]) * turn
            return torch.cat((pair.real, pair.imag, z[..., 2 * half :]), -1)

        q, k = turned(q), turned(k)
    y = attention_reference(q, k, v, window=config.window).flatten(2)
    return y @ mixer.out_proj.weight.T + (mixer.out_proj.bias if config.bias else 0)


@pytest.mark.parametrize("name", CONFIGS)
def test_mixer_is_its_definition(name: str) -> None:
    torch.manual_seed(0)
    mixer = laws.prepared(CONFIGS[name].build(8 if name != "no positions" else 7))
    x = torch.randn(2, 71, mixer.d_model, dtype=torch.float64)
    expected = mixer_reference(mixer, x)
    laws.same(mixer(x)[0], expected, 1e-11, "from rest")
    laws.same(laws.through(mixer, x.split((40, 30, 1), 1), mixer.initial_state(2)), expected, 1e-11, "in three calls")


# ---- the laws


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
    state = laws.warm_state(mixer, 2, length=4)
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
    laws.same(y, mixer(x, lengths=lengths, starts=starts)[0], 1e-12, "compiled")


# ---- dtypes, parameters, boundaries


def test_autocast() -> None:
    torch.manual_seed(0)
    mixer = AttentionConfig(n_heads=2, n_kv_heads=1).build(8)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(15)
    x = torch.randn(2, 9, 8)
    expected = mixer(x)[0]
    with torch.autocast("cpu", torch.bfloat16):
        y = mixer(x)[0]
        pieces = laws.through(mixer, x.split(4, 1), mixer.initial_state(2))
        steps, state = decode(mixer, x, mixer.initial_state(2))
    assert state.keys.dtype == torch.float32
    for actual in (y, pieces, steps):
        torch.testing.assert_close(actual.float(), expected, atol=0.02 * expected.abs().max().item(), rtol=0.0)


def test_reset_parameters() -> None:
    config = AttentionConfig(n_heads=4, n_kv_heads=2, bias=True, positions="learned", max_positions=300)
    mixer = config.build(64)
    assert mixer.in_proj.weight.shape == ((4 + 2 * 2) * 16, 64)
    assert mixer.out_proj.weight.shape == (64, 64)
    drawn = []
    for scale in (1.0, 0.25):
        torch.manual_seed(1)
        torch.nn.init.ones_(mixer.in_proj.bias)
        mixer.reset_parameters(scale)
        drawn.append({name: parameter.clone() for name, parameter in mixer.named_parameters()})
    for name, parameter in drawn[0].items():
        if name.endswith("bias"):
            assert not parameter.any()
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.05)
        torch.testing.assert_close(drawn[1][name], parameter * (0.25 if name == "out_proj.weight" else 1.0))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"n_heads": 0}, ["n_heads=0", "at least 1"]),
        ({"n_heads": None}, ["n_heads=None"]),
        ({"n_heads": True}, ["n_heads=True"]),
        ({"n_heads": 4, "n_kv_heads": 3}, ["n_kv_heads=3", "n_heads=4"]),
        ({"n_heads": 4, "n_kv_heads": 8}, ["n_kv_heads=8"]),
        ({"n_heads": 2, "window": 0}, ["window=0"]),
        ({"n_heads": 2, "window": 2.5}, ["window=2.5"]),
        ({"n_heads": 2, "d_head": -1}, ["d_head=-1"]),
        ({"n_heads": 2, "positions": "alibi"}, ["alibi", "rotary", "learned"]),
        ({"n_heads": 2, "d_head": 5}, ["d_rotary=5", "even"]),
        ({"n_heads": 2, "d_head": 4, "d_rotary": 6}, ["d_rotary=6", "d_head=4"]),
        ({"n_heads": 2, "d_rotary": 3, "d_head": 8}, ["d_rotary=3", "even"]),
        ({"n_heads": 2, "d_rotary": 4, "positions": None}, ["d_rotary=4", "positions=None"]),
        ({"n_heads": 2, "rotary_base": 0.0}, ["rotary_base=0.0"]),
        ({"n_heads": 2, "rotary_base": float("inf")}, ["rotary_base=inf"]),
        ({"n_heads": 2, "positions": "learned"}, ["max_positions=None", "learned"]),
        ({"n_heads": 2, "max_positions": 8}, ["max_positions=8", "rotary"]),
        ({"n_heads": 2, "bias": 1}, ["bias=1"]),
        ({"n_heads": 2, "dropout": 1.0}, ["dropout=1.0"]),
        ({"n_heads": 2, "dropout": "0.1"}, ["dropout='0.1'"]),
    ],
)
def test_config_errors(options: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(**options)
    assert all(name in str(caught.value) for name in names), caught.value
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "names"), [({"n_heads": 3}, ["d_model=8", "n_heads=3"]), ({"n_heads": 8}, ["d_rotary=1"])]
)
def test_config_errors_that_need_the_width(options: dict[str, Any], names: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        AttentionConfig(**options).build(8)
    assert all(name in str(caught.value) for name in names), caught.value


def test_input_errors() -> None:
    mixer, other = build(n_heads=2), build(n_heads=4)
    x, state = torch.randn(2, 3, 8, dtype=torch.float64), mixer.initial_state(2)
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
        (r"Attention needs x of shape \(batch, length, 8\), got \(2, 8\)", (x[:, 0],), {}),
        (r"got \(2, 3, 7\)", (x[..., :7],), {}),
        (r"needs state.keys of shape \(2, any, 2, 4\), got \(3, 0, 2, 4\)", (x, mixer.initial_state(3)), {}),
        (r"needs state.keys of shape .* got \(2, 0, 4, 2\)", (x, other.initial_state(2)), {}),
        (r"needs state.end of shape \(2,\), got \(1,\)", (x, state._replace(end=state.end[:1])), {}),
        ("damaged: row 0 has slots 0 to 1 of 0", (x, state._replace(end=state.end + 1)), {}),
        ("needs state of type AttentionState, got tuple", (x, tuple(state)), {}),
        (
            r"lengths must be integers of shape \(2,\), got torch.int64 \(3,\)",
            (x,),
            {"lengths": torch.tensor([1, 2, 3])},
        ),
        ("lengths must be integers", (x,), {"lengths": torch.ones(2)}),
        (r"lengths must lie in 0\.\.3 .* got 1\.\.4", (x, state), {"lengths": torch.tensor([1, 4])}),
        (r"lengths must lie in 0\.\.3 .* got 1\.\.4", (x,), {"lengths": torch.tensor([1, 4])}),
        (r"lengths must lie in 0\.\.3 .* got -1\.\.2", (x,), {"lengths": torch.tensor([-1, 2])}),
        (r"starts must be bool of shape \(2, 3\)", (x,), {"starts": torch.zeros(2, 2, dtype=torch.bool)}),
        (r"starts must be bool .* got torch.int64", (x,), {"starts": torch.zeros(2, 3, dtype=torch.int64)}),
    ]
    for message, arguments, options in calls:
        with pytest.raises(InputError, match=message):
            mixer(*arguments, **options)


def test_learned_positions_end() -> None:
    mixer = build(n_heads=2, positions="learned", max_positions=6)
    x = torch.randn(2, 9, 8, dtype=torch.float64)
    with pytest.raises(InputError, match="row 0 reaches position 8, but max_positions=6 gives positions 0 to 5"):
        mixer(x)
    lengths, starts = torch.tensor([6, 9]), torch.zeros(2, 9, dtype=torch.bool)
    with pytest.raises(InputError, match="row 1 reaches position 8"):
        mixer(x, lengths=lengths)
    starts[1, 4] = True
    y, _ = mixer(x, lengths=lengths, starts=starts)  # padding lies beyond the table, no document does
    laws.same(y[:1, :6], mixer(x[:1, :6])[0], 1e-12, "the whole table")
    _, state = mixer(x[:, :6], mixer.initial_state(2))
    with pytest.raises(InputError, match="row 0 reaches position 6"):
        mixer(x[:, :1], state)
    starts[:, 0] = True
    assert mixer(x[:, :1], state, starts=starts[:, :1])[0].isfinite().all()


def test_an_empty_batch() -> None:
    mixer = build(n_heads=2)
    x = torch.zeros(0, 3, 8, dtype=torch.float64)
    y, state = mixer(x, mixer.initial_state(0))
    assert y.shape == x.shape
    assert state.position.shape == (0,)
    assert mixer(x)[0].shape == x.shape


@pytest.mark.parametrize("shape", [(2, 0, 8), (0, 3, 8)])
def test_nothing_has_a_graph_too(shape: tuple[int, ...]) -> None:
    mixer = build(n_heads=2, n_kv_heads=1, positions="learned", max_positions=6, bias=True)
    y, _ = mixer(torch.zeros(shape, dtype=torch.float64), mixer.initial_state(shape[0]))
    assert y.shape == shape
    y.sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


@pytest.mark.cuda
@pytest.mark.parametrize("name", CONFIGS)
def test_cuda_agrees(name: str) -> None:
    torch.manual_seed(0)
    mixer = laws.prepared(CONFIGS[name].build(8 if name != "no positions" else 7))
    x = torch.randn(2, 140, mixer.d_model, dtype=torch.float64)
    lengths, starts = torch.tensor([140, 77]), torch.rand(2, 140) < 0.05
    expected = mixer(x, lengths=lengths, starts=starts)[0]
    on_device = copy.deepcopy(mixer).cuda()
    y = on_device(x.cuda(), lengths=lengths.cuda(), starts=starts.cuda())[0].cpu()
    for b in range(2):
        laws.same(y[b, : lengths[b]], expected[b, : lengths[b]], 1e-10, "packed and padded")
    whole = mixer(x)[0]
    _, state = mixer(x[:, :100], mixer.initial_state(2))
    state = pytree.tree_map(lambda leaf: leaf.cuda(), laws.detached(state))
    laws.same(decode(on_device, x[:, 100:].cuda(), state)[0].cpu(), whole[:, 100:], 1e-10, "a state that was moved")


@pytest.mark.parametrize("length", [1, 2, 31, 64, 65])
def test_short_rows_are_attended_to_as_long_ones(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain products up to SHORT, the fused attention beyond: values, gradients, and several models at once."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, length, 2, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    found, slope = [], torch.randn(3, 2, length, 2, 4, dtype=torch.float64)
    for short in (0, 64):
        monkeypatch.setattr("statewise.mixers.causal_attention.SHORT", short)
        y = torch.stack([attend(*parts) for parts in zip(q, k, v)])
        found.append([y, *torch.autograd.grad(y, (q, k, v), slope)])
    torch.testing.assert_close(found[0], found[1], atol=1e-12, rtol=1e-12)
    y = torch.func.vmap(attend)(q, k, v)
    torch.testing.assert_close([y, *torch.autograd.grad(y, (q, k, v), slope)], found[1], atol=1e-12, rtol=1e-12)
