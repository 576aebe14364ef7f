"""S4D: the laws, the equations written out once more, every initialisation and option."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from laws import check_mixer_laws, prepared
from torch import Tensor

from statewise import hippo
from statewise.errors import ConfigError, InputError
from statewise.mixers.base import set_rate
from statewise.mixers.s4d import INITIALIZATIONS, S4D, S4DConfig

SMALL = {"d_state": 4}


def published(mixer: S4D, x: Tensor) -> Tensor:
    """The recurrence of each channel by a loop, from the stored numbers alone; then skip, GELU and GLU."""
    c, dynamics, readout = mixer.config, mixer.dynamics, mixer.readout
    y = torch.zeros(*x.shape, c.n_heads, dtype=torch.float64)
    for channel in range(mixer.d_model):
        dt = dynamics.log_dt[0 if c.tied_dt else channel].exp()
        A = -dynamics.log_decay[channel].exp() + (0 if dynamics.frequency is None else 1j * dynamics.frequency[channel])
        B, C = (None if m is None else m[channel] for m in (dynamics.B, readout.C))
        if c.is_complex:
            B = None if B is None else B[..., 0] + 1j * B[..., 1]
            C = C[..., 0] + 1j * C[..., 1]
        B = torch.ones_like(A) if B is None else B
        if c.method == "zoh":
            A_bar, B_bar = torch.exp(dt * A), (torch.exp(dt * A) - 1) / A * B
        else:
            A_bar, B_bar = (1 + dt * A / 2) / (1 - dt * A / 2), dt * B / (1 - dt * A / 2)
        h = torch.zeros(x.shape[0], len(A), dtype=A.dtype)
        for t in range(x.shape[1]):
            h = A_bar * h + B_bar * x[:, t, channel, None]
            for head in range(c.n_heads):
                out = (h * C[head]).sum(-1)
                out = 2 * out.real if c.is_complex else out
                y[:, t, channel, head] = out + readout.D[channel, head] * x[:, t, channel]
    y = y.flatten(-2)
    y = {"gelu": y * (1 + torch.erf(y / math.sqrt(2))) / 2, "relu": y.clamp(min=0)}[c.activation]
    y = y @ mixer.output.linear.weight.T + mixer.output.linear.bias
    return y[..., : mixer.d_model] * torch.sigmoid(y[..., mixer.d_model :]) if c.gated_output else y


OPTIONS = [
    {},
    {"initialization": "real", "n_heads": 2},
    {"method": "bilinear", "tied_dt": True, "n_heads": 3},
    {"initialization": "real", "method": "bilinear", "learn_B": False, "tied_dt": True},
    {"learn_B": False, "gated_output": False, "activation": "relu"},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_equations(options: dict) -> None:
    torch.manual_seed(0)
    mixer = prepared(S4DConfig(**{**SMALL, **options}).build(3))
    x = torch.randn(2, 25, 3, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], published(mixer, x), atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize(("options", "length"), [(OPTIONS[0], 17), (OPTIONS[1], 5), (OPTIONS[2], 5)], ids=str)
def test_laws(options: dict, length: int) -> None:
    """Beyond 16 steps the system is convolved, up to there it is scanned."""
    torch.manual_seed(0)
    check_mixer_laws(S4DConfig(**{**SMALL, **options}).build(3), length=length)


@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_initial_values(name: str) -> None:
    torch.manual_seed(0)
    mixer = S4DConfig(d_state=8, initialization=name).build(6).double()
    mixer.reset_parameters()
    dynamics = mixer.dynamics
    n = 8 if name == "real" else 4
    assert dynamics.log_decay.shape == (6, n)
    assert mixer.readout.C.shape == ((6, 1, 8) if name == "real" else (6, 1, 4, 2))
    assert mixer.readout.D.shape == (6, 1)
    want, _ = hippo.diagonal(name, 8)
    torch.testing.assert_close(-dynamics.log_decay.exp(), want.real.expand(6, n), atol=1e-12, rtol=0)
    if name == "random":
        assert not torch.equal(dynamics.frequency[0], dynamics.frequency[1])
    elif name != "real":
        torch.testing.assert_close(dynamics.frequency, want.imag.expand(6, n), atol=1e-12, rtol=1e-15)
    assert dynamics.B is not None
    B = dynamics.B if name == "real" else torch.view_as_complex(dynamics.B)
    assert (B == 1).all()


def test_dt_is_log_uniform_in_its_range() -> None:
    torch.manual_seed(0)
    log_dt = S4DConfig(d_state=2).build(4000).dynamics.log_dt
    assert math.log(1e-3) <= log_dt.min() < math.log(1.1e-3) < math.log(9e-2) < log_dt.max() <= math.log(1e-1)
    assert abs(log_dt.mean() - math.log(1e-2)) < 0.1
    tied = S4DConfig(d_state=2, tied_dt=True, dt_range=(0.5, 0.5)).build(3)
    assert tied.dynamics.log_dt.shape == (1,)
    torch.testing.assert_close(tied.dynamics.dt(1.0), torch.full((3,), 0.5))


def test_C_and_D_are_normal() -> None:
    torch.manual_seed(0)
    complex_C = S4DConfig(d_state=64).build(64).readout
    real_C = S4DConfig(d_state=64, initialization="real").build(64).readout
    for C, variance in ((complex_C.C, 0.5), (real_C.C, 1.0)):
        assert abs(C.mean()) < 0.05
        assert abs(C.var() / variance - 1) < 0.1
    assert 0.5 < complex_C.D.var() < 2


def test_gradients_reach_every_parameter() -> None:
    torch.manual_seed(0)
    for options in ({"bidirectional": True}, {"initialization": "real", "bidirectional": True}):
        mixer = S4DConfig(d_state=4, **options).build(3)
        mixer(torch.randn(2, 20, 3))[0].square().sum().backward()
        for name, parameter in mixer.named_parameters():
            assert parameter.grad is not None, name
            assert (parameter.grad.abs().flatten(1).amax(1) > 0).all() if parameter.ndim > 1 else True, name
            assert parameter.grad.abs().max() > 0, name


def test_rate_two_on_every_second_sample() -> None:
    """A smooth signal at half the sampling rate gives every second output, to the error of holding it: 1 %."""
    torch.manual_seed(0)
    mixer = S4DConfig(d_state=8, initialization="lin", dt_range=(2e-3, 2e-2), tied_dt=True).build(4).double()
    t = torch.arange(400, dtype=torch.float64)[:, None] / 400
    x = torch.sin(2 * math.pi * t * torch.arange(1, 5)) + 0.3 * t
    with torch.no_grad():
        expected = mixer(x[None])[0][:, 1::2]
        set_rate(mixer, 2)
        actual = mixer(x[None, 1::2])[0]
        unchanged = S4D.forward(mixer, x[None, 1::2])[0]
        set_rate(mixer, 1)
        wrong = mixer(x[None, 1::2])[0]
    scale = expected.abs().max()
    torch.testing.assert_close(actual, unchanged, atol=0, rtol=0)
    assert (actual - expected).abs().max() < 0.01 * scale
    assert (wrong - expected).abs().max() > 0.05 * scale


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_state": 7}, ["d_state=7", "even"]),
        ({"d_state": 0}, ["d_state=0"]),
        ({"n_heads": 0}, ["n_heads=0"]),
        ({"method": "foh"}, ["method='foh'", "bilinear"]),
        ({"initialization": "lagt"}, ["lagt", "inv2"]),
        ({"dt_range": (0.1, 0.01)}, ["dt_range"]),
        ({"dt_range": (0.0, 0.01)}, ["dt_range"]),
        ({"activation": "swish"}, ["swish", "gelu"]),
        ({"dropout": 1.0}, ["dropout=1.0"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        S4DConfig(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_odd_d_state_is_fine_for_a_real_A() -> None:
    assert S4DConfig(d_state=5, initialization="real").build(2)(torch.randn(1, 4, 2))[0].shape == (1, 4, 2)


def test_wrong_inputs_and_states_are_refused() -> None:
    mixer = S4DConfig(d_state=4).build(3)
    with pytest.raises(InputError, match=r"\(batch, length, 3\)"):
        mixer(torch.randn(2, 5, 4))
    with pytest.raises(InputError, match="DiagonalState"):
        mixer(torch.randn(2, 5, 3), (torch.zeros(2, 3, 2, 2),))
    with pytest.raises(InputError, match=r"\(2, 3, 2, 2\)"):
        mixer(torch.randn(2, 5, 3), mixer.initial_state(3))


def test_the_output_half_scales_what_it_writes_and_not_its_gate() -> None:
    torch.manual_seed(0)
    mixer = S4DConfig(d_state=4, n_heads=2).build(64)
    mixer.reset_parameters(residual_scale=0.1)
    values, gate = mixer.output.linear.weight.chunk(2)
    assert mixer.output.linear.weight.shape == (128, 128)
    assert 0.09 < values.std() / gate.std() < 0.11
    x = torch.randn(5, 128)
    by_hand = F.glu(F.linear(F.gelu(x), mixer.output.linear.weight, mixer.output.linear.bias))
    torch.testing.assert_close(mixer.output(x), by_hand)


def test_dropout_acts_in_training_alone() -> None:
    mixer = S4DConfig(d_state=4, dropout=0.5).build(8)
    x = torch.randn(1, 10, 8)
    assert not torch.equal(mixer(x)[0], mixer(x)[0])
    mixer.eval()
    assert torch.equal(mixer(x)[0], mixer(x)[0])
