"""S4D: the laws, the equations written out once more, every initialisation and option."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from law_signals import prepared
from laws import check_mixer_laws
from torch import Tensor

from statewise import hippo
from statewise.configuration import from_dict
from statewise.errors import ConfigError, InputError
from statewise.mixers.rate import set_rate
from statewise.mixers.s4d import INITIALIZATIONS, S4D, S4DConfig
from statewise.models.registry import CONFIG_TYPES

SMALL = {"d_state": 4}


def published(mixer: S4D, x: Tensor) -> Tensor:
    """The recurrence of each channel by a loop, from the stored numbers alone; then skip, GELU and GLU."""
    c, dynamics, readout = mixer.config, mixer.dynamics, mixer.readout
    y = torch.zeros(*x.shape, c.n_heads, dtype=torch.float64)
    for channel in range(mixer.d_model):
        dt = dynamics.log_dt[0 if c.tied_dt else channel].exp()
        system = channel % len(dynamics.log_decay)
        A = -dynamics.log_decay[system].exp() + (0 if dynamics.frequency is None else 1j * dynamics.frequency[system])
        B, C = None if dynamics.B is None else dynamics.B[system], readout.C[channel]
        if c.is_complex:
            B = None if B is None else B[..., 0] + 1j * B[..., 1]
            C = C[..., 0] + 1j * C[..., 1]
        B = torch.ones_like(A) if B is None else B
        if c.method == "zoh":
            A_bar, B_bar = torch.exp(dt * A), (torch.exp(dt * A) - 1) / A * B
        else:
            A_bar, B_bar = (1 + dt * A / 2) / (1 - dt * A / 2), dt * B / (1 - dt * A / 2)
        if c.softmax_length is not None:  # C / A times e^(k dt A), over its sum
            total = sum(torch.exp(k * dt * A) for k in range(c.softmax_length))
            near = A * (torch.exp(dt * A) - 1) * total  # where this is small, DSS divides by a little more
            B_bar = B * (torch.exp(dt * A) - 1) * near.conj() / (near.abs() ** 2 + 1e-7)
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
    {"n_systems": 1, "initialization": "inv", "B": "normal"},
    {"n_systems": 2, "initialization": "real", "B": "normal", "learn_B": False},
    {"softmax_length": 25, "learn_B": False},
    {"softmax_length": 7, "initialization": "real", "n_heads": 2},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_equations(options: dict) -> None:
    torch.manual_seed(0)
    mixer = prepared(S4DConfig(**{**SMALL, **options}).build(4))
    x = torch.randn(2, 25, 4, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], published(mixer, x), atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize("initialization", ["legs", "real"])
def test_the_softmax_at_another_rate(initialization: str) -> None:
    """Twice the step is as long a time in half as many steps: the layer of dt and a length of 24 at rate 2 is that of
    2 dt and a length of 12."""
    torch.manual_seed(0)
    config = S4DConfig(d_state=4, initialization=initialization, softmax_length=24)
    mixer, other = (prepared(replace(config, softmax_length=length).build(4)) for length in (24, 12))
    other.load_state_dict(mixer.state_dict())
    with torch.no_grad():
        other.dynamics.log_dt.add_(math.log(2))
        x = torch.randn(2, 20, 4, dtype=torch.float64)
        set_rate(mixer, 2.0)
        torch.testing.assert_close(mixer(x)[0], other(x)[0], atol=1e-11, rtol=1e-10)
        torch.testing.assert_close(mixer(x)[0], published(other, x), atol=1e-11, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "length"),
    [(OPTIONS[0], 17), (OPTIONS[1], 5), (OPTIONS[2], 5), (OPTIONS[5], 17), (OPTIONS[7], 17)],
    ids=str,
)
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


@pytest.mark.parametrize("n_systems", [1, 2, 6])
@pytest.mark.parametrize("initialization", ["inv", "real", "random"])
def test_shared_systems_are_repeated_ones(n_systems: int, initialization: str) -> None:
    """Channel h has system h mod n_systems; the gradient of a shared number is the sum over its channels."""
    torch.manual_seed(0)
    options = {"d_state": 8, "initialization": initialization, "B": "normal"}
    shared = S4DConfig(n_systems=n_systems, **options).build(6).double()
    every = S4DConfig(**options).build(6).double()
    names = [name for name in ("log_decay", "frequency", "B") if getattr(shared.dynamics, name) is not None]
    values = shared.state_dict()
    for name in names:
        assert len(values[f"dynamics.{name}"]) == n_systems
        values[f"dynamics.{name}"] = torch.cat([values[f"dynamics.{name}"]] * (6 // n_systems))
    every.load_state_dict(values)
    x = torch.randn(2, 30, 6, dtype=torch.float64)
    state = shared.initial_state(2)
    for start in (None, state):
        (y, _), (z, _) = shared(x, start), every(x, start)
        torch.testing.assert_close(y, z, atol=1e-12, rtol=1e-12)
        for mixer, output in ((shared, y), (every, z)):
            mixer.zero_grad()
            output.square().sum().backward()
        for (name, p), (_, q) in zip(shared.named_parameters(), every.named_parameters()):
            own = q.grad.unflatten(0, (-1, n_systems)).sum(0) if name.rpartition(".")[2] in names else q.grad
            torch.testing.assert_close(p.grad, own, atol=1e-10, rtol=1e-10)


def test_a_normal_B_is_normalised() -> None:
    """A constant input of 1 settles at C (-B/A): for C of variance 1, a number of variance 1, for every system."""
    torch.manual_seed(0)
    for initialization in ("inv", "lin", "real", "random"):
        mixer = S4DConfig(d_state=16, initialization=initialization, B="normal").build(5).double()
        mixer.reset_parameters()
        A, _ = hippo.diagonal(initialization, 16)
        dynamics = mixer.dynamics
        assert dynamics.B is not None
        if initialization == "random":
            A = torch.complex(-dynamics.log_decay.exp(), dynamics.frequency)
        B = torch.view_as_complex(dynamics.B.detach()) if A.is_complex() else dynamics.B
        total = (B / A).abs().square().sum(-1) * (2 if A.is_complex() else 1)
        torch.testing.assert_close(total, torch.ones_like(total))
        assert not torch.equal(B[0], B[1])
    settled = S4DConfig(d_state=16, initialization="lin", B="normal", dt_range=(0.5, 0.5)).build(4000).double()
    (operator,) = settled.operators
    y, _ = operator(torch.ones(1, 60, 4000, dtype=torch.float64))
    assert 0.9 < y[0, -1].var() < 1.1


def test_a_B_that_is_drawn_and_not_learned_is_saved() -> None:
    torch.manual_seed(0)
    mixer = S4DConfig(d_state=4, B="normal", learn_B=False, n_systems=1).build(3)
    assert "dynamics.B" in mixer.state_dict()
    assert "dynamics.B" not in dict(mixer.named_parameters())
    other = S4DConfig(d_state=4, B="normal", learn_B=False, n_systems=1).build(3)
    other.load_state_dict(mixer.state_dict())
    x = torch.randn(1, 9, 3)
    torch.testing.assert_close(other(x)[0], mixer(x)[0])
    frozen = mixer.freeze()
    torch.testing.assert_close(frozen(x)[0], mixer(x)[0])


def test_what_the_first_version_wrote_is_read() -> None:
    """No field and no tensor that it had not: the two new fields have defaults, and tensors their shapes."""
    names = {"dynamics.log_dt", "dynamics.log_decay", "dynamics.frequency", "readout.C", "readout.D"}
    names |= {"output.linear.weight", "output.linear.bias"}
    for options, more in (({}, {"dynamics.B"}), ({"learn_B": False}, set())):
        config = from_dict(S4DConfig, {"type": "S4DConfig", "d_state": 4, **options}, types=CONFIG_TYPES)
        assert config == S4DConfig(d_state=4, **options)
        tensors = config.build(3).state_dict()
        assert set(tensors) == names | more
        assert tensors["dynamics.log_decay"].shape == (3, 2)


def test_n_systems_divides_the_width() -> None:
    with pytest.raises(ConfigError, match="n_systems=4 does not divide d_model=6"):
        S4DConfig(n_systems=4).build(6)


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
        ({"B": "random"}, ["B='random'", "normal"]),
        ({"softmax_length": 8, "method": "bilinear"}, ["softmax_length=8", "method='zoh'"]),
        ({"n_systems": 0}, ["n_systems=0"]),
        ({"n_systems": 1.0}, ["n_systems=1.0"]),
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
