"""What goes on inside, held against loops over rows, heads and steps in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import statewise as sw
from statewise.errors import InputError
from statewise.insight import (
    h3_trace,
    half_lives,
    hidden_attention,
    layer_input,
    layers_of,
    selected,
    states,
    step_sizes,
)
from statewise.mixers.mamba import Mamba
from statewise.mixers.mamba2 import Mamba2

LENGTH, WIDTH = 9, 8
SELECTIVE: dict[str, sw.MixerConfig] = {
    "mamba": sw.MambaConfig(d_state=4),
    "mamba zoh": sw.MambaConfig(d_state=3, method="zoh"),
    "mamba complex": sw.MambaConfig(d_state=4, initialization="lin"),
    "mamba normed": sw.MambaConfig(d_state=4, norm_dt_b_c=True),
    "mamba2": sw.Mamba2Config(d_state=4, d_head=4, chunk_length=4),
    "mamba2 groups": sw.Mamba2Config(d_state=3, d_head=4, n_groups=2, dt_limit=(0.01, 0.05)),
    "mamba3": sw.Mamba3Config(d_state=4, d_head=4),
    "mamba3 groups": sw.Mamba3Config(d_state=6, d_head=2, n_groups=2, rope_fraction=1.0),
}


def built(config: sw.MixerConfig) -> tuple[Any, Tensor]:
    torch.manual_seed(1)
    mixer = config.build(WIDTH).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return mixer, torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)


def mamba_by_loops(mixer: Mamba, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Delta, M and the output, from the equations of the paper: one row, channel, pair of steps at a time."""
    c, d_inner = mixer.config, mixer.d_inner
    projected = x @ mixer.in_proj.weight.T
    u, z = projected[..., :d_inner], projected[..., d_inner:]
    padded = F.pad(u, (0, 0, c.n_taps - 1, 0))
    convolved = sum(mixer.convolution.weight[:, i] * padded[:, c.n_taps - 1 - i :][:, :LENGTH] for i in range(c.n_taps))
    v = F.silu(convolved + mixer.convolution.bias)
    parts = (v @ mixer.x_proj.weight.T).split([mixer.dt_rank, c.d_state, c.d_state], -1)
    if c.norm_dt_b_c:
        parts = tuple(m / (m.square().mean(-1, keepdim=True) + c.norm_eps).sqrt() for m in parts)
    dt = torch.log1p(torch.exp(parts[0] @ mixer.dt_proj.weight.T + mixer.dynamics.dt_bias))
    B, C = parts[1], parts[2]
    A = -mixer.dynamics.A_log.exp()
    if c.is_complex:
        A = torch.complex(A, mixer.dynamics.frequency)
        B, C = (torch.complex(m[..., 0::2], m[..., 1::2]) for m in (B, C))
    M = torch.zeros(2, d_inner, LENGTH, LENGTH, dtype=torch.float64)
    for row in range(2):
        for d in range(d_inner):
            for t in range(LENGTH):
                for s in range(t + 1):
                    held = torch.exp(A[d] * dt[row, s + 1 : t + 1, d].sum())
                    step = dt[row, s, d]
                    enters = (torch.exp(step * A[d]) - 1) / A[d] if c.method == "zoh" else step
                    one = (C[row, t] * held * enters * B[row, s]).sum()
                    M[row, d, t, s] = 2 * one.real if c.is_complex else one
    y = torch.einsum("bdts,bsd->btd", M, v) + mixer.dynamics.D * v
    return dt, M, (y * F.silu(z)) @ mixer.out_proj.weight.T


def mamba2_by_loops(mixer: Mamba2, x: Tensor) -> tuple[Tensor, Tensor]:
    """Delta and M."""
    c, d_groups = mixer.config, mixer.config.n_groups * mixer.config.d_state
    projected = x @ mixer.in_proj.weight.T
    _, convolved, raw = projected.split([mixer.d_inner, mixer.d_inner + 2 * d_groups, mixer.n_heads], -1)
    padded = F.pad(convolved, (0, 0, c.n_taps - 1, 0))
    taps = mixer.convolution.weight
    convolved = F.silu(
        sum(taps[:, i] * padded[:, c.n_taps - 1 - i :][:, :LENGTH] for i in range(c.n_taps)) + mixer.convolution.bias
    )
    _, B, C = convolved.split([mixer.d_inner, d_groups, d_groups], -1)
    dt = torch.log1p(torch.exp(raw + mixer.dynamics.dt_bias)).clamp(*c.dt_limit)
    A = -mixer.dynamics.A_log.exp()
    M = torch.zeros(2, mixer.n_heads, LENGTH, LENGTH, dtype=torch.float64)
    for head in range(mixer.n_heads):
        group = head // (mixer.n_heads // c.n_groups)
        of = slice(group * c.d_state, (group + 1) * c.d_state)
        for row in range(2):
            for t in range(LENGTH):
                for s in range(t + 1):
                    held = torch.exp(A[head] * dt[row, s + 1 : t + 1, head].sum())
                    M[row, head, t, s] = held * dt[row, s, head] * (C[row, t, of] @ B[row, s, of])
    return dt, M


class TestSelection:
    @pytest.mark.parametrize("name", [name for name in SELECTIVE if name.startswith("mamba ") or name == "mamba"])
    @torch.no_grad()
    def test_mamba_is_its_equations(self, name: str) -> None:
        mixer, x = built(SELECTIVE[name])
        dt, M, y = mamba_by_loops(mixer, x)
        torch.testing.assert_close(mixer(x)[0], y)  # the loops are the mixer's
        torch.testing.assert_close(step_sizes(mixer, x), dt)
        torch.testing.assert_close(hidden_attention(mixer, x), M)
        A = -mixer.dynamics.A_log.exp()
        halved = torch.exp(half_lives(mixer, x) * dt.unsqueeze(-1) * A)
        torch.testing.assert_close(halved, torch.full_like(halved, 0.5))

    @pytest.mark.parametrize("name", ["mamba2", "mamba2 groups"])
    @torch.no_grad()
    def test_mamba2_is_its_equations(self, name: str) -> None:
        mixer, x = built(SELECTIVE[name])
        dt, M = mamba2_by_loops(mixer, x)
        torch.testing.assert_close(step_sizes(mixer, x), dt)
        torch.testing.assert_close(hidden_attention(mixer, x), M)
        halved = torch.exp(-half_lives(mixer, x)[..., 0] * dt * mixer.dynamics.A_log.exp())
        torch.testing.assert_close(halved, torch.full_like(halved, 0.5))

    @pytest.mark.parametrize("name", SELECTIVE)
    @torch.no_grad()
    def test_the_rows_applied_to_the_values_are_what_the_mixer_gives(self, name: str) -> None:
        mixer, x = built(SELECTIVE[name])
        found = selected(mixer, x)
        inner = torch.einsum("bhts,bshp->bthp", hidden_attention(mixer, x), found.values)
        inner = (inner + found.D[:, None] * found.values).flatten(-2)
        if isinstance(mixer, Mamba):
            y = mixer.out_proj(inner * F.silu(mixer.in_proj(x).chunk(2, -1)[1]))
        elif isinstance(mixer, Mamba2):
            y = mixer.out_proj(mixer.norm(inner, mixer.in_proj(x)[..., : mixer.d_inner]))
        else:
            y = mixer.out_proj(inner * F.silu(mixer.in_proj(x)[..., : mixer.d_inner]))
        torch.testing.assert_close(y, mixer(x)[0])

    @pytest.mark.parametrize("name", SELECTIVE)
    def test_some_heads(self, name: str) -> None:
        mixer, x = built(SELECTIVE[name])
        chosen = [3, 0]
        torch.testing.assert_close(hidden_attention(mixer, x, chosen), hidden_attention(mixer, x)[:, chosen])
        assert hidden_attention(mixer, x[:, :0], [0]).shape == (2, 1, 0, 0)
        with pytest.raises(InputError, match=r"heads has 99; this layer has heads 0 to"):
            hidden_attention(mixer, x, [99])

    def test_what_selects_nothing(self) -> None:
        mixer, x = built(sw.S4DConfig(d_state=4))
        for function in (step_sizes, half_lives, hidden_attention):
            with pytest.raises(InputError, match=r"S4D selects nothing"):
                function(mixer, x)
        for config in (sw.MambaConfig(d_state=4, bidirectional=True), sw.Mamba2Config(d_head=4, bidirectional=True)):
            mixer, x = built(config)
            with pytest.raises(InputError, match=r"bidirectional Mamba2? is two systems"):
                step_sizes(mixer, x)
        mixer, x = built(sw.H3Config(d_state=4, bidirectional=True))
        with pytest.raises(InputError, match=r"bidirectional H3 also recalls what comes later"):
            h3_trace(mixer, x)


class TestLookup:
    @pytest.mark.parametrize("d_head", [1, 2])
    @torch.no_grad()
    def test_it_is_the_mixers(self, d_head: int) -> None:
        mixer, x = built(sw.H3Config(d_state=4, d_head=d_head))
        found = h3_trace(mixer, x)
        torch.testing.assert_close(mixer.out_proj(found.output), mixer(x)[0])
        shift, diagonal = mixer.build_operators()
        taps, response = shift.taps, diagonal.impulse_response(LENGTH)
        for t in range(LENGTH):
            shifted = sum(taps[:, i] * found.K[:, t - i] for i in range(min(t + 1, taps.shape[1])))
            torch.testing.assert_close(found.shifted[:, t], shifted)
            for h in range(mixer.n_heads):
                of = slice(h * d_head, (h + 1) * d_head)
                pairs = found.shifted[:, :, of].unsqueeze(-1) * found.V[:, :, of].unsqueeze(-2)
                stored = sum(response[h, t - s] * pairs[:, s] for s in range(t + 1))
                torch.testing.assert_close(found.state[:, t, h], stored)

    def test_another_mixer(self) -> None:
        mixer, x = built(sw.S4DConfig(d_state=4))
        with pytest.raises(InputError, match=r"S4D stores no keys beside its values; give an H3 mixer"):
            h3_trace(mixer, x)


class TestStates:
    @pytest.mark.parametrize("config", [sw.S4DConfig(d_state=4), sw.Mamba2Config(d_state=4, d_head=4)])
    @torch.no_grad()
    def test_each_is_the_state_after_so_many_steps(self, config: sw.MixerConfig) -> None:
        mixer, x = built(config)
        found = torch.utils._pytree.tree_leaves(states(mixer, x))
        for t in range(LENGTH):
            _, state = mixer(x[:, : t + 1], mixer.initial_state(2))
            for mine, after in zip(found, torch.utils._pytree.tree_leaves(state)):
                torch.testing.assert_close(mine[:, t], after)

    def test_an_operator_and_a_state_to_begin_with(self) -> None:
        operator = sw.SSD(-torch.rand(1, 4, 2), torch.randn(1, 4, 1, 3), torch.randn(1, 4, 1, 3))
        u, before = torch.randn(1, 4, 2), operator.initial_state(1)
        _, end = operator(u, before)
        torch.testing.assert_close(states(operator, u, before).h[:, -1], end.h)

    def test_what_has_no_constant_state(self) -> None:
        mixer = sw.AttentionConfig(n_heads=2).build(WIDTH)
        for one in (mixer, sw.AttentionConfig(n_heads=2, window=32).build(WIDTH)):
            with pytest.raises(InputError, match=r"the state of Attention grows with what it reads"):
                states(one, torch.randn(1, 4, WIDTH))
        with pytest.raises(InputError, match=r"x has no steps"):
            states(sw.S4DConfig(d_state=4).build(WIDTH), torch.randn(1, 0, WIDTH))


def test_the_input_of_a_layer_is_what_its_mixer_is_called_with() -> None:
    torch.manual_seed(0)
    layers = (sw.Mamba2Config(d_state=4, d_head=4), sw.AttentionConfig(n_heads=2))
    model = sw.LanguageModelConfig(vocab_size=9, d_model=WIDTH, layers=layers, embedding_dropout=0.5).build()
    tokens = torch.randint(9, (1, 6))
    mixer, x = layer_input(model, tokens, -1)
    assert mixer is model.blocks[1].mixer
    assert list(layers_of(model, Mamba2)) == [0]
    model.eval()
    with torch.no_grad():
        first = model.blocks[0]
        residual = model.embedding(tokens)
        residual = residual + first.mixer(first.mixer_norm(residual))[0]
        torch.testing.assert_close(x, model.blocks[1].mixer_norm(residual))
    with pytest.raises(InputError, match=r"layer=2 is not one of this LanguageModel; it has layers 0 to 1"):
        layer_input(model, tokens, 2)


def test_nothing_decays_where_the_step_is_zero() -> None:
    mixer = sw.MambaConfig(d_state=4).build(WIDTH)
    with torch.no_grad():
        mixer.dt_proj.weight.zero_()
        mixer.dynamics.dt_bias.fill_(-math.inf)
    assert bool(half_lives(mixer, torch.randn(1, 3, WIDTH)).isinf().all())
