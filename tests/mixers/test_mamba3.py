"""Mamba-3: the laws, the published recurrence with its absolute angles written out, and what it can express."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from laws import check_mixer_laws
from torch import Tensor

from statewise.errors import ConfigError, InputError
from statewise.insight.selection import hidden_attention, selects
from statewise.mixers.mamba3 import Mamba3, Mamba3Config, turned
from statewise.models.language_model import LanguageModelConfig

SMALL = {"d_state": 8, "d_head": 4, "chunk_length": 5}
OPTIONS = [
    {},
    {"n_groups": 2},
    {"rope_fraction": 1.0, "expand": 1},
    {"d_state": 5, "a_floor": 0.3, "norm_eps": 1e-2, "dt_range": (0.1, 0.5)},
    {"output_norm": True, "decay": "heavy_tail"},
    {"mimo_rank": 1},
    {"mimo_rank": 3, "n_groups": 2},
    {"mimo_rank": 2, "rope_fraction": 1.0, "output_norm": True, "decay": "heavy_tail", "norm_eps": 1e-2},
]


def published(mixer: Mamba3, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """y, theta and S by loops over rows, heads, steps and ranks; theta absolute and modulo 2 pi, as published."""
    c, d_inner, n_heads, dynamics = mixer.config, mixer.d_inner, mixer.n_heads, mixer.dynamics
    ranks = 1 if c.mimo_rank is None else c.mimo_rank
    projected = F.linear(x, mixer.in_proj.weight)
    d_groups = ranks * c.n_groups * c.d_state
    z, v, B, C, dt, A, trapezoid, angle = projected.split(
        [d_inner, d_inner, d_groups, d_groups, *[n_heads] * 3, c.n_angles], -1
    )
    y = torch.zeros_like(v)
    thetas, states = [], []

    def norm(m: Tensor, weight: Tensor) -> Tensor:
        return m / (m.square().mean() + c.norm_eps).sqrt() * weight

    def rotate(m: Tensor, theta: Tensor) -> Tensor:
        m = m.clone()
        for i, angle in enumerate(theta.tolist()):
            a, b = m[2 * i].item(), m[2 * i + 1].item()
            m[2 * i] = a * math.cos(angle) - b * math.sin(angle)
            m[2 * i + 1] = a * math.sin(angle) + b * math.cos(angle)
        return m

    def decay_of(a: Tensor) -> Tensor:
        if c.decay == "softplus":
            return F.softplus(a)
        return 1 + a if a >= 0 else 1 / (1 - a)

    ones = torch.ones(n_heads, ranks, c.d_head, dtype=x.dtype)
    scale_x, scale_z, scale_out = (ones,) * 3 if mixer.mimo is None else (mixer.mimo.x, mixer.mimo.z, mixer.mimo.out)
    bias_B, bias_C = (m.reshape(n_heads, ranks, c.d_state) for m in (dynamics.B_bias, dynamics.C_bias))
    for row in range(x.shape[0]):
        for head in range(n_heads):
            group = head // (n_heads // c.n_groups)
            at = slice(head * c.d_head, (head + 1) * c.d_head)
            S = torch.zeros(c.d_head, c.d_state, dtype=x.dtype)
            theta = torch.zeros(c.n_angles, dtype=x.dtype)
            before = torch.zeros_like(S)
            for t in range(x.shape[1]):
                step = F.softplus(dt[row, t, head] + dynamics.dt_bias[head])
                decay = torch.exp(-step * decay_of(A[row, t, head]).clamp(min=c.a_floor))
                share = torch.sigmoid(trapezoid[row, t, head])
                theta = (theta + math.pi * torch.tanh(angle[row, t]) * step) % (2 * math.pi)
                now = torch.zeros_like(S)
                for r in range(ranks):
                    of = slice((r * c.n_groups + group) * c.d_state, (r * c.n_groups + group + 1) * c.d_state)
                    k = rotate(norm(B[row, t, of], mixer.B_norm.weight) + bias_B[head, r], theta)
                    now = now + torch.outer(v[row, t, at] * scale_x[head, r], k)
                S = decay * S + (1 - share) * step * decay * before + share * step * now
                before = now
                for r in range(ranks):
                    of = slice((r * c.n_groups + group) * c.d_state, (r * c.n_groups + group + 1) * c.d_state)
                    q = rotate(norm(C[row, t, of], mixer.C_norm.weight) + bias_C[head, r], theta)
                    read = S @ q + dynamics.D[head] * v[row, t, at] * scale_x[head, r]
                    if mixer.norm is not None:
                        read = norm(read, mixer.norm.weight[at])
                    gate = z[row, t, at] * scale_z[head, r]
                    y[row, t, at] += scale_out[head, r] * read * gate * torch.sigmoid(gate)
            thetas.append(theta)
            states.append(S)
    shape = (x.shape[0], n_heads)
    return (
        F.linear(y, mixer.out_proj.weight),
        torch.stack(thetas).unflatten(0, shape),
        torch.stack(states).unflatten(0, shape),
    )


def perturbed(options: dict) -> Mamba3:
    torch.manual_seed(0)
    mixer = Mamba3Config(**{**SMALL, **options}).build(8).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(torch.randn_like(parameter) / 3)
    return mixer


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@torch.no_grad()
def test_equal_to_the_published_recurrence(options: dict) -> None:
    """Outputs; and the state, which is the published one turned back by its angle."""
    mixer = perturbed(options)
    x = torch.randn(2, 17, 8, dtype=torch.float64)
    y, state = mixer(x, mixer.initial_state(2))
    expected, theta, S = published(mixer, x)
    torch.testing.assert_close(y, expected, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(turned(state.ssm.h, theta.unsqueeze(2)), S, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("options", [*OPTIONS[:3], *OPTIONS[-2:]], ids=str)
def test_laws(options: dict) -> None:
    torch.manual_seed(0)
    check_mixer_laws(Mamba3Config(**{**SMALL, **options}).build(8), length=17)


@torch.no_grad()
@pytest.mark.parametrize("dt", [1e3, 1e9, 1e16, 1e30])
def test_a_step_so_large_that_all_is_forgotten_spoils_no_angle_behind_it(dt: float) -> None:
    mixer = perturbed({})
    first = [0, *itertools.accumulate(mixer.sizes)]
    mixer.in_proj.weight[:, 0] = 0  # of the first input nothing but dt, and how much of the step is its own: nothing
    mixer.in_proj.weight[first[4] : first[5], 0], mixer.in_proj.weight[first[6] : first[7], 0] = 1, -1e3
    x = torch.randn(1, 17, 8, dtype=torch.float64)
    x[:, :, 0], x[:, 7, 0] = 0, dt
    state, outputs = mixer.initial_state(1), []
    for step in x.split(1, 1):  # each step counts angles from 0
        y, state = mixer(step, state)
        outputs.append(y)
    y, after = mixer(x, mixer.initial_state(1))
    torch.testing.assert_close(y, torch.cat(outputs, 1), atol=1e-12, rtol=0)
    torch.testing.assert_close(after, state, atol=1e-12, rtol=0)


@torch.no_grad()
def test_nothing_to_come_reaches_an_output() -> None:
    mixer = perturbed({})
    x = torch.randn(1, 12, 8, dtype=torch.float64)
    spoilt = x.clone()
    spoilt[:, 7:] = torch.nan
    torch.testing.assert_close(mixer(spoilt[:, :7])[0], mixer(x)[0][:, :7])


@torch.no_grad()
def test_the_state_turns() -> None:
    """With no decay to speak of and pi / 2 a step, what a pair remembers of step 0 comes back after four steps: the
    parity and counting that a real, positive transition cannot do."""
    pair = torch.tensor([1.0, 0.0], dtype=torch.float64)
    seen = [turned(pair, torch.tensor([t * math.pi / 2], dtype=torch.float64)) @ pair for t in range(5)]
    torch.testing.assert_close(torch.stack(seen), torch.tensor([1.0, 0, -1, 0, 1], dtype=torch.float64))


def test_published_sizes_and_initialisation() -> None:
    torch.manual_seed(0)
    mixer = Mamba3Config().build(768)
    assert mixer.in_proj.weight.shape == (2 * 1536 + 2 * 128 + 3 * 24 + 32, 768)
    dt = F.softplus(mixer.dynamics.dt_bias)
    assert 1e-3 * 0.999 <= dt.min() <= dt.max() <= 1e-1 * 1.001
    for parameter in (mixer.dynamics.D, mixer.dynamics.B_bias, mixer.dynamics.C_bias):
        assert (parameter == 1).all()


def test_ranks_as_published() -> None:
    """Sizes and initialisation; with all ranks alike the layer is that of one input, but for what each rank adds."""
    mixer = Mamba3Config(mimo_rank=4, output_norm=True).build(768)
    assert mixer.in_proj.weight.shape == (2 * 1536 + 2 * 4 * 128 + 3 * 24 + 32, 768)
    assert mixer.mimo is not None
    assert mixer.norm is not None
    assert mixer.norm.weight.shape == (1536,)
    assert all(parameter.shape == (24, 4, 64) for parameter in mixer.mimo.parameters())
    assert (mixer.mimo.x == 0.25).all()
    assert (mixer.mimo.z == 1).all()
    assert (mixer.mimo.out == 0.25).all()
    for parameter in (mixer.dynamics.B_bias, mixer.dynamics.C_bias):
        assert parameter.shape == (24, 4, 128)
        assert (parameter == 1).all()


@torch.no_grad()
def test_ranks_have_no_one_map_of_a_head() -> None:
    mixer = perturbed({"mimo_rank": 2})
    with pytest.raises(InputError, match="mimo_rank=2 has no one map of a head"):
        hidden_attention(mixer, torch.randn(1, 5, 8, dtype=torch.float64))
    layers = (Mamba3Config(**SMALL, mimo_rank=2), Mamba3Config(**SMALL))
    model = LanguageModelConfig(vocab_size=9, d_model=8, layers=layers).build()
    assert [selects(block.mixer) for block in model.blocks] == [False, True]


def test_what_is_refused() -> None:
    for options, message in [
        ({"d_state": 0}, "d_state=0"),
        ({"d_state": 2}, "gives 0 pairs"),
        ({"rope_fraction": 1.5}, "rope_fraction=1.5"),
        ({"dt_range": (0.1, 0.01)}, r"dt_range=\(0.1, 0.01\) is out of range; expected two numbers"),
        ({"a_floor": 0.0}, "a_floor"),
        ({"mimo_rank": 0}, "mimo_rank=0"),
        ({"decay": "exp"}, "decay='exp'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            Mamba3Config(**options)
    with pytest.raises(ConfigError, match="does not divide expand"):
        Mamba3Config(d_head=3).build(8)
    with pytest.raises(ConfigError, match="does not divide 4 heads"):
        Mamba3Config(**SMALL, n_groups=3).build(8)
    mixer = Mamba3Config(**SMALL).build(8)
    with pytest.raises(InputError, match=r"needs x of shape \(batch, length, 8\)"):
        mixer(torch.randn(1, 3, 9))
    with pytest.raises(InputError, match="needs state of type Mamba3State"):
        mixer(torch.randn(1, 3, 8), ())
