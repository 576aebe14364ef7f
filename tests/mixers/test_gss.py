"""GSS: the laws, the equations by loops over steps, its initial values, freezing and groups of parameters."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from law_signals import gradients, prepared, same
from laws import check_mixer_laws
from torch import Tensor

from statewise.errors import ConfigError, InputError
from statewise.mixers.gss import GSS, GSSConfig
from statewise.mixers.rate import set_rate
from statewise.models.language_model import LanguageModelConfig
from statewise.systems import discretize_diagonal
from statewise.training.config import OptimizerConfig
from statewise.training.optimizer import parameter_groups


def build(d_model: int = 4, **options: Any) -> GSS:
    torch.manual_seed(0)
    return GSSConfig(**{"d_state": 4, "bottleneck": 2, "expand": 2, **options}).build(d_model)


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def published(mixer: GSS, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """u * W_3 DSS(v) through W_4, the system step by step, from the parameters alone; and its state."""
    d_inner, d_ssm = mixer.config.expand * mixer.d_model, mixer.d_model // mixer.config.bottleneck
    W, b = mixer.in_proj.weight, 0 if mixer.in_proj.bias is None else mixer.in_proj.bias
    u, v = gelu(x @ W.T + b).split([d_inner, d_ssm], -1)
    n = mixer.config.d_state // 2
    if mixer.norm is not None:
        spread = ((v - v.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
        v = (v - v.mean(-1, keepdim=True)) / (spread + 1e-5).sqrt() * mixer.norm.weight + mixer.norm.bias
    A = -mixer.dynamics.log_decay.exp() + 1j * mixer.dynamics.log_frequency.exp()
    A = A[[channel % len(A) for channel in range(d_ssm)]]
    C = torch.view_as_complex(mixer.readout.C)[:, 0]
    state = torch.zeros(x.shape[0], d_ssm, n, dtype=A.dtype) if h is None else torch.view_as_complex(h.contiguous())
    outputs = []
    for t in range(x.shape[1]):
        state = A.exp() * state + (A.exp() - 1) / A * v[:, t, :, None]
        outputs.append(2 * (C * state).sum(-1).real + mixer.readout.D[:, 0] * v[:, t])
    y = torch.stack(outputs, 1) @ mixer.up_proj.weight.T
    y = u * (y if mixer.up_proj.bias is None else y + mixer.up_proj.bias)
    y = y @ mixer.out_proj.weight.T
    return (y if mixer.out_proj.bias is None else y + mixer.out_proj.bias), torch.view_as_real(state)


PAPER = {"norm": True, "n_systems": 1, "random_decay": True}


@pytest.mark.parametrize(
    "options", [{}, {"bottleneck": 1, "expand": 1, "bias": False}, {"bottleneck": 4}, PAPER, {"n_systems": 2}], ids=str
)
@pytest.mark.parametrize(("batch", "length"), [(1, 7), (3, 25)])
def test_equal_to_the_equations(options: dict, batch: int, length: int) -> None:
    """Outputs, the state, and all gradients, from rest and from a state."""
    mixer = prepared(build(**options))
    x = torch.randn(batch, length, 4, dtype=torch.float64, requires_grad=True)
    probe = torch.randn(batch, 5, 4, dtype=torch.float64, requires_grad=True)
    y, state = mixer(x, mixer.initial_state(batch))
    z, last = mixer(probe, state)
    expected, h = published(mixer, x)
    following, final = published(mixer, probe, h)
    ours = torch.cat([m.flatten() for m in (y, z, last.h, mixer(x)[0])])
    theirs = torch.cat([m.flatten() for m in (expected, following, final, expected)])
    torch.testing.assert_close(ours, theirs, atol=1e-11, rtol=1e-11)
    inputs = (x, probe)
    same(gradients(mixer, ours, inputs), gradients(mixer, theirs, inputs), 1e-10, "gradients")


@pytest.mark.parametrize("length", [7, 19])
def test_laws(length: int) -> None:
    """Beyond 16 steps the system is convolved, up to there it is scanned."""
    check_mixer_laws(build(), length=length)
    check_mixer_laws(build(**PAPER), length=length)


def test_laws_frozen() -> None:
    check_mixer_laws(build(bias=False).freeze(), length=17)


def test_a_frozen_one_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mixer = build()
    frozen = mixer.freeze()
    x = torch.randn(2, 40, 4)
    expected, state = mixer(x, mixer.initial_state(2))
    monkeypatch.setattr(GSS, "build_operators", None)
    y, last = frozen(x, frozen.initial_state(2))
    torch.testing.assert_close((y, last), (expected, state), atol=1e-6, rtol=1e-5)
    with pytest.raises(InputError, match="frozen"):
        frozen.reset_parameters()


def test_1000_steps_one_by_one() -> None:
    mixer = build(d_state=16).freeze()
    x = torch.randn(1, 1000, 4)
    with torch.no_grad():
        state, steps = mixer.initial_state(1), []
        for piece in x.split(1, 1):
            y, state = mixer(piece, state)
            steps.append(y)
        torch.testing.assert_close(torch.cat(steps, 1), mixer(x)[0], atol=1e-5, rtol=1e-4)


def test_initial_values() -> None:
    """S4D's random A for each channel: real parts -1/2, imaginary ones e^g; the output alone is scaled."""
    torch.manual_seed(0)
    mixer = GSSConfig().build(256)
    assert mixer.in_proj.weight.shape == (4 * 256 + 64, 256)
    assert mixer.up_proj.weight.shape == (1024, 64)
    assert mixer.out_proj.weight.shape == (256, 1024)
    dynamics, readout = mixer.dynamics, mixer.readout
    assert dynamics.log_frequency.shape == (64, 32)
    torch.testing.assert_close(dynamics.log_decay.exp(), torch.full((64, 32), 0.5))
    assert abs(dynamics.log_frequency.mean()) < 0.1
    assert 0.9 < dynamics.log_frequency.std() < 1.1
    assert not torch.equal(dynamics.log_frequency[0], dynamics.log_frequency[1])
    assert readout.C.shape == (64, 1, 32, 2)
    assert 0.4 < readout.C.var() < 0.6
    before = mixer.out_proj.weight.std(), mixer.out_proj.bias.std(), mixer.in_proj.weight.std()
    mixer.reset_parameters(residual_scale=0.1)
    after = mixer.out_proj.weight.std(), mixer.out_proj.bias.std(), mixer.in_proj.weight.std()
    ratios = [(a / b).item() for a, b in zip(after, before)]
    assert ratios == pytest.approx([0.1, 0.1, 1.0], rel=0.1)


def test_groups_of_parameters() -> None:
    model = LanguageModelConfig(vocab_size=5, d_model=8, layers=(GSSConfig(d_state=4),)).build()
    groups = {
        group.name: {name.removeprefix("layers.0.mixer.") for name, _ in group.parameters}
        for group in parameter_groups(model, OptimizerConfig())
    }
    assert groups["dynamics"] == {"dynamics.log_decay", "dynamics.log_frequency"}
    projections = ("in_proj", "up_proj", "out_proj")
    assert groups["maps"] == {"readout.C", "readout.D", *(f"{name}.weight" for name in projections)}
    assert {f"{name}.bias" for name in projections} <= groups["vectors"]


def test_gradients_reach_every_parameter() -> None:
    mixer = build()
    mixer(torch.randn(2, 20, 4))[0].square().sum().backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


def test_the_step_of_one_has_a_rate() -> None:
    """At a rate of 2, e^(2 A), to the letter."""
    mixer = prepared(build())
    A = -mixer.dynamics.log_decay.exp() + 1j * mixer.dynamics.log_frequency.exp()
    set_rate(mixer, 2.0)
    operator = mixer.operators[0]
    torch.testing.assert_close(operator.A, (2 * A).exp())
    torch.testing.assert_close(operator.B, ((2 * A).exp() - 1) / A)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_its_hold_is_the_exact_one(dtype: torch.dtype) -> None:
    """Beside the careful rule, from poles that hardly move to ones that go round many times; gradients too."""
    mixer = build(d_state=2 * 49, bottleneck=4).to(dtype)
    dynamics = mixer.dynamics
    with torch.no_grad():
        grid = torch.tensor([-200.0, -60.0, -12.0, -5.0, -0.7, 1.0, 4.0], dtype=dtype)
        dynamics.log_decay.copy_(grid.repeat_interleave(7)[None])
        dynamics.log_frequency.copy_(grid.repeat(7)[None])
    ours = dynamics(1.0)
    A = torch.complex(-dynamics.log_decay.double().exp(), dynamics.log_frequency.double().exp())
    theirs = discretize_diagonal(A, torch.ones_like(A), 1.0)
    tolerance = 2e-5 if dtype == torch.float32 else 1e-13
    gradients = [
        torch.autograd.grad(sum(m.real.sum() + m.imag.sum() for m in pair), list(dynamics.parameters()))
        for pair in (ours, theirs)
    ]
    for a, b in zip((*ours, *gradients[0]), (*theirs, *gradients[1])):
        assert a.isfinite().all()
        torch.testing.assert_close(a.to(b.dtype), b, atol=tolerance, rtol=tolerance)


def test_narrow_modules_keep_their_system_wide() -> None:
    mixer = build(d_model=8)
    x = torch.randn(2, 30, 8)
    expected, exact = mixer(x, mixer.initial_state(2))
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(2))
    assert y.dtype == torch.bfloat16
    assert state.h.dtype == torch.float32
    assert (y - expected).abs().max() < 0.05 * expected.abs().max()
    mixer = mixer.to(torch.bfloat16)
    assert mixer.operators[0].A.dtype == torch.complex64
    y, state = mixer(x.bfloat16(), mixer.initial_state(2, dtype=torch.bfloat16))
    assert y.dtype == torch.bfloat16
    assert state.h.dtype == torch.float32
    assert (state.h - exact.h).abs().max() < 0.05 * exact.h.abs().max()


@pytest.mark.slow
def test_it_compiles_to_one_graph() -> None:
    mixer = build()
    x = torch.randn(2, 20, 4)
    torch.testing.assert_close(torch.compile(mixer, fullgraph=True, backend="aot_eager")(x)[0], mixer(x)[0])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bottleneck": 3}, ["d_model=4", "bottleneck=3"]),
        ({"bottleneck": 0}, ["bottleneck=0"]),
        ({"expand": 1.5}, ["expand=1.5"]),
        ({"d_state": 5}, ["d_state=5", "even"]),
        ({"d_state": 0}, ["d_state=0"]),
        ({"bias": 1}, ["bias=1"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        build(**options)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_wrong_inputs_and_states_are_refused() -> None:
    mixer = build()
    x = torch.randn(2, 5, 4)
    with pytest.raises(InputError, match=r"\(batch, length, 4\)"):
        mixer(x[..., :3])
    with pytest.raises(InputError, match=r"torch\.float64"):
        mixer(x.double())
    with pytest.raises(InputError, match="DiagonalState"):
        mixer(x, (torch.zeros(2, 2, 2, 2),))
    with pytest.raises(InputError, match=r"\(2, 2, 2, 2\)"):
        mixer(x, mixer.initial_state(3))
    with pytest.raises(ConfigError, match="d_model='4'"):
        GSSConfig().build("4")  # type: ignore[arg-type]


def test_one_system_for_all_channels() -> None:
    mixer = GSSConfig(d_state=512, norm=True, n_systems=1, random_decay=True).build(64)
    assert mixer.dynamics.log_decay.shape == (1, 256)
    assert abs(float(mixer.dynamics.log_decay.detach().std()) - 1) < 0.2
    with pytest.raises(ConfigError, match="n_systems=3 does not divide the system's 16 channels"):
        GSSConfig(n_systems=3).build(64)
