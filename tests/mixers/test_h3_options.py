"""H3: its initialisation, options, parameter groups, dtypes and errors."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch.utils import _pytree as pytree

from statewise.errors import ConfigError, InputError
from statewise.mixers.h3 import H3Config, H3State
from statewise.mixers.rate import set_rate
from statewise.training import OptimizerConfig
from statewise.training.optimizer import parameter_groups


def test_published_initialisation() -> None:
    torch.manual_seed(0)
    mixer = H3Config().build(512)
    dynamics, readout = mixer.dynamics, mixer.readout
    first = torch.zeros(512, 64)
    first[:, 0] = 1
    assert torch.equal(dynamics.shift_B, first)
    torch.nn.init.kaiming_uniform_(like := torch.empty(512, 1, 64), a=math.sqrt(5))
    assert abs(readout.shift_C.std() / like.std() - 1) < 0.02
    assert 0.99 / 8 < readout.shift_C.abs().max() <= 1 / 8
    torch.testing.assert_close(dynamics.diagonal.log_decay, torch.full((512, 32), math.log(0.5)))
    torch.testing.assert_close(dynamics.diagonal.frequency, math.pi * torch.arange(32.0).expand(512, 32))
    assert torch.equal(torch.view_as_complex(dynamics.diagonal.B), torch.ones(512, 32, dtype=torch.complex64))
    log_dt = dynamics.diagonal.log_dt
    assert math.log(1e-3) <= log_dt.min() < math.log(1.2e-3) < math.log(8e-2) < log_dt.max() <= math.log(1e-1)
    assert abs(readout.C.var() * 2 - 1) < 0.05
    for skip in (readout.shift_D, readout.D):
        assert 0.8 < skip.std() < 1.2
    for projection in (mixer.in_proj, mixer.out_proj):
        assert abs(projection.weight.std() / 0.02 - 1) < 0.02
        assert (projection.bias == 0).all()
    mixer.reset_parameters(residual_scale=0.1)
    assert abs(mixer.out_proj.weight.std() / 0.02 - 1) < 0.02  # as published: its own projection is not scaled


def test_parameter_groups() -> None:
    """A, B and dt are dynamics; both C decay with the maps; skips and biases are vectors."""
    groups = {g.name: {n for n, _ in g.parameters} for g in parameter_groups(H3Config().build(8), OptimizerConfig())}
    dynamics = {"log_decay", "frequency", "B", "log_dt"}
    assert groups["dynamics"] == {"dynamics.shift_B", *(f"dynamics.diagonal.{name}" for name in dynamics)}
    assert groups["maps"] == {"in_proj.weight", "out_proj.weight", "readout.shift_C", "readout.C"}
    assert groups["vectors"] == {"in_proj.bias", "out_proj.bias", "readout.shift_D", "readout.D"}


def test_options() -> None:
    small = H3Config(d_shift=3, dt_range=(0.5, 0.5), bias=False).build(4)
    assert small.dynamics.shift_B.shape == (4, 3)
    torch.testing.assert_close(small.dynamics.diagonal.log_dt.exp(), torch.full((4,), 0.5))
    assert small.in_proj.bias is None
    assert small.out_proj.bias is None
    state = H3Config(d_head=2).build(8).initial_state(3, dtype=torch.bfloat16)
    shapes = Counter((tuple(leaf.shape), leaf.dtype) for leaf in pytree.tree_leaves(state))
    assert shapes == Counter([((3, 63, 8), torch.float32), ((3, 4, 2, 2, 32, 2), torch.float32)])


def test_autocast_keeps_the_systems_in_float32() -> None:
    torch.manual_seed(0)
    mixer, x = H3Config(d_state=8, d_head=2).build(16), torch.randn(2, 30, 16)
    want, _ = mixer(x)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(2))
    assert state is not None
    assert state.ssm.h.dtype == state.shift.inputs.dtype == torch.float32
    assert (y - want).abs().max() < 0.05 * want.abs().max()
    low = mixer.to(torch.bfloat16)(x.to(torch.bfloat16))[0]
    assert low.dtype == torch.bfloat16
    assert (low - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_head": 3}, ["d_model=8", "d_head=3"]),
        ({"d_head": 0}, ["d_head=0"]),
        ({"d_state": 7}, ["d_state=7", "even"]),
        ({"d_state": True}, ["d_state=True"]),
        ({"d_shift": 0}, ["d_shift=0"]),
        ({"method": "euler"}, ["method='euler'", "bilinear"]),
        ({"dt_range": (0.1, 0.01)}, ["dt_range=(0.1, 0.01)"]),
        ({"dt_range": ("a", 1)}, ["dt_range"]),
        ({"dt_range": (True, True)}, ["dt_range.0=True"]),
        ({"bias": 1}, ["bias=1"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        H3Config(**options).build(8)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_wrong_inputs_and_states_are_refused() -> None:
    mixer = H3Config(d_state=4, d_head=2).build(8)
    with pytest.raises(InputError, match=r"\(batch, length, 8\)"):
        mixer(torch.randn(2, 5, 4))
    with pytest.raises(InputError, match="H3State"):
        mixer(torch.randn(2, 5, 8), mixer.initial_state(2).ssm)  # type: ignore[arg-type]
    for halves in ((mixer.initial_state(2).shift, None), (None, None)):
        with pytest.raises(InputError, match="got NoneType; begin with initial_state"):
            mixer(torch.randn(2, 5, 8), H3State(*halves))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"\(2, 3, 8\)"):
        mixer(torch.randn(2, 5, 8), mixer.initial_state(3))
    with pytest.raises(InputError, match="float64"):
        mixer(torch.randn(2, 5, 8, dtype=torch.float64))
    with pytest.raises(InputError, match=r"no mixer in this H3 has a rate; .* GSS"):
        set_rate(mixer, 2)
