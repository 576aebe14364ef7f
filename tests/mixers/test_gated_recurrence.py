"""GRU and LSTM: PyTorch's layers and a loop of the equations, the laws, and both ways of computing them."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from law_signals import prepared
from laws import check_mixer_laws
from torch import Tensor, nn

from statewise.errors import InputError
from statewise.mixers.gated_recurrence import GRU, LSTM, GRUConfig, GRUState, LSTMConfig, LSTMState, unrounded
from statewise.operators.masks import build_masks
from statewise.precision import products_at

CONFIGS = [GRUConfig(), LSTMConfig(), GRUConfig(d_hidden=5), LSTMConfig(d_hidden=3)]


def build(config: GRUConfig | LSTMConfig, d_model: int = 4) -> GRU | LSTM:
    torch.manual_seed(0)
    return prepared(config.build(d_model))


def theirs(mixer: GRU | LSTM) -> nn.GRU | nn.LSTM:
    """PyTorch's layer with the same parameters."""
    kind = nn.GRU if isinstance(mixer, GRU) else nn.LSTM
    layer = kind(mixer.d_model, mixer.d_hidden, batch_first=True).double()
    names = {"ih": mixer.in_proj, "hh": mixer.hidden_proj}
    layer.load_state_dict(
        {f"{kind}_{name}_l0": getattr(of, kind) for name, of in names.items() for kind in ("weight", "bias")}
    )
    return layer


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_laws(config: GRUConfig | LSTMConfig) -> None:
    check_mixer_laws(config.build(4), length=7)


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_equal_to_pytorch(config: GRUConfig | LSTMConfig) -> None:
    mixer = build(config)
    x = torch.randn(2, 30, 4, dtype=torch.float64)
    hidden, _ = theirs(mixer)(x)
    torch.testing.assert_close(mixer(x)[0], mixer._end(hidden), atol=1e-12, rtol=1e-12)


def test_the_equations() -> None:
    """Number by number, of one row."""
    gru, lstm = build(GRUConfig()), build(LSTMConfig())
    x = torch.randn(6, 4, dtype=torch.float64)
    h = torch.zeros(4, dtype=torch.float64)
    for t in range(6):
        r, z, n = gru.in_proj(x[t]).chunk(3)
        r_h, z_h, n_h = gru.hidden_proj(h).chunk(3)
        r, z = torch.sigmoid(r + r_h), torch.sigmoid(z + z_h)
        h = (1 - z) * torch.tanh(n + r * n_h) + z * h
    torch.testing.assert_close(gru(x[None])[0][0, -1], h, atol=1e-12, rtol=1e-12)
    h, c = torch.zeros(2, 4, dtype=torch.float64)
    for t in range(6):
        i, f, g, o = (lstm.in_proj(x[t]) + lstm.hidden_proj(h)).chunk(4)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
    torch.testing.assert_close(lstm(x[None])[0][0, -1], h, atol=1e-12, rtol=1e-12)


def some_masks(x: Tensor) -> list[tuple[Tensor | None, Tensor | None]]:
    """Lengths and starts: documents of all sizes, rows without a step, starts at the first step and side by side."""
    batch, length = x.shape[:2]
    lengths = torch.tensor([length, 0, 3, 1, length - 1])
    starts = torch.rand(batch, length, generator=torch.Generator().manual_seed(0)) < 0.3
    starts[0, 0] = starts[2, 1] = starts[2, 2] = True
    return [(None, None), (lengths, None), (None, starts), (lengths, starts), (torch.zeros_like(lengths), None)]


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_both_ways_of_computing_it_are_equal(config: GRUConfig | LSTMConfig) -> None:
    """PyTorch's loop over packed documents, and the definition: outputs, states and gradients."""
    mixer = build(config)
    x = torch.randn(5, 11, 4, dtype=torch.float64, requires_grad=True)
    begin = type(mixer.initial_state(5))(*(torch.randn(5, 4, dtype=torch.float64) for _ in mixer.initial_state(5)))
    weights: list[Tensor] = [
        p.detach().clone().requires_grad_() for m in (mixer.in_proj, mixer.hidden_proj) for p in (m.weight, m.bias)
    ]
    for lengths, starts in some_masks(x):
        masks = build_masks(x, lengths, starts)
        found = []
        for form in (mixer._recurrent, mixer._library):
            y, end = form(x, [*begin], weights, masks)
            if masks.valid is not None:
                y = y.masked_fill(~masks.valid[..., None], 0)
            loss = y.square().sum() + sum(m.square().sum() for m in end) + 0 * x.sum()
            found.append((y, end, torch.autograd.grad(loss, [x, *weights], allow_unused=True, materialize_grads=True)))
        torch.testing.assert_close(found[1], found[0], atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_compiled_and_mapped(config: GRUConfig | LSTMConfig) -> None:
    mixer = build(config)
    x = torch.randn(3, 2, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(torch.func.vmap(lambda m: mixer(m)[0])(x), torch.stack([mixer(m)[0] for m in x]))
    compiled = torch.compile(mixer, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x[0])[0], mixer(x[0])[0])


def test_half_precision_keeps_its_state_wide() -> None:
    """In bfloat16 the recurrence runs in float32: a sum of a thousand steps is not rounded to two digits at each."""
    torch.manual_seed(0)
    mixer = LSTMConfig().build(8)
    x = torch.randn(1, 1000, 8).bfloat16()
    exact, _ = LSTMConfig().build(8).double(), None
    narrow = mixer.bfloat16()
    exact.load_state_dict(narrow.double().state_dict())
    y, state = LSTMConfig().build(8).bfloat16(), None
    y.load_state_dict(exact.state_dict())
    out, state = y(x, y.initial_state(1))
    assert out.dtype == torch.bfloat16
    assert isinstance(state, LSTMState)
    assert state.cell.dtype == torch.float32
    _, wide = exact(x.double(), exact.initial_state(1))
    torch.testing.assert_close(state.cell.double(), wide.cell, atol=1e-4, rtol=1e-4)


def test_the_forget_gate_begins_open() -> None:
    mixer = LSTMConfig(forget_bias=2.5).build(4)
    both = mixer.in_proj.bias + mixer.hidden_proj.bias
    assert torch.equal(both[4:8], torch.full((4,), 2.5))


def test_errors() -> None:
    mixer: Any = build(GRUConfig())
    x = torch.randn(2, 3, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="GRU needs state of type GRUState, got LSTMState"):
        mixer(x, build(LSTMConfig()).initial_state(2))
    with pytest.raises(InputError, match=r"GRU needs state.hidden of shape \(2, 4\), got \(3, 4\)"):
        mixer(x, GRUState(torch.zeros(3, 4)))


@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_cudnn_is_told_that_gradients_will_be_wanted(
    config: GRUConfig | LSTMConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its adjoint refuses what was computed "not in training"; PyTorch's own loops do not mind."""
    mixer, told = build(config), []
    library = type(mixer).library

    def noted(*given: Any) -> Any:
        found = [m for m in given if isinstance(m, bool)]
        told.append(found[1])  # the first is whether there are biases
        return library(*given)

    monkeypatch.setattr(type(mixer), "library", staticmethod(noted))
    x, starts = torch.randn(2, 5, 4, dtype=torch.float64), torch.tensor([[True, False, False, True, False]] * 2)
    for masks in ({}, {"starts": starts}):
        for learns in (True, False):
            told.clear()
            with torch.set_grad_enabled(learns):
                mixer(x, **masks)
            assert told
            assert set(told) == {learns}


def test_cudnn_may_not_round_to_tf32() -> None:
    """Which it does by itself; and where gradients follow it is left alone, since its adjoint would."""
    cudnn, cuda = torch.backends.cudnn, torch.device("cuda")
    before = (cudnn.enabled, cudnn.allow_tf32)
    assert before == (True, True)
    for has_gradient in (False, True):
        with unrounded(cuda, torch.float32, has_gradient):
            assert not cudnn.allow_tf32
            assert cudnn.enabled is not has_gradient
        assert (cudnn.enabled, cudnn.allow_tf32) == before
        for device, dtype in ((torch.device("cpu"), torch.float32), (cuda, torch.float64)):
            with unrounded(device, dtype, has_gradient):
                assert (cudnn.enabled, cudnn.allow_tf32) == before
    with products_at("high"), unrounded(cuda, torch.float32, True):
        assert (cudnn.enabled, cudnn.allow_tf32) == before


@pytest.mark.cuda
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("config", CONFIGS[:2], ids=str)
def test_float32_on_cuda_is_float32(config: GRUConfig | LSTMConfig, packed: bool) -> None:
    """Outputs with and without gradients, and the gradients, against float64 on the CPU: TF32 would miss by 1e-3."""
    torch.manual_seed(0)
    mixer = config.build(64)
    x, starts = torch.randn(3, 40, 64), torch.rand(3, 40) < 0.1
    found = []
    for device, dtype in (("cpu", torch.float64), ("cuda", torch.float32)):
        there, inputs = copy.deepcopy(mixer).to(device, dtype), x.to(device, dtype)
        masks = {"starts": starts.to(device)} if packed else {}
        with torch.no_grad():
            read = there(inputs, **masks)[0]
        y = there(inputs, **masks)[0]
        grads = torch.autograd.grad(y.square().sum(), [*there.parameters()])
        found.append([m.detach().double().cpu() for m in (read, y, *grads)])
    for got, want in zip(found[1], found[0]):
        assert (got - want).abs().max() < 2e-5 * want.abs().max()
