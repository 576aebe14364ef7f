"""Theorem 1 of the Mamba paper: a selective system of one state, held exactly, is the gate of a recurrent network.

N = 1, A = -1, B = 1, Delta = softplus(Linear(x)) give h_t = (1 - g_t) h_{t-1} + g_t x_t, g_t = sigmoid(Linear(x_t)).
Gu & Dao 2023, arXiv:2312.00752, theorem 1 and appendix C. With Delta B for B, as in the published code, it does not.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.operators import SelectiveDiagonal

D = torch.float64
FORMS = SelectiveDiagonal.forms


def layer(linear: Tensor, method: str = "zoh", a: float = 1.0) -> SelectiveDiagonal:
    """The theorem's layer; linear: (batch, length, d), what Linear(x) gave. C = 1, so that the output is the state."""
    ones = torch.ones(*linear.shape[:2], 1, 1, dtype=linear.dtype)
    A = -a * torch.ones(linear.shape[2], 1, dtype=linear.dtype)
    return SelectiveDiagonal(linear, A, ones, ones, softplus=True, method=method)


def gated(linear: Tensor, x: Tensor) -> Tensor:
    """h_t = (1 - g_t) h_{t-1} + g_t x_t, as one would write it."""
    h, outputs = torch.zeros_like(x[:, 0]), []
    for linear_t, x_t in zip(linear.unbind(1), x.unbind(1)):
        g = torch.sigmoid(linear_t)
        h = (1 - g) * h + g * x_t
        outputs.append(h)
    return torch.stack(outputs, 1)


@pytest.mark.parametrize("form", FORMS)
def test_the_theorem(form: str) -> None:
    """To the rounding of float64, in outputs and gradients, for gates from shut to open."""
    torch.manual_seed(0)
    linear, x = 4 * torch.randn(3, 200, 5, dtype=D), torch.randn(3, 200, 5, dtype=D)
    linear.requires_grad_(), x.requires_grad_()
    y, want = layer(linear)(x, form=form)[0], gated(linear, x)
    torch.testing.assert_close(y, want, rtol=0, atol=2e-15)
    weights = torch.randn_like(x)
    got = torch.autograd.grad((y * weights).sum(), (linear, x))
    expected = torch.autograd.grad((want * weights).sum(), (linear, x))
    torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("form", FORMS)
def test_the_theorem_in_float32(form: str) -> None:
    torch.manual_seed(0)
    linear, x = 4 * torch.randn(2, 100, 5), torch.randn(2, 100, 5)
    torch.testing.assert_close(layer(linear)(x, form=form)[0], gated(linear, x), rtol=0, atol=2e-6)


def test_the_bias_is_inside_the_gate() -> None:
    """The learned bias of Delta is the bias of Linear."""
    linear, x, bias = torch.randn(1, 9, 2, dtype=D), torch.randn(1, 9, 2, dtype=D), torch.randn(2, dtype=D)
    one = layer(linear)
    with_bias = SelectiveDiagonal(one.dt, one.A, one.B, one.C, dt_bias=bias, softplus=True, method="zoh")
    torch.testing.assert_close(with_bias(x)[0], gated(linear + bias, x), rtol=0, atol=1e-15)


@pytest.mark.parametrize("form", FORMS)
def test_it_is_a_gru_without_recurrent_weights(form: str) -> None:
    """torch.nn.GRU itself: its update gate is 1 - g, its candidate tanh of a linear map takes the place of x."""
    torch.manual_seed(0)
    gru = nn.GRU(3, 4, batch_first=True).double()
    with torch.no_grad():
        gru.weight_hh_l0.zero_()
        gru.bias_hh_l0.zero_()
    x = torch.randn(2, 50, 3, dtype=D)
    _, update, candidate = F.linear(x, gru.weight_ih_l0, gru.bias_ih_l0).chunk(3, -1)
    y, _ = layer(-update)(candidate.tanh(), form=form)
    torch.testing.assert_close(y, gru(x)[0], rtol=0, atol=2e-15)


@pytest.mark.parametrize("form", FORMS)
def test_gates_at_their_ends(form: str) -> None:
    """Shut, a step is passed over to the bit; open, all that was before is gone; nothing overflows on the way."""
    x = torch.tensor([3.0, 1.0, 7.0, 2.0], dtype=D).reshape(1, 4, 1)
    linear = torch.tensor([900.0, -900.0, 0.0, 900.0], dtype=D).reshape(1, 4, 1)
    y, _ = layer(linear)(x, form=form)
    assert y.flatten().tolist() == [3.0, 3.0, 5.0, 2.0]


@pytest.mark.parametrize("form", FORMS)
def test_another_rate_bends_the_gate(form: str) -> None:
    """A = -a: (1 - g) is raised to the power a, and the input divided by a, the gain of h' = -a h + x."""
    torch.manual_seed(0)
    linear, x, a = torch.randn(1, 30, 2, dtype=D), torch.randn(1, 30, 2, dtype=D), 2.5
    g = 1 - (1 - torch.sigmoid(linear)) ** a
    want = gated(torch.logit(g), x) / a
    torch.testing.assert_close(layer(linear, a=a)(x, form=form)[0], want, rtol=0, atol=1e-14)


# ---- and with Delta B, as published, it is none


@pytest.mark.parametrize("form", FORMS)
def test_the_published_step_is_no_gate(form: str) -> None:
    """Its input counts Delta instead of 1 - exp(-Delta): h = (1 - g) h + g (Delta / g) x, too much at every step."""
    torch.manual_seed(0)
    linear, x = torch.randn(1, 100, 3, dtype=D), torch.randn(1, 100, 3, dtype=D)
    y, _ = layer(linear, "mamba")(x, form=form)
    assert (y - gated(linear, x)).abs().max() > 0.5
    excess = F.softplus(linear) / torch.sigmoid(linear)
    assert excess.min() > 1
    torch.testing.assert_close(y, gated(linear, excess * x), rtol=0, atol=1e-13)


def test_by_how_much_it_is_none() -> None:
    """Delta / (1 - exp(-Delta)) is 1 + Delta / 2 + Delta^2 / 12 ...: a mean of inputs in a gate, not so here."""
    ones = torch.ones(1, 20_000, 1, dtype=D)
    figures = ((1e-3, 1.00050008), (1e-1, 1.05083319), (0.6931471805599453, 1.38629436), (5.0, 5.03391827))
    for delta, gain in figures:
        linear = torch.log(torch.expm1(torch.tensor(delta, dtype=D))) * ones
        settled = layer(linear, "mamba")(ones)[0][0, -1, 0].item()
        assert settled == pytest.approx(gain, abs=1e-8)
        assert layer(linear)(ones)[0][0, -1, 0].item() == pytest.approx(1, abs=1e-8)
