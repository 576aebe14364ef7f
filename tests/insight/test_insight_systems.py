"""Poles and responses of operators and mixers, held against their own steps in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import statewise as sw
from statewise.errors import InputError
from statewise.insight import discrete_system, frequency_response, impulse_response, poles, systems_of
from statewise.operators.base import Operator

WIDTH, LENGTH = 4, 24
SLOW = (0.02, 0.2)  # fast enough that nothing is left after some thousand steps
MIXERS: dict[str, sw.MixerConfig] = {
    "s4": sw.S4Config(d_state=6, dt_range=SLOW),
    "s4d": sw.S4DConfig(d_state=6, dt_range=SLOW),
    "s4d real, bilinear, two outputs": sw.S4DConfig(
        d_state=5, initialization="real", method="bilinear", n_heads=2, dt_range=SLOW
    ),
    "s4d shared systems": sw.S4DConfig(d_state=6, dt_range=SLOW, n_systems=2, B="normal", tied_dt=True),
    "s4d both ways": sw.S4DConfig(d_state=6, dt_range=SLOW, bidirectional=True),
    "s5": sw.S5Config(d_state=6, dt_range=SLOW),
    "lssl": sw.LSSLConfig(d_state=5, dt_range=SLOW),
    "gss": sw.GSSConfig(d_state=6, bottleneck=1),
    "h3": sw.H3Config(d_state=6, dt_range=SLOW, d_shift=4),
}
RULE: dict[str, Any] = {
    "s4": "bilinear",
    "lssl": "bilinear",
    "h3": "bilinear",
    "s4d real, bilinear, two outputs": "bilinear",
}


def built(name: str) -> Any:
    torch.manual_seed(2)
    mixer = MIXERS[name].build(WIDTH).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return mixer


def by_steps(operator: Operator, length: int) -> Tensor:
    """Outputs after an impulse in each channel: (channels, [outputs,] length), or (outputs, inputs, length)."""
    mixes = operator.mixes_channels
    copies = WIDTH if mixes else 1
    u = torch.zeros(1, length, WIDTH, copies, dtype=torch.float64)
    u[0, 0] = torch.eye(WIDTH) if mixes else 1
    y, _ = operator(u, form="recurrent")
    y = y[0].movedim(0, -1)
    return y if mixes else y.squeeze(-2)


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_responses_are_those_of_the_steps(name: str) -> None:
    for system in systems_of(built(name)).values():
        assert isinstance(system, Operator)
        expected = by_steps(system, LENGTH)
        torch.testing.assert_close(impulse_response(system, LENGTH), expected)
        if not system.mixes_channels:
            torch.testing.assert_close(impulse_response(system, LENGTH, [2]), expected[2:3])
        if not isinstance(system, sw.CausalConvolution):
            torch.testing.assert_close(discrete_system(system).impulse_response(LENGTH).real, expected)
        # the transform of so many steps that nothing is left
        length, omega = 4096, torch.tensor([0.0, 0.3, 1.0, math.pi], dtype=torch.float64)
        waves = torch.polar(torch.ones(()).double(), -omega[:, None] * torch.arange(length))
        response = impulse_response(system, length)
        H = (response.to(waves.dtype) @ waves.mT).to(torch.complex128)
        found = frequency_response(system, omega)
        assert float((found - H).abs().max()) < 1e-8


@pytest.mark.parametrize("name", MIXERS)
@torch.no_grad()
def test_poles_in_both_times_are_one_by_the_rule_of_the_mixer(name: str) -> None:
    for found in poles(built(name)):
        assert found.discrete is not None
        assert found.continuous is not None
        assert found.dt is not None
        dt = found.dt if found.dt.ndim == 2 else found.dt[:, None]
        z = found.continuous * dt
        expected = (1 + z / 2) / (1 - z / 2) if name in RULE else z.exp()
        for mine, other in zip(found.discrete, expected, strict=True):
            away = (mine[:, None] - other[None]).abs()
            assert float(away.amin(0).max()) < 1e-8
            assert float(away.amin(1).max()) < 1e-8


@torch.no_grad()
def test_mambas_poles_are_its_states_decay_at_an_input_of_zero() -> None:
    torch.manual_seed(0)
    for config in (sw.MambaConfig(d_state=4), sw.Mamba2Config(d_state=4, d_head=2, dt_limit=(0.001, 0.05))):
        mixer = config.build(WIDTH).double()
        for module in (mixer.convolution, mixer.in_proj):
            if module.bias is not None:
                module.bias.zero_()
        state = mixer.initial_state(1)
        ones = state._replace(ssm=type(state.ssm)(torch.ones_like(state.ssm.h)))
        _, after = mixer(torch.zeros(1, 1, WIDTH, dtype=torch.float64), ones)
        (found,) = poles(mixer)
        expected = found.discrete.real
        if isinstance(config, sw.Mamba2Config):
            expected = expected.reshape(-1, 1, 1).expand_as(after.ssm.h[0])
        torch.testing.assert_close(after.ssm.h[0], expected)


def test_a_system_of_ones_own() -> None:
    spring = sw.mass_spring_damper(1.0, 4.0, 0.5)
    (continuous,) = poles(spring)
    assert continuous.discrete is None
    torch.testing.assert_close(continuous.continuous[0].real, torch.full((2,), -0.25, dtype=torch.float64))
    (discrete,) = poles(sw.discretize(spring, 0.1))
    torch.testing.assert_close(discrete.discrete[0].abs(), torch.full((2,), math.exp(-0.025), dtype=torch.float64))
    omega = torch.tensor([0.5, 2.0], dtype=torch.float64)
    torch.testing.assert_close(frequency_response(spring, omega), spring.frequency_response(omega))


def test_what_has_none() -> None:
    attention = sw.AttentionConfig(n_heads=2).build(WIDTH)
    for function in (poles, systems_of):
        with pytest.raises(InputError, match=r"Attention has no poles and no impulse response"):
            function(attention)
    with pytest.raises(InputError, match=r"coefficients of Mamba2 change with every step"):
        systems_of(sw.Mamba2Config(d_head=4).build(WIDTH))
    with pytest.raises(InputError, match=r"a filter of finite length has no poles but 0"):
        poles(sw.CausalConvolution(torch.ones(1, 3)))
    with pytest.raises(InputError, match=r"channels has 9; this system has channels 0 to 3"):
        impulse_response(next(iter(systems_of(built("s4")).values())), 4, [9])
    with pytest.raises(InputError, match=r"ContinuousSystem is not a discrete system"):
        impulse_response(sw.mass_spring_damper(1.0, 1.0, 1.0), 4)
