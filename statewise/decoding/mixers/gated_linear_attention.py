"""A step of gated linear attention."""

from __future__ import annotations

import math

import torch

from statewise.decoding.memories import ChannelDecay, RankOneMemory
from statewise.decoding.operands import DecayKind, Place
from statewise.decoding.parts import emit_normed_output
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.gated_linear_attention import GLA


def emit_gla(program: Program, mixer: GLA, x: Place, residual: Place) -> StateTable:
    state, n_heads, d_key = RecurrentState(program, n_leaves=1), mixer.n_heads, mixer.d_key
    width = n_heads * d_key
    q = program.buffer("projected", sum(mixer.sizes))
    k, v = q.after(width), q.after(2 * width)
    z = v.after(mixer.sizes[2])
    decay = program.buffer("decay", width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, q, wait=True)
    program.linear(mixer.decay_proj.weight, mixer.decay_proj.bias, z.after(mixer.sizes[3]), decay, wait=False)
    factor = torch.full((width,), -math.log2(math.e) / mixer.config.temperature)
    kind = DecayKind.SOFTPLUS_OF_NEGATIVE  # log sigmoid(x) = -softplus(-x)
    program.emit(ChannelDecay(kind=kind, width=width, factor=factor, bias=None, x=decay), wait=True)
    memory = RankOneMemory(
        n_heads=n_heads,
        d_value=mixer.d_value,
        d_key=d_key,
        decay=decay,
        read=None,
        erase=None,
        write=k,
        query=q,
        gain=None,
        most_gain=1.0,
        decayed=False,
        scale=d_key**-0.5,
        v=v,
        y=v,
        state=state.leaf(0),
    )
    program.emit(memory, wait=True)
    weight = mixer.norm.weight.repeat(n_heads)
    eps, out = mixer.norm.eps, mixer.out_proj
    emit_normed_output(program, v, out, residual, weight=weight, eps=eps, n_groups=n_heads, gate=z)
    return state
