"""Mamba-3 and linear attention, in pieces, against their equations step by step in float64, with large steps too."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fuzz.draw import Draw, expect_close
from statewise import kernels, native
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.mixers.mamba3 import Mamba3, Mamba3Config

D = torch.float64


def _in_pieces(draw: Draw, mixer: Any, x: Tensor) -> Tensor:
    """The mixer's outputs, at times by several calls."""
    cuts = sorted(draw.integer(0, x.shape[1]) for _ in range(draw.choice([0, 1, 3])))
    draw.note("cuts", cuts)
    state, outputs = mixer.initial_state(len(x)), []
    with torch.no_grad(), kernels.use(draw.choice(["c", "torch"] if native.available() else ["torch"], "backend")):
        for begin, end in zip([0, *cuts], [*cuts, x.shape[1]]):
            y, state = mixer(x[:, begin:end], state)
            outputs.append(y)
    return torch.cat(outputs, 1)


def mamba3(draw: Draw) -> None:
    """S_t = alpha S_{t-1} + beta alpha v_{t-1} k_{t-1}^T + gamma v k^T, k and q turned: arXiv:2603.15569.

    Here the state turns, by the angle of each step, in place of keys and queries by the sum of all of them.
    """
    config = Mamba3Config(
        d_state=draw.choice([2, 5, 8], "d_state"), d_head=4, n_groups=draw.choice([1, 2], "n_groups"),
        rope_fraction=1.0, chunk_length=draw.choice([5, 64], "chunk_length"),
        mimo_rank=draw.choice([None, 1, 3], "mimo_rank"), decay=draw.choice(["softplus", "heavy_tail"], "decay"),
    )  # fmt: skip
    torch.manual_seed(draw.integer(0, 10**6))
    mixer = config.build(8).double()
    first = mixer.sizes[0] + mixer.sizes[1] + mixer.sizes[2] + mixer.sizes[3]
    with torch.no_grad():  # the first input is read by dt alone, and where it is large a step adds nothing of its own
        mixer.in_proj.weight[:, 0] = 0
        mixer.in_proj.weight[first : first + mixer.n_heads, 0] = 1
        mixer.in_proj.weight[first + 2 * mixer.n_heads : first + 3 * mixer.n_heads, 0] = -1e3
    x = draw.normal(draw.size(2, "batch"), draw.size(90, "length"), 8)
    x[..., 0] = torch.where(x[..., 0] > 1.5, draw.log_uniform(1e6, 1e30, "largest step"), 0)
    expect_close("Mamba-3", _in_pieces(draw, mixer, x), _mamba3_by_steps(mixer, x), 1e-11)


@torch.no_grad()
def _mamba3_by_steps(mixer: Mamba3, x: Tensor) -> Tensor:
    config, dynamics, heads = mixer.config, mixer.dynamics, mixer.n_heads
    z, value, B, C, dt, A, trapezoid, angle = F.linear(x, mixer.in_proj.weight).split(mixer.sizes, -1)
    dt, share = F.softplus(dt + dynamics.dt_bias), torch.sigmoid(trapezoid)
    rate = F.softplus(A) if config.decay == "softplus" else torch.where(A > 0, 1 + A, 1 / (1 - A.clamp(max=0)))
    decay = torch.exp(-dt * rate.clamp(min=config.a_floor))
    turns = math.pi * torch.tanh(angle)[:, :, None] * dt[..., None]

    def vectors(m: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        m = m.unflatten(-1, (ranks, config.n_groups, config.d_state))
        m = m / (m.square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight
        return m.repeat_interleave(heads // config.n_groups, 3).transpose(2, 3) + bias.reshape(heads, ranks, -1)

    ranks = 1 if config.mimo_rank is None else config.mimo_rank
    ones = torch.ones(heads, 1, config.d_head, dtype=D)
    up, gate, down = (ones,) * 3 if mixer.mimo is None else (mixer.mimo.x, mixer.mimo.z, mixer.mimo.out)
    keys = vectors(B, mixer.B_norm.weight, dynamics.B_bias)
    queries = vectors(C, mixer.C_norm.weight, dynamics.C_bias)
    values, gates = (m.unflatten(-1, (heads, 1, config.d_head)) * by for m, by in ((value, up), (z, gate)))
    S = torch.zeros(len(x), heads, config.d_head, config.d_state, dtype=D)
    added, outputs = torch.zeros_like(S), []  # added: v k^T of the step before
    for t in range(x.shape[1]):
        a, own = decay[:, t, :, None, None], share[:, t, :, None, None]
        step, back = dt[:, t, :, None, None], -turns[:, t, :, None]
        S = a * _turned(S, back) + (1 - own) * step * a * _turned(added, back)
        added = torch.einsum("bhrp,bhrn->bhpn", values[:, t], keys[:, t])
        S = S + own * step * added
        y = torch.einsum("bhpn,bhrn->bhrp", S, queries[:, t]) + dynamics.D[:, None, None] * values[:, t]
        outputs.append((down * y * F.silu(gates[:, t])).sum(2))
    y = torch.stack(outputs, 1).flatten(2) if outputs else torch.zeros_like(z)
    return F.linear(y, mixer.out_proj.weight)


def _turned(m: Tensor, angles: Tensor) -> Tensor:
    pairs = 2 * angles.shape[-1]
    numbers = torch.complex(m[..., 0:pairs:2], m[..., 1:pairs:2]) * torch.exp(1j * angles)
    return torch.cat([torch.view_as_real(numbers).flatten(-2), m[..., pairs:]], -1)


def linear_attention(draw: Draw) -> None:
    """o_t = sum over s <= t of (phi(q_t) . phi(k_s)) v_s, over the sum of the weights: arXiv:2006.16236, eq. 9."""
    heads, normalize = draw.choice([1, 2], "heads"), draw.chance(0.5, "normalize")
    feature_map = draw.choice(["elu", "relu", "identity"] if not normalize else ["elu", "relu"], "feature_map")
    chunk_length = draw.choice([1, 7, 64], "chunk_length")
    config = LinearAttentionConfig(
        n_heads=heads, feature_map=feature_map, normalize=normalize, chunk_length=chunk_length
    )
    torch.manual_seed(draw.integer(0, 10**6))
    mixer = config.build(8).double()
    x = draw.normal(draw.size(3, "batch"), draw.size(140, "length"), 8) * draw.log_uniform(1e-2, 1e2, "scale of x")
    maps = {
        "elu": lambda m: torch.where(m > 0, m + 1, m.exp()),
        "relu": lambda m: m.clamp(min=0),
        "identity": lambda m: m,
    }
    with torch.no_grad():
        q, k, v = (m.unflatten(-1, (heads, -1)) for m in F.linear(x, mixer.in_proj.weight).split(8, -1))
        weights = torch.einsum("bthn,bshn->bhts", maps[feature_map](q), maps[feature_map](k)).tril()
        y = torch.einsum("bhts,bshp->bthp", weights, v)
        if normalize:
            y = y / weights.sum(-1).clamp(min=config.eps).transpose(1, 2)[..., None]
        wanted = F.linear(y.flatten(2), mixer.out_proj.weight)
    expect_close("linear attention", _in_pieces(draw, mixer, x), wanted, 1e-10)
