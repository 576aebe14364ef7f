"""What S4, S4D and LSSL share: both directions, dtypes, rate, groups of parameters, compilation."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
from law_signals import prepared
from torch import Tensor

import statewise as sw
from statewise.configuration import from_dict, to_dict
from statewise.errors import ConfigError, InputError
from statewise.mixers.base import MixerConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.lmu import LMUConfig
from statewise.mixers.lssl import LSSLConfig
from statewise.mixers.rate import set_rate
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.mixers.time_invariant import TimeInvariantMixer
from statewise.models.registry import CONFIG_TYPES
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups

KINDS = [S4Config, S4DConfig, LSSLConfig]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("length", [7, 21])
def test_bidirectional_is_two_runs_one_of_them_reversed(kind: type, length: int) -> None:
    """Document by document, each as a sequence of its own; the skip counts once."""
    torch.manual_seed(0)
    mixer = prepared(kind(d_state=4, bidirectional=True, n_heads=2).build(3))
    ahead, behind = mixer.operators
    x = torch.randn(3, length, 3, dtype=torch.float64)
    lengths, starts = torch.tensor([length, length - 2, 0]), torch.zeros(3, length, dtype=torch.bool)
    starts[0, 4] = starts[1, 0] = starts[1, 1] = starts[1, length - 1] = True
    padded = x.clone()
    padded[1, length - 2 :], padded[2] = float("nan"), float("nan")

    def alone(u: Tensor) -> Tensor:
        y = ahead(u)[0] + behind(u.flip(1))[0].flip(1)
        return mixer.output((y + mixer.readout.D * u.unsqueeze(-1)).flatten(-2))

    torch.testing.assert_close(mixer(x)[0], alone(x))
    y, none = mixer(padded, lengths=lengths, starts=starts)
    assert none is None
    for row, cuts in enumerate(([0, 4, length], [0, 1, length - 2])):
        for begin, end in itertools.pairwise(cuts):
            torch.testing.assert_close(y[row : row + 1, begin:end], alone(x[row : row + 1, begin:end]))


@pytest.mark.parametrize("kind", KINDS)
def test_bidirectional_has_no_state(kind: type) -> None:
    mixer = kind(d_state=4, bidirectional=True).build(3)
    assert not mixer.is_causal
    with pytest.raises(InputError, match="still to come"):
        mixer.initial_state(1)
    with pytest.raises(InputError, match="still to come"):
        mixer(torch.randn(1, 4, 3), kind(d_state=4).build(3).initial_state(1))


def test_a_language_model_refuses_both_directions() -> None:
    layers = (S4DConfig(d_state=4), S4DConfig(d_state=4, bidirectional=True))
    with pytest.raises(ConfigError, match=r"layers\[1\] reads in both directions"):
        sw.LanguageModelConfig(vocab_size=5, d_model=4, layers=layers).build()


@pytest.mark.parametrize("kind", KINDS)
def test_autocast_keeps_dynamics_and_state_in_float32(kind: type) -> None:
    torch.manual_seed(0)
    mixer = kind(d_state=8).build(16)
    x = torch.randn(2, 70, 16)
    built: list[torch.dtype] = []

    def note(module: object, args: object, results: tuple[Tensor, ...]) -> None:
        built.extend(result.dtype for result in results)

    mixer.dynamics.register_forward_hook(note)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(2))
        whole, _ = mixer(x)
    assert set(built) <= {torch.float32, torch.complex64}
    assert state.h.dtype == torch.float32
    want, exact = mixer(x, mixer.initial_state(2))
    torch.testing.assert_close(state, exact, atol=1e-5, rtol=1e-4)
    assert (y - want).abs().max() < 0.05 * want.abs().max()
    assert (whole - want).abs().max() < 0.05 * want.abs().max()


@pytest.mark.parametrize("kind", KINDS)
def test_a_bfloat16_mixer_computes_its_dynamics_wide(kind: type) -> None:
    torch.manual_seed(0)
    mixer = kind(d_state=4, tied_dt=True).build(4).to(torch.bfloat16)
    assert all(m.dtype in (torch.float32, torch.complex64) for m in mixer.dynamics(1.0))
    y, state = mixer(torch.randn(2, 20, 4, dtype=torch.bfloat16), mixer.initial_state(2, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert state.h.dtype == torch.float32


def test_groups_of_parameters() -> None:
    """A, B, P and dt are dynamics; C and D are maps, as in the published code; the output's bias is a vector."""
    layers = (S4Config(d_state=4, bidirectional=True), S4DConfig(d_state=4), LSSLConfig(d_state=3), LMUConfig(theta=9))
    forward_only = tuple(layer for layer in layers if not getattr(layer, "bidirectional", False))
    model = sw.LanguageModelConfig(vocab_size=5, d_model=4, layers=forward_only).build()
    model.layers.append(sw.BlockConfig(mixer=layers[0], norm="batch").build(4))
    groups = {
        group.name: {name.split(".", 2)[-1] for name, _ in group.parameters}
        for group in parameter_groups(model, OptimizerConfig())
    }
    dynamics = {f"mixer.dynamics.{n}" for n in ("A", "B", "P", "log_decay", "frequency", "log_dt")}
    assert groups["dynamics"] == dynamics
    assert {"mixer.readout.C", "mixer.readout.C_backward", "mixer.readout.D"} <= groups["maps"]
    assert "mixer.output.linear.bias" in groups["vectors"]


@pytest.mark.parametrize("config", [S4Config(d_state=4), S4DConfig(d_state=4), LSSLConfig(d_state=4)], ids=str)
def test_rate_multiplies_dt(config: MixerConfig) -> None:
    torch.manual_seed(0)
    mixer, other = config.build(3), None
    assert isinstance(mixer, TimeInvariantMixer)
    x = torch.randn(1, 20, 3)
    model = torch.nn.Sequential(mixer, sw.AttentionConfig(n_heads=1).build(4))
    other = config.build(3)
    other.load_state_dict(mixer.state_dict())
    with torch.no_grad():
        other.dynamics.log_dt.add_(torch.tensor(2.0).log())
    set_rate(model, 0.5)
    set_rate(model, 2)  # it does not add up
    torch.testing.assert_close(mixer(x)[0], other(x)[0])
    assert mixer.rate == 2.0
    assert "rate" not in str(mixer.state_dict().keys())


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf"), "2", True, None])
def test_a_rate_that_is_none_is_refused(rate: object) -> None:
    with pytest.raises(InputError, match="rate="):
        set_rate(S4DConfig(d_state=4).build(3), rate)  # type: ignore[arg-type]


def test_a_model_without_a_rate_is_told() -> None:
    with pytest.raises(InputError, match="no mixer in this Mamba2 has a rate"):
        set_rate(sw.Mamba2Config(d_state=4, d_head=4).build(4), 2)


@pytest.mark.parametrize("kind", KINDS)
def test_empty_sequences(kind: type) -> None:
    mixer = kind(d_state=4).build(3)
    y, state = mixer(torch.randn(2, 0, 3), mixer.initial_state(2))
    assert y.shape == (2, 0, 3)
    assert state.h.shape[0] == 2
    assert kind(d_state=4, bidirectional=True).build(3)(torch.randn(2, 0, 3))[0].shape == (2, 0, 3)


@pytest.mark.parametrize("config", [*(kind(d_state=4) for kind in KINDS), H3Config(d_state=4), GSSConfig(d_state=4)])
@pytest.mark.parametrize("length", [1, 5, 300])
def test_shapes_on_the_meta_device(config: MixerConfig, length: int) -> None:
    with torch.device("meta"):
        mixer, x = config.build(4), torch.empty(2, length, 4)
    for state in (None, mixer.initial_state(2)):
        y, _ = mixer(x, state)
        assert y.is_meta
        assert y.shape == x.shape


@pytest.mark.parametrize(
    "config",
    [
        S4Config(d_state=4, initialization="legt", rank=2, n_systems=None, n_heads=3),
        S4DConfig(initialization="real", method="bilinear", tied_dt=True, learn_B=False, dt_range=(1e-4, 1.0)),
        LSSLConfig(alpha=1.0, learn_A=False, bidirectional=True, gated_output=False, activation="silu", dropout=0.1),
        LMUConfig(theta=99.5, d_memory=3, d_hidden=7, hidden_to_memory=True),
        LMUConfig(theta=10, parallel=True),
    ],
    ids=lambda config: type(config).__name__,
)
def test_configs_go_through_json(config: MixerConfig) -> None:
    block = sw.BlockConfig(mixer=config, norm="batch", placement="post")
    data = json.loads(json.dumps(to_dict(block)))
    assert data["mixer"]["type"] == type(config).__name__
    assert from_dict(sw.BlockConfig, data, types=CONFIG_TYPES) == block


@pytest.mark.parametrize(
    "config",
    [
        S4DConfig(d_state=4),
        pytest.param(S4Config(d_state=4), marks=pytest.mark.slow),
        pytest.param(LMUConfig(theta=9, d_state=4), marks=pytest.mark.slow),
        pytest.param(LMUConfig(theta=9, d_state=4, parallel=True), marks=pytest.mark.slow),
    ],
    ids=lambda config: type(config).__name__,
)
def test_they_compile_to_one_graph(config: MixerConfig) -> None:
    """Without lengths and starts, as whole training sequences come."""
    torch.manual_seed(0)
    mixer = config.build(3)
    x = torch.randn(2, 20, 3)
    compiled = torch.compile(mixer, fullgraph=True, backend="aot_eager")
    y = compiled(x)[0]
    torch.testing.assert_close(y, mixer(x)[0])
    actual = torch.autograd.grad(y.square().sum(), list(mixer.parameters()))
    expected = torch.autograd.grad(mixer(x)[0].square().sum(), list(mixer.parameters()))
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=1e-4)


READERS = [
    *(kind(d_state=4) for kind in KINDS),
    LMUConfig(theta=5.0, d_state=4),
    LMUConfig(theta=5.0, d_state=4, parallel=True),
]


@pytest.mark.parametrize("config", READERS, ids=lambda config: type(config).__name__)
def test_a_dtype_other_than_the_parameters_is_refused(config: MixerConfig) -> None:
    """But under autocast, which converts all but float64."""
    mixer, x = config.build(4), torch.randn(2, 12, 4)
    for dtype in (torch.float64, torch.float16, torch.int64):
        with pytest.raises(InputError, match=rf"parameters, torch.float32, got {dtype}; use x.to\(torch.float32\)"):
            mixer(x.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        for dtype in (torch.float32, torch.bfloat16):
            assert mixer(x.to(dtype))[0].dtype == torch.bfloat16
        for dtype in (torch.float64, torch.int64):
            with pytest.raises(InputError, match=str(dtype)):
                mixer(x.to(dtype))
    mixer.to(torch.bfloat16)
    assert mixer(x.bfloat16())[0].dtype == torch.bfloat16
    with pytest.raises(InputError, match=r"use x.to\(torch.bfloat16\)"):
        mixer(x)


@pytest.mark.parametrize("config", READERS, ids=lambda config: type(config).__name__)
def test_a_width_is_a_count(config: MixerConfig) -> None:
    for width in ("4", 0, 2.0, True):
        with pytest.raises(ConfigError, match=f"build: d_model={width!r}; expected an integer of at least 1"):
            config.build(width)  # type: ignore[arg-type]
