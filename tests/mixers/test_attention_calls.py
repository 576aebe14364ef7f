"""Attention as a mixer: its config, its parameters, what it refuses, empty batches."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from attention_layers import CONFIGS, build, decode
from law_signals import detached, prepared, same, through
from torch.utils import _pytree as pytree

from statewise.errors import ConfigError, InputError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.causal_attention import attend


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
        pieces = through(mixer, x.split(4, 1), mixer.initial_state(2))
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
    same(y[:1, :6], mixer(x[:1, :6])[0], 1e-12, "the whole table")
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
    mixer = prepared(CONFIGS[name].build(8 if name != "no positions" else 7))
    x = torch.randn(2, 140, mixer.d_model, dtype=torch.float64)
    lengths, starts = torch.tensor([140, 77]), torch.rand(2, 140) < 0.05
    expected = mixer(x, lengths=lengths, starts=starts)[0]
    on_device = copy.deepcopy(mixer).cuda()
    y = on_device(x.cuda(), lengths=lengths.cuda(), starts=starts.cuda())[0].cpu()
    for b in range(2):
        same(y[b, : lengths[b]], expected[b, : lengths[b]], 1e-10, "packed and padded")
    whole = mixer(x)[0]
    _, state = mixer(x[:, :100], mixer.initial_state(2))
    state = pytree.tree_map(lambda leaf: leaf.cuda(), detached(state))
    same(decode(on_device, x[:, 100:].cuda(), state)[0].cpu(), whole[:, 100:], 1e-10, "a state that was moved")


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
