"""Mamba-2: the laws, the published equations written out once more, and every option."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from laws import check_mixer_laws
from torch import Tensor

from statewise.errors import ConfigError, InputError
from statewise.mixers.gated_norm import GatedRMSNorm
from statewise.mixers.mamba2 import Mamba2, Mamba2Config

SMALL = {"d_state": 4, "d_head": 4, "chunk_length": 5}


def published(mixer: Mamba2, x: Tensor) -> Tensor:
    """SPEC's block by loops over heads and steps, from the parameters alone: in_proj order z, x, B, C, dt."""
    c, d_inner, n_heads = mixer.config, mixer.d_inner, mixer.n_heads
    projected = F.linear(x, mixer.in_proj.weight, mixer.in_proj.bias)
    z = projected[..., :d_inner]
    xBC = projected[..., d_inner : 2 * d_inner + 2 * c.n_groups * c.d_state]
    raw_dt = projected[..., -n_heads:]
    taps, bias = mixer.convolution.weight, mixer.convolution.bias
    conv1d = taps.flip(1).unsqueeze(1)  # as nn.Conv1d stores it, oldest first
    xBC = F.silu(F.conv1d(F.pad(xBC.mT, (c.n_taps - 1, 0)), conv1d, bias, groups=conv1d.shape[0]).mT)
    values = xBC[..., :d_inner]
    B = xBC[..., d_inner : d_inner + c.n_groups * c.d_state]
    C = xBC[..., d_inner + c.n_groups * c.d_state :]
    dt = torch.log1p(torch.exp(raw_dt + mixer.dynamics.dt_bias)).clamp(*c.dt_limit)
    A = -torch.exp(mixer.dynamics.A_log)
    y = torch.zeros_like(values)
    for row in range(x.shape[0]):
        for head in range(n_heads):
            group = head // (n_heads // c.n_groups)
            at = slice(head * c.d_head, (head + 1) * c.d_head)
            of = slice(group * c.d_state, (group + 1) * c.d_state)
            h = torch.zeros(c.d_head, c.d_state, dtype=x.dtype)
            for t in range(x.shape[1]):
                v, step = values[row, t, at], dt[row, t, head]
                h = torch.exp(step * A[head]) * h + step * torch.outer(v, B[row, t, of])
                y[row, t, at] = h @ C[row, t, of] + mixer.dynamics.D[head] * v
    n_groups = c.n_groups if c.norm_groups is None else c.norm_groups

    def norm(u: Tensor) -> Tensor:
        parts = u.reshape(*u.shape[:-1], n_groups, -1)
        return (parts / (parts.square().mean(-1, keepdim=True) + c.norm_eps).sqrt()).reshape(u.shape)

    gate = z * torch.sigmoid(z)
    y = norm(y) * mixer.norm.weight * gate if c.norm_before_gate else norm(y * gate) * mixer.norm.weight
    return F.linear(y, mixer.out_proj.weight, mixer.out_proj.bias)


OPTIONS = [
    {},
    {"n_groups": 2},
    {"n_groups": 2, "norm_groups": 1},
    {"norm_groups": 4, "norm_before_gate": True},
    {"bias": True, "convolution_bias": False},
    {"dt_limit": (0.01, 0.05), "a_range": (0.5, 2.0), "n_taps": 2},
    {"expand": 1, "n_taps": 1, "norm_eps": 1e-3},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equal_to_the_published_block(options: dict) -> None:
    torch.manual_seed(0)
    mixer = Mamba2Config(**{**SMALL, **options}).build(8).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(torch.randn_like(parameter) / 4)
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(mixer(x)[0], published(mixer, x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize(
    "options", [{}, {"n_groups": 2, "bias": True}, {"dt_limit": (0.02, 0.06), "norm_before_gate": True}], ids=str
)
def test_laws(options: dict) -> None:
    torch.manual_seed(0)
    check_mixer_laws(Mamba2Config(**{**SMALL, **options}).build(8), length=23)


@pytest.mark.parametrize("pattern", ["multi_head", "multi_query", "multi_key", "multi_value"])
@pytest.mark.parametrize("n_groups", [1, 2])
def test_head_patterns_are_heads_repeated_by_hand(pattern: str, n_groups: int) -> None:
    """A layer of full heads, with the rows and the taps of what is shared repeated, is the same; and the laws hold."""
    if pattern == "multi_head" and n_groups > 1:
        with pytest.raises(ConfigError, match="leave it out"):
            Mamba2Config(**SMALL, head_pattern=pattern, n_groups=n_groups).build(8)
        return
    torch.manual_seed(0)
    mixer = Mamba2Config(**SMALL, head_pattern=pattern, n_groups=n_groups, norm_groups=1).build(8).double()
    full = Mamba2Config(**SMALL, head_pattern="multi_head", norm_groups=1).build(8).double()
    own = {"multi_head": (4, 4, 4), "multi_query": (1, 1, 4), "multi_key": (1, 4, 1), "multi_value": (4, 1, 1)}[pattern]
    counts = tuple(n if n == 4 else n_groups for n in own)  # x, B, C
    assert mixer.convolved_sizes == [4 * n for n in counts]

    def repeated(rows: Tensor) -> Tensor:
        parts = rows.split(mixer.convolved_sizes)
        return torch.cat(
            [p.unflatten(0, (n, 4)).repeat_interleave(4 // n, 0).flatten(0, 1) for p, n in zip(parts, counts)]
        )

    with torch.no_grad():
        others = {name: m for name, m in mixer.state_dict().items() if "conv" not in name and "in_proj" not in name}
        assert not full.load_state_dict(others, strict=False).unexpected_keys
        z, xBC, dt = mixer.in_proj.weight.split(mixer.sizes)
        full.in_proj.weight.copy_(torch.cat([z, repeated(xBC), dt]))
        full.convolution.weight.copy_(repeated(mixer.convolution.weight))
        full.convolution.bias.copy_(repeated(mixer.convolution.bias))
    x = torch.randn(2, 13, 8, dtype=torch.float64)
    torch.testing.assert_close(mixer(x)[0], full(x)[0])
    torch.testing.assert_close(full(x)[0], _by_pattern(mixer, x))
    check_mixer_laws(mixer, length=9)


def _by_pattern(mixer: Mamba2, x: Tensor) -> Tensor:
    """The equations with the head's own, or its group's, of each of x, B and C."""
    c, length = mixer.config, x.shape[1]
    z, xBC, dt = F.linear(x, mixer.in_proj.weight).split(mixer.sizes, -1)
    padded = F.pad(xBC.mT, (c.n_taps - 1, 0))
    taps = mixer.convolution.weight.flip(1).unsqueeze(1)
    xBC = F.silu(F.conv1d(padded, taps, mixer.convolution.bias, groups=len(taps)).mT)
    parts = [m.unflatten(-1, (-1, 4)) for m in xBC.split(mixer.convolved_sizes, -1)]
    dt = F.softplus(dt + mixer.dynamics.dt_bias)
    outputs = []
    for h in range(4):
        values, B, C = (m[:, :, h * m.shape[2] // 4] for m in parts)
        state, steps = torch.zeros(len(x), 4, 4, dtype=x.dtype), []
        for t in range(length):
            step = dt[:, t, h, None, None]
            state = torch.exp(-step * mixer.dynamics.A_log[h].exp()) * state
            state = state + step * values[:, t, :, None] * B[:, t, None]
            steps.append((state * C[:, t, None]).sum(-1) + mixer.dynamics.D[h] * values[:, t])
        outputs.append(torch.stack(steps, 1))
    gated = torch.cat(outputs, -1) * F.silu(z)
    normed = gated / (gated.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() * mixer.norm.weight
    return F.linear(normed, mixer.out_proj.weight)


def test_dt_limit_is_obeyed_by_every_form() -> None:
    """Chunked, quadratic and step by step: with dt clamped to one value the decay is the same everywhere."""
    torch.manual_seed(0)
    mixer = Mamba2Config(**SMALL, dt_limit=(0.5, 0.5 + 1e-12)).build(8).double()
    x = torch.randn(1, 40, 8, dtype=torch.float64)
    whole, _ = mixer(x)
    state, steps = mixer.initial_state(1), []
    for t in range(40):
        y, state = mixer(x[:, t : t + 1], state)
        steps.append(y)
    torch.testing.assert_close(torch.cat(steps, 1), whole)
    torch.testing.assert_close(mixer(x[:, :10])[0], whole[:, :10])  # short enough for the quadratic form
    torch.testing.assert_close(published(mixer, x).detach(), whole.detach())


def test_published_initialisation() -> None:
    torch.manual_seed(0)
    mixer = Mamba2Config(d_head=4).build(256)
    A, dt = mixer.dynamics.A_log.exp(), F.softplus(mixer.dynamics.dt_bias)
    assert mixer.n_heads == 128
    assert 1 <= A.min() < 2 < 15 < A.max() <= 16
    assert 1e-3 * 0.999 <= dt.min() < 2e-3 < 5e-2 < dt.max() <= 1e-1 * 1.001
    assert (mixer.dynamics.D == 1).all()
    assert mixer.in_proj.weight.abs().max() <= 1 / math.sqrt(256)
    unscaled = mixer.out_proj.weight.std()
    mixer.reset_parameters(residual_scale=0.1)
    assert 0.09 < mixer.out_proj.weight.std() / unscaled < 0.11
    floored = Mamba2Config(d_head=4, dt_range=(1e-6, 1e-5), dt_floor=1e-3).build(256)
    torch.testing.assert_close(F.softplus(floored.dynamics.dt_bias), torch.full((128,), 1e-3))


def test_published_sizes() -> None:
    """mamba2-130m (SPEC C3): in_proj 3352 x 768, 1792 convolved channels, 24 heads."""
    mixer = Mamba2Config().build(768)
    assert mixer.in_proj.weight.shape == (3352, 768)
    assert mixer.convolution.weight.shape == (1792, 4)
    assert mixer.n_heads == 24
    assert mixer.out_proj.weight.shape == (768, 1536)


def test_autocast_keeps_the_dynamics_and_the_state_in_float32() -> None:
    torch.manual_seed(0)
    mixer = Mamba2Config(**SMALL).build(16)
    x = torch.randn(2, 30, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y, state = mixer(x, mixer.initial_state(2))
    want, _ = mixer(x)
    assert state is not None
    assert state.ssm.h.dtype == state.convolution.inputs.dtype == torch.float32
    assert (y - want).abs().max() < 0.05 * want.abs().max()


def test_a_bfloat16_mixer_keeps_its_dynamics_wide() -> None:
    mixer = Mamba2Config(**SMALL).build(8).to(torch.bfloat16)
    dt, log_a = mixer.dynamics(torch.randn(1, 3, 4, dtype=torch.bfloat16))
    assert dt.dtype == log_a.dtype == torch.float32
    state = mixer.initial_state(1, dtype=torch.bfloat16)
    assert state.ssm.h.dtype == state.convolution.inputs.dtype == torch.float32


def test_built_is_initialised() -> None:
    assert (Mamba2Config(**SMALL, bias=True).build(8).in_proj.bias == 0).all()


def test_gated_norm_groups_are_normed_by_themselves() -> None:
    x, z = torch.randn(3, 8), torch.randn(3, 8)
    whole = GatedRMSNorm(8, n_groups=2)(x, z)
    halves = [GatedRMSNorm(4)(a, b) for a, b in zip(x.chunk(2, -1), z.chunk(2, -1))]
    torch.testing.assert_close(whole, torch.cat(halves, -1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"d_head": 5}, ["d_head=5", "16"]),
        ({"n_groups": 3}, ["n_groups=3"]),
        ({"norm_groups": 3}, ["norm_groups=3"]),
        ({"norm_groups": 0}, ["norm_groups=0"]),
        ({"d_state": 0}, ["d_state=0"]),
        ({"a_range": (0.0, 1.0)}, ["a_range"]),
        ({"dt_range": (1e-1, 1e-3)}, ["dt_range"]),
        ({"dt_limit": (1.0, 0.5)}, ["dt_limit"]),
        ({"dt_limit": 0.5}, ["dt_limit=0.5", "two numbers"]),
        ({"dt_range": (0.1,)}, ["dt_range"]),
        ({"dt_floor": 0.0}, ["dt_floor"]),
    ],
)
def test_bad_options_are_refused(options: dict, words: list[str]) -> None:
    with pytest.raises(ConfigError) as error:
        Mamba2Config(**{**SMALL, **options}).build(8)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("shape", [(2, 8), (1, 2, 9)])
def test_inputs_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"\(batch, length, 8\)"):
        Mamba2Config(**SMALL).build(8)(torch.randn(shape))


def test_a_layer_of_ones_own_cannot_go_round_the_checks() -> None:
    with pytest.raises(TypeError, match=r"Own defines forward, .* define mix instead"):

        class Own(Mamba2):
            def forward(self, x: Tensor, state: None = None) -> Tensor:  # type: ignore[override]
                return x


def test_a_state_of_another_kind_is_refused() -> None:
    with pytest.raises(InputError, match="Mamba2State"):
        Mamba2Config(**SMALL).build(8)(torch.randn(1, 2, 8), (1, 2))


def test_a_state_of_another_batch_is_refused() -> None:
    mixer = Mamba2Config(**SMALL).build(8)
    with pytest.raises(InputError, match=r"\(2, 3, 24\)"):
        mixer(torch.randn(2, 3, 8), mixer.initial_state(3))
