"""S4: the laws, the equations with dense matrices, every initialisation and option."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from law_signals import prepared
from laws import check_mixer_laws
from torch import Tensor

from statewise import hippo
from statewise.errors import ConfigError
from statewise.mixers.s4 import INITIALIZATIONS, S4, S4Config


def published(mixer: S4, x: Tensor) -> Tensor:
    """Each channel with its dense complex matrix over both halves of the pairs, one bilinear step after the other."""
    c, d, readout = mixer.config, mixer.dynamics, mixer.readout
    n_systems = d.log_decay.shape[0]
    y = torch.zeros(*x.shape, c.n_heads, dtype=torch.float64)
    for channel in range(mixer.d_model):
        system = channel % n_systems
        dt = d.log_dt[0 if c.tied_dt else channel].exp()

        def both(half: Tensor) -> Tensor:
            half = torch.view_as_complex(half.detach().clone())
            return torch.cat([half, half.conj()], -1)

        Lambda = both(torch.stack([-d.log_decay[system].exp(), d.frequency[system]], -1))
        P, B, C = both(d.P[system]), both(d.B[system]), both(readout.C[channel])
        A = torch.diag(Lambda) - P.T @ P.conj()
        eye = torch.eye(c.d_state, dtype=A.dtype)
        inverse = torch.linalg.inv(eye - dt / 2 * A)
        A_bar, B_bar = inverse @ (eye + dt / 2 * A), inverse @ (dt * B)
        h = torch.zeros(x.shape[0], c.d_state, dtype=A.dtype)
        for t in range(x.shape[1]):
            h = h @ A_bar.T + B_bar * x[:, t, channel, None]
            out = h @ C.T
            assert out.imag.abs().max() < 1e-10
            y[:, t, channel] = out.real + readout.D[channel] * x[:, t, channel, None]
    y = F.gelu(y.flatten(-2))
    return F.glu(F.linear(y, mixer.output.linear.weight, mixer.output.linear.bias))


OPTIONS = [
    {},
    {"initialization": "legt", "rank": 2, "n_systems": 2, "n_heads": 2},
    {"initialization": "random", "n_systems": None, "tied_dt": True},
    {"initialization": "fourier", "rank": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_equations(options: dict) -> None:
    torch.manual_seed(0)
    mixer = prepared(S4Config(d_state=6, **options).build(4))
    x = torch.randn(2, 25, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], published(mixer, x), atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize(("options", "length"), [(OPTIONS[0], 9), (OPTIONS[1], 9), (OPTIONS[2], 5)], ids=str)
def test_laws(options: dict, length: int) -> None:
    """Beyond 8 steps the system is convolved, up to there it runs step by step."""
    torch.manual_seed(0)
    check_mixer_laws(S4Config(d_state=4, **options).build(2), length=length)


@pytest.mark.parametrize("name", INITIALIZATIONS)
def test_initial_values(name: str) -> None:
    torch.manual_seed(0)
    rank = max(2, INITIALIZATIONS[name])
    mixer = S4Config(d_state=8, initialization=name, rank=rank, n_systems=2).build(6).double()
    mixer.reset_parameters()
    d = mixer.dynamics
    assert [tuple(p.shape) for p in (d.log_decay, d.frequency, d.P, d.B)] == [
        (2, 4),
        (2, 4),
        (2, rank, 4, 2),
        (2, 4, 2),
    ]
    assert mixer.readout.C.shape == (6, 1, 4, 2)
    if name == "random":
        assert not torch.equal(d.P[0], d.P[1])
        return
    Lambda, P, B = hippo.dplr(name, 8, rank)
    want = Lambda.real.clamp(max=-1e-4)  # a real part of zero has no logarithm
    for system in range(2):
        torch.testing.assert_close(-d.log_decay[system].exp(), want, atol=1e-12, rtol=0)
        torch.testing.assert_close(d.frequency[system], Lambda.imag)
        drawn = torch.view_as_complex(d.P[system].detach())
        zero = (P == 0).all(-1)
        torch.testing.assert_close(drawn[~zero], P[~zero])
        assert bool(((drawn[zero] != 0) & (drawn[zero].abs() < 0.15)).all())
        torch.testing.assert_close(torch.view_as_complex(d.B[system].detach()), B)


def test_gradients_reach_every_parameter() -> None:
    torch.manual_seed(0)
    mixer = S4Config(d_state=4, n_systems=2, bidirectional=True).build(4)
    mixer(torch.randn(2, 20, 4))[0].square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().min() > 0 or not name.startswith("dynamics"), name
        assert parameter.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    "options", [{"rank": 2}, {"initialization": "fourier_diag"}, {"initialization": "lagt", "rank": 2}], ids=str
)
def test_rows_of_P_beyond_the_initialisation_begin_small_and_learn(options: dict) -> None:
    torch.manual_seed(0)
    mixer = S4Config(d_state=64, **options).build(4)
    P = mixer.dynamics.P
    with torch.no_grad():
        begun = mixer.operators[0].impulse_response(200)
        row = P[:, -1].clone()
        P[:, -1] = 0
        without = mixer.operators[0].impulse_response(200)
        P[:, -1] = row
    change = (begun - without).norm() / without.norm()
    assert 0 < change < 0.05
    mixer(torch.randn(2, 40, 4))[0].square().sum().backward()
    assert P.grad is not None
    assert P.grad[:, -1].abs().amax() > 0
    torch.optim.Adam([P], lr=1e-2).step()
    assert (P[:, -1] - row).abs().max() > 5e-3


def test_it_stays_stable_whatever_is_learned() -> None:
    torch.manual_seed(0)
    mixer = S4Config(d_state=8, rank=2, n_systems=None).build(4).double()
    with torch.no_grad():
        for parameter in mixer.dynamics.parameters():
            parameter.add_(2 * torch.randn_like(parameter))
        response = mixer.operators[0].impulse_response(3000)
    assert response.isfinite().all()
    assert (response[..., -500:].abs().amax(-1) < response.abs().amax(-1)).all()


def test_a_length_leaves_no_trace() -> None:
    """The same parameters after calls of other lengths, and the same output."""
    torch.manual_seed(0)
    mixer = S4Config(d_state=4).build(4)
    before = {name: tensor.clone() for name, tensor in mixer.state_dict().items()}
    x = torch.randn(1, 40, 4)
    with torch.no_grad():
        short = mixer(x[:, :17])[0]
        torch.testing.assert_close(mixer(x)[0][:, :17], short)
        assert torch.equal(mixer(x[:, :17])[0], short)
    assert all(torch.equal(tensor, before[name]) for name, tensor in mixer.state_dict().items())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_state": 7}, ["d_state=7", "even"]),
        ({"initialization": "legt"}, ["rank=1", "legt", "2"]),
        ({"initialization": "lin"}, ["'lin'", "lagt"]),
        ({"rank": 0}, ["rank=0"]),
        ({"n_systems": 0}, ["n_systems=0"]),
        ({"n_systems": 3}, ["n_systems=3", "d_model=4"]),
        ({"dt_range": (-1.0, 0.1)}, ["dt_range"]),
        ({"dt_range": (0.1,)}, ["dt_range=(0.1,)", "two numbers"]),
        ({"dt_range": "ab"}, ["dt_range='ab'", "two numbers"]),
        ({"dropout": "x"}, ["dropout='x'", "number"]),
        ({"initialization": ["legs"]}, ["initialization=['legs']"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        S4Config(**options).build(4)
    assert all(word in str(error.value) for word in words), str(error.value)
