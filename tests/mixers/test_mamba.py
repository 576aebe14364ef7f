"""Mamba: the laws, the published equations written out once more, both directions, and every option."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from law_signals import prepared
from laws import check_mixer_laws
from torch import Tensor

from statewise.configuration import from_dict, to_dict
from statewise.errors import ConfigError, InputError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.mamba import Mamba, MambaConfig, MambaDirection
from statewise.models.language_model import LanguageModelConfig
from statewise.models.presets import PRESETS
from statewise.models.registry import CONFIG_TYPES
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

D = torch.float64


def published(mixer: Mamba, x: Tensor) -> Tensor:
    """SPEC's block by loops over channels and steps, from the parameters alone: in_proj order x, z."""
    c, d_inner, rank = mixer.config, mixer.d_inner, mixer.dt_rank
    projected = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias)
    u, z = projected[..., :d_inner], projected[..., d_inner:]
    conv1d = mixer.convolution.weight.flip(1).unsqueeze(1)  # as nn.Conv1d stores it, oldest first
    u = F.silu(F.conv1d(F.pad(u.mT, (c.n_taps - 1, 0)), conv1d, mixer.convolution.bias, groups=d_inner).mT)
    selected = u @ mixer.x_proj.weight.T
    raw_dt, B, C = selected[..., :rank], selected[..., rank : rank + c.d_state], selected[..., rank + c.d_state :]
    if c.norm_dt_b_c:
        raw_dt, B, C = (m / (m.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() for m in (raw_dt, B, C))
    raw_dt = raw_dt @ mixer.dt_proj.weight.T + mixer.dynamics.dt_bias
    A = -torch.exp(mixer.dynamics.A_log)
    if c.is_complex:
        A = A + 1j * mixer.dynamics.frequency
        B, C = (m[..., 0::2] + 1j * m[..., 1::2] for m in (B, C))
    dt = torch.log1p(torch.exp(raw_dt))
    y = torch.zeros_like(u)
    for row in range(x.shape[0]):
        for channel in range(d_inner):
            h = torch.zeros_like(A[0])
            for t in range(x.shape[1]):
                step, v = dt[row, t, channel], u[row, t, channel]
                decay = torch.exp(step * A[channel])
                hold = step if c.method == "mamba" else (decay - 1) / A[channel]
                h = decay * h + hold * B[row, t] * v
                out = (h * C[row, t]).sum()
                y[row, t, channel] = (2 * out.real if c.is_complex else out) + mixer.dynamics.D[channel] * v
    return F.linear(y * z * torch.sigmoid(z), mixer.out_proj.weight, mixer.out_proj.bias)


OPTIONS = [
    {},
    {"method": "zoh", "bias": True, "convolution_bias": False},
    {"initialization": "lin", "n_taps": 2},
    {"initialization": "lin", "method": "zoh", "dt_rank": 3},
    {"expand": 1, "n_taps": 1, "dt_rank": 5},
    {"norm_dt_b_c": True, "norm_eps": 0.1, "dt_rank": 3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_block(options: dict) -> None:
    torch.manual_seed(0)
    mixer = prepared(MambaConfig(**{"d_state": 4, **options}).build(6))
    x = torch.randn(2, 11, 6, dtype=D)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], published(mixer, x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(
    "options",
    [{}, {"initialization": "lin", "method": "zoh", "bias": True}, {"n_taps": 1, "dt_rank": 2, "norm_dt_b_c": True}],
    ids=str,
)
def test_laws(options: dict) -> None:
    torch.manual_seed(0)
    check_mixer_laws(MambaConfig(**{"d_state": 4, **options}).build(4), length=19)


def test_published_initialisation() -> None:
    torch.manual_seed(0)
    mixer = MambaConfig().build(250)
    dynamics, dt = mixer.dynamics, F.softplus(mixer.dynamics.dt_bias)
    assert mixer.dt_rank == 16  # 250 / 16, rounded up
    torch.testing.assert_close(dynamics(), -torch.arange(1.0, 17).expand(500, 16))
    assert 1e-3 * 0.999 <= dt.min() < 2e-3 < 5e-2 < dt.max() <= 1e-1 * 1.001
    assert (dynamics.D == 1).all()
    assert 0.9 / 4 < mixer.dt_proj.weight.abs().max() <= 1 / 4
    assert mixer.in_proj.weight.abs().max() <= 1 / math.sqrt(250)
    assert mixer.x_proj.weight.abs().max() <= 1 / math.sqrt(500)
    unscaled = mixer.out_proj.weight.std()
    mixer.reset_parameters(residual_scale=0.1)
    assert 0.09 < mixer.out_proj.weight.std() / unscaled < 0.11
    floored = MambaConfig(dt_range=(1e-6, 1e-5), dt_floor=1e-3).build(8)
    torch.testing.assert_close(F.softplus(floored.dynamics.dt_bias), torch.full((16,), 1e-3))
    assert (MambaConfig(bias=True).build(8).in_proj.bias == 0).all()


def test_complex_initialisation_is_s4d_lin() -> None:
    A = MambaConfig(initialization="lin", d_state=8).build(4).dynamics()
    assert A.shape == (8, 4)
    torch.testing.assert_close(A.real, torch.full((8, 4), -0.5))
    torch.testing.assert_close(A.imag, (math.pi * torch.arange(4.0)).expand(8, 4))


def test_published_sizes() -> None:
    """mamba-130m (SPEC C1)."""
    mixer = MambaConfig().build(768)
    shapes = {name: tuple(parameter.shape) for name, parameter in mixer.named_parameters()}
    assert shapes == {
        "in_proj.weight": (3072, 768),
        "convolution.weight": (1536, 4),
        "convolution.bias": (1536,),
        "x_proj.weight": (80, 1536),
        "dt_proj.weight": (1536, 48),
        "dynamics.dt_bias": (1536,),
        "dynamics.A_log": (1536, 16),
        "dynamics.D": (1536,),
        "out_proj.weight": (768, 1536),
    }


def test_the_dynamics_have_no_weight_decay() -> None:
    layers = (MambaConfig(initialization="lin", d_state=4),)
    model = LanguageModelConfig(vocab_size=7, d_model=8, layers=layers).build()
    groups = {group.name: group for group in parameter_groups(model, OptimizerConfig())}
    names = {name.rsplit("mixer.", 1)[-1] for name, _ in groups["dynamics"].parameters}
    assert names == {"dynamics.A_log", "dynamics.frequency", "dynamics.dt_bias", "dynamics.D"}
    assert groups["dynamics"].weight_decay == 0
    decayed = {name.rsplit("mixer.", 1)[-1] for name, _ in groups["maps"].parameters}
    assert decayed >= {"in_proj.weight", "x_proj.weight", "dt_proj.weight", "out_proj.weight"}


def test_autocast_keeps_the_dynamics_and_the_state_in_float32() -> None:
    torch.manual_seed(0)
    for options in ({}, {"initialization": "lin"}):
        mixer = MambaConfig(d_state=4, **options).build(16)
        x = torch.randn(2, 30, 16)
        with torch.autocast("cpu", torch.bfloat16):
            y, state = mixer(x, mixer.initial_state(2))
        want, _ = mixer(x)
        assert state is not None
        assert state.ssm.h.dtype == state.convolution.inputs.dtype == torch.float32
        assert (y - want).abs().max() < 0.05 * want.abs().max()


def test_a_bfloat16_mixer_keeps_its_dynamics_wide() -> None:
    mixer = MambaConfig(d_state=4).build(8).to(torch.bfloat16)
    assert mixer.dynamics().dtype == torch.float32
    y, state = mixer(torch.randn(1, 3, 8, dtype=torch.bfloat16), mixer.initial_state(1))
    assert y.dtype == torch.bfloat16
    assert state.ssm.h.dtype == state.convolution.inputs.dtype == torch.float32


# ---- both directions

BOTH = [
    {},
    {"combine": "concatenate"},
    {"tied_directions": False},
    {"tied_directions": False, "combine": "concatenate", "initialization": "lin"},
]


def by_definition(mixer: Mamba, x: Tensor) -> Tensor:
    """One document: each direction with the weights it has, the backward one on the flipped sequence."""

    def middle(direction: MambaDirection, u: Tensor, z: Tensor) -> Tensor:
        convolved = direction.convolution(u)[0]
        return direction.operator(convolved, z)(convolved, form="recurrent")[0]

    u, z = mixer.in_proj(x).chunk(2, -1)
    behind = mixer if mixer.config.tied_directions else mixer.backward_direction
    y, back = middle(mixer, u, z), middle(behind, u.flip(1), z.flip(1)).flip(1)
    return mixer.out_proj(y + back if mixer.config.combine == "sum" else torch.cat([y, back], -1))


@pytest.mark.parametrize("options", BOTH, ids=str)
def test_both_directions_by_definition(options: dict) -> None:
    torch.manual_seed(0)
    mixer = prepared(MambaConfig(d_state=4, bidirectional=True, **options).build(4))
    assert (mixer.backward_direction is None) == options.get("tied_directions", True)
    starts = torch.zeros(2, 23, dtype=torch.bool)
    starts[0, [4, 5, 17]] = True
    lengths = torch.tensor([20, 9])
    x = torch.randn(2, 23, 4, dtype=D)
    torch.testing.assert_close(mixer(x)[0], by_definition(mixer, x))
    dirty = x.clone()
    dirty[0, 20:], dirty[1, 9:] = torch.nan, torch.nan
    y, state = mixer(dirty, lengths=lengths, starts=starts)
    assert state is None
    for row, edges in ((0, [0, 4, 5, 17, 20]), (1, [0, 9])):
        for t0, t1 in pairwise(edges):
            want = by_definition(mixer, x[row : row + 1, t0:t1])
            torch.testing.assert_close(y[row : row + 1, t0:t1], want)
    y[:, :9].sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in mixer.parameters())


def test_both_directions_with_tied_weights_commute_with_reversal() -> None:
    """A sequence from its end gives the outputs from their end, to the bit: nothing is off by one."""
    torch.manual_seed(0)
    mixer = prepared(MambaConfig(d_state=4, bidirectional=True).build(4))
    x = torch.randn(1, 30, 4, dtype=D)
    torch.testing.assert_close(mixer(x.flip(1))[0], mixer(x)[0].flip(1), atol=1e-12, rtol=0)


def test_both_directions_have_no_state_and_make_no_language_model() -> None:
    config = MambaConfig(d_state=4, bidirectional=True)
    mixer = config.build(4)
    assert not mixer.is_causal
    for call in (lambda: mixer.initial_state(1), lambda: mixer(torch.randn(1, 3, 4), (None, None))):
        with pytest.raises(InputError, match="bidirectional Mamba has no state"):
            call()
    with pytest.raises(ConfigError, match="both directions"):
        LanguageModelConfig(vocab_size=5, d_model=4, layers=(config,)).build()


# ---- errors


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_state": 0}, ["d_state=0"]),
        ({"d_state": 5, "initialization": "lin"}, ["d_state=5", "even"]),
        ({"expand": 1.5}, ["expand=1.5"]),
        ({"n_taps": True}, ["n_taps=True"]),
        ({"dt_rank": 0}, ["dt_rank=0"]),
        ({"dt_range": (1e-1, 1e-3)}, ["dt_range"]),
        ({"dt_range": 0.1}, ["dt_range=0.1"]),
        ({"dt_floor": 0.0}, ["dt_floor"]),
        ({"method": "euler"}, ["'euler'", "zoh"]),
        ({"initialization": "legs"}, ["'legs'", "lin"]),
        ({"combine": "mean", "bidirectional": True}, ["'mean'", "concatenate"]),
        ({"combine": "concatenate"}, ["bidirectional=True"]),
        ({"tied_directions": False}, ["bidirectional=True"]),
        ({"bidirectional": "sum"}, ["bidirectional='sum'", "True or False"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        MambaConfig(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_bad_input_is_refused() -> None:
    mixer = MambaConfig(d_state=4).build(8)
    for shape in ((2, 8), (1, 2, 9)):
        with pytest.raises(InputError, match=r"\(batch, length, 8\)"):
            mixer(torch.randn(shape))
    with pytest.raises(InputError, match="MambaState"):
        mixer(torch.randn(1, 2, 8), (1, 2))
    with pytest.raises(InputError, match="float64"):
        mixer(torch.randn(1, 2, 8, dtype=D))
    with pytest.raises(InputError, match=r"\(2, 3, 16\)"):
        mixer(torch.randn(2, 3, 8), mixer.initial_state(3))
    with pytest.raises(ConfigError, match="d_model=0"):
        MambaConfig().build(0)


def test_by_name_in_a_file() -> None:
    config = MambaConfig(d_state=8, dt_rank=3, dt_range=(1e-2, 1e-1))
    data = {"type": "MambaConfig", **to_dict(config)}
    assert from_dict(MixerConfig, data, types=CONFIG_TYPES, where="mixer") == config  # type: ignore[type-abstract]


# ---- presets


@pytest.mark.parametrize(
    ("name", "vocab_size", "n_parameters"),
    [
        ("mamba-130m", 50_280, 129_135_360),  # as published (SPEC C1)
        ("mamba2-130m", 50_288, 128_989_632),  # as published (SPEC C3)
        ("hybrid-130m", 50_288, 122_414_568),
    ],
)
def test_presets_of_published_sizes(name: str, vocab_size: int, n_parameters: int) -> None:
    config = PRESETS[name]()
    assert (config.vocab_size, config.d_model, len(config.layers)) == (vocab_size, 768, 24)
    assert (config.norm, config.norm_eps, config.tie_embeddings) == ("rms", 1e-5, True)
    with torch.device("meta"):
        model = config.build()
    assert sum(parameter.numel() for parameter in model.parameters()) == n_parameters
    assert PRESETS[name](vocab_size=64).vocab_size == 64
    attention = [i for i, layer in enumerate(config.layers) if isinstance(layer, AttentionConfig)]
    assert attention == ([5, 11, 17] if name == "hybrid-130m" else [])
