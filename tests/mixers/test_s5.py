"""S5: the laws, the paper's equations by loops, what its initialisation is equal to, and its options."""

from __future__ import annotations

import math

import pytest
import torch
from law_signals import prepared
from laws import check_mixer_laws
from torch import Tensor

from statewise import hippo
from statewise.errors import ConfigError, InputError
from statewise.mixers.rate import set_rate
from statewise.mixers.s4d import S4DConfig
from statewise.mixers.s5 import S5, S5Config
from statewise.operators import DiagonalLTI, DiagonalMIMO
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

OPTIONS = [
    {},
    {"n_blocks": 2, "gate": "half_glu2"},
    {"method": "bilinear", "n_blocks": 3},
]


def build(d_model: int = 4, **options: object) -> S5:
    torch.manual_seed(0)
    return prepared(S5Config(**{"d_state": 12, **options}).build(d_model))


def published(mixer: S5, x: Tensor, C: Tensor, D: Tensor) -> Tensor:
    """The system number by number: every state and its conjugate, every output, from the stored numbers alone."""
    dynamics, (batch, length, width), C, D = mixer.dynamics, x.shape, C[:, 0], D[:, 0]
    y = torch.zeros(batch, length, width, dtype=torch.complex128)
    for k in range(len(dynamics.log_dt)):
        dt = dynamics.log_dt[k].exp()
        for sign in (1, -1):  # the conjugate has coefficients of its own here, and no outputs are doubled
            Lambda = torch.complex(-dynamics.log_decay[k].exp(), sign * dynamics.frequency[k])
            B = torch.complex(dynamics.B[k, :, 0], sign * dynamics.B[k, :, 1])
            out = torch.complex(C[:, k, 0], sign * C[:, k, 1])
            if mixer.config.method == "zoh":
                A_bar, B_bar = torch.exp(Lambda * dt), (torch.exp(Lambda * dt) - 1) / Lambda * B
            else:
                A_bar, B_bar = (1 + dt / 2 * Lambda) / (1 - dt / 2 * Lambda), dt / (1 - dt / 2 * Lambda) * B
            for row in range(batch):
                h = torch.zeros((), dtype=torch.complex128)
                for t in range(length):
                    h = A_bar * h + sum(B_bar[j] * x[row, t, j] for j in range(width))
                    y[row, t] = y[row, t] + out * h
    assert y.imag.abs().max() < 1e-12
    return y.real + D * x


def gated(mixer: S5, y: Tensor) -> Tensor:
    activated = y * (1 + torch.erf(y / math.sqrt(2))) / 2
    gate = 1 / (1 + torch.exp(-(activated @ mixer.gate.weight.T + mixer.gate.bias)))
    return (activated if mixer.config.gate == "half_glu1" else y) * gate


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_equations(options: dict) -> None:
    mixer = build(**options)
    x = torch.randn(2, 11, 4, dtype=torch.float64)
    with torch.no_grad():
        want = gated(mixer, published(mixer, x, mixer.readout.C, mixer.readout.D))
        torch.testing.assert_close(mixer(x)[0], want, atol=1e-11, rtol=1e-10)


def test_both_directions() -> None:
    """The second C reads the states of the reversed sequence; the skip counts once; there is no state."""
    mixer = build(bidirectional=True)
    x = torch.randn(2, 9, 4, dtype=torch.float64)
    with torch.no_grad():
        ahead = published(mixer, x, mixer.readout.C, mixer.readout.D)
        behind = published(mixer, x.flip(1), mixer.readout.C_backward, 0 * mixer.readout.D).flip(1)
        torch.testing.assert_close(mixer(x)[0], gated(mixer, ahead + behind), atol=1e-11, rtol=1e-10)
    with pytest.raises(InputError, match="still to come"):
        mixer.initial_state(1)


@pytest.mark.parametrize("options", OPTIONS[:2], ids=str)
def test_laws(options: dict) -> None:
    check_mixer_laws(build(3, **options), length=9)


def test_laws_frozen() -> None:
    check_mixer_laws(build(3).freeze(), length=9)


def test_a_nan_stays_in_its_document() -> None:
    mixer = build()
    x, starts = torch.randn(1, 9, 4, dtype=torch.float64), torch.zeros(1, 9, dtype=torch.bool)
    x[0, 2], starts[0, 5] = torch.nan, True
    y, _ = mixer(x, starts=starts)
    assert y[0, 2:5].isnan().all()
    torch.testing.assert_close(y[0, 5:], mixer(x[:, 5:])[0][0])


def test_one_input_and_one_output_is_a_channel_of_the_diagonal_system() -> None:
    A, B, C = (torch.randn(1, 5, dtype=torch.complex128) for _ in range(3))
    A, u = A / A.abs() * 0.9, torch.randn(2, 30, 1, dtype=torch.float64)
    torch.testing.assert_close(DiagonalMIMO(A[0], B.mT, C)(u), DiagonalLTI(A, B, C)(u))


@pytest.mark.parametrize("n_blocks", [1, 2])
def test_initial_values(n_blocks: int) -> None:
    """HiPPO-N in each block; a dt for each pair; B, C and D of the published variances."""
    torch.manual_seed(0)
    mixer = S5Config(d_state=64, n_blocks=n_blocks, dt_range=(0.01, 0.1)).build(400).double()
    mixer.reset_parameters()
    dynamics = mixer.dynamics
    want = hippo.nplr("legs", 64 // n_blocks).Lambda.repeat(n_blocks)
    torch.testing.assert_close(torch.complex(-dynamics.log_decay.exp(), dynamics.frequency).detach(), want)
    assert dynamics.log_dt.shape == (32,)
    assert math.log(0.01) <= dynamics.log_dt.min() < math.log(0.02) < math.log(0.05) < dynamics.log_dt.max()
    assert dynamics.log_dt.max() <= math.log(0.1)
    for parameter, variance in ((dynamics.B, 0.5 / 64), (mixer.readout.C, 1 / 64), (mixer.readout.D, 1.0)):
        assert 0.8 < parameter.var() / variance < 1.25
    mixer.reset_parameters(residual_scale=0.1)
    assert 0.8 < mixer.readout.C.var() * 64 * 100 < 1.25
    assert 0.8 < mixer.readout.D.var() * 100 < 1.25


def test_a_normal_B_in_the_basis_of_hippo_is_normal_in_that_of_its_eigenvectors() -> None:
    """Both parts of sqrt(2) V are one orthonormal basis, so that no V is needed to draw B or C."""
    V = hippo.nplr("legs", 16).V
    basis = math.sqrt(2) * torch.cat([V.real, V.imag], 1)
    torch.testing.assert_close(basis.T @ basis, torch.eye(16, dtype=torch.float64), atol=1e-12, rtol=0)


def test_every_parameter_learns_and_those_of_the_system_are_dynamics() -> None:
    torch.manual_seed(0)
    for options in ({}, {"bidirectional": True, "gate": "half_glu2"}):
        mixer = S5Config(d_state=8, **options).build(3)
        mixer(torch.randn(2, 20, 3))[0].square().sum().backward()
        for name, parameter in mixer.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.abs().max() > 0, name
    groups = parameter_groups(mixer, OptimizerConfig())
    found = {group.name: {name for name, _ in group.parameters} for group in groups}
    assert found["dynamics"] == {f"dynamics.{name}" for name, _ in mixer.dynamics.named_parameters()}


def test_rate_two_is_twice_the_step() -> None:
    mixer, x = build(), torch.randn(1, 9, 4, dtype=torch.float64)
    twice = build()
    with torch.no_grad():
        twice.dynamics.log_dt += math.log(2)
    set_rate(mixer, 2)
    torch.testing.assert_close(mixer(x)[0], twice(x)[0])


def test_autocast_and_bfloat16_keep_the_system_wide() -> None:
    torch.manual_seed(0)
    mixer, x = S5Config(d_state=8).build(16), torch.randn(2, 30, 16)
    want, _ = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(2))
    assert state.h.dtype == torch.float32
    assert (y - want).abs().max() < 0.02 * want.abs().max()
    low = mixer.to(torch.bfloat16)
    assert {p.dtype for p in low.dynamics.parameters()} == {torch.float32}
    assert low(x.bfloat16())[0].dtype == torch.bfloat16


def test_dropout_acts_in_training_alone() -> None:
    x = torch.randn(1, 10, 8)
    for tied in (False, True):
        mixer = S5Config(d_state=4, dropout=0.5, tied_dropout=tied).build(8)
        dropped = mixer(x)[0] == 0
        assert dropped.any()
        assert bool((dropped.all(1) | ~dropped.any(1)).all()) is tied
        mixer.eval()
        assert torch.equal(mixer(x)[0], mixer(x)[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_state": 7}, ["d_state=7", "even"]),
        ({"d_state": 12, "n_blocks": 4}, ["n_blocks=4", "d_state=12"]),
        ({"gate": "glu"}, ["gate='glu'", "half_glu1"]),
        ({"method": "euler"}, ["method='euler'", "zoh"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        S5Config(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


COLUMN, ROW = torch.ones(2, 1), torch.ones(1, 2)


@pytest.mark.parametrize(
    ("op", "match"),
    [
        (DiagonalMIMO(torch.ones(3), COLUMN, ROW), r"A \(n,\), B \(n, w\), C \(p, n\); got \(3,\)"),
        (DiagonalMIMO(torch.ones(2), COLUMN, ROW, torch.ones(2)), r"D as a tensor \(1,\) or \(1, 1\)"),
        (DiagonalMIMO(torch.ones(2), COLUMN, torch.ones(3, 2), torch.ones(1)), r"D as a tensor \(3, 1\)"),
        (DiagonalMIMO(torch.ones(2), COLUMN, ROW, 1.0), "got float"),
        (DiagonalMIMO(torch.ones(2), torch.ones(2, 4), ROW), r"of 4 inputs needs u \(batch, length, 4"),
    ],
)
def test_an_operator_that_does_not_fit_is_refused(op: DiagonalMIMO, match: str) -> None:
    with pytest.raises(InputError, match=match):
        op(torch.ones(1, 5, 1))


def test_one_state_for_all_channels_is_smaller_than_one_for_each() -> None:
    own = S4DConfig(d_state=64).build(32).initial_state(1).h
    assert S5Config(d_state=64).build(32).initial_state(1).h.numel() * 32 == own.numel()
