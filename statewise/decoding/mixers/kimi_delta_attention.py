"""A step of Kimi Delta Attention."""

from __future__ import annotations

import math

from statewise.decoding.instructions import Activation
from statewise.decoding.memories import ChannelDecay, RankOneMemory
from statewise.decoding.operands import ActivationKind, DecayKind, Place
from statewise.decoding.parts import emit_convolution, emit_normed_output, emit_units
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.delta_layer import UNIT_EPS
from statewise.mixers.kimi_delta_attention import KDA


def emit_kda(program: Program, mixer: KDA, x: Place, residual: Place) -> StateTable:
    state, n_heads, d_key = RecurrentState(program, n_leaves=2), mixer.n_heads, mixer.d_key
    width = n_heads * d_key
    q = program.buffer("projected", sum(mixer.sizes))
    v, decay_in = q.after(2 * width), q.after(mixer.sizes[0])
    gate_in = decay_in.after(mixer.sizes[1])
    beta = gate_in.after(mixer.sizes[2])
    decay, gate = program.buffer("decay", width), program.buffer("gate", n_heads * mixer.d_value)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, q, wait=True)
    # None of these five reads what another thread writes in another
    program.linear(mixer.decay_proj.weight, mixer.decay_proj.bias, decay_in, decay, wait=False)
    assert mixer.dynamics is not None
    factor = mixer.dynamics.A_log.double().exp().mul(-math.log2(math.e)).repeat_interleave(d_key)
    bias = mixer.dynamics.dt_bias
    program.emit(ChannelDecay(kind=DecayKind.SOFTPLUS, width=width, factor=factor, bias=bias, x=decay))
    program.linear(mixer.gate_proj.weight, mixer.gate_proj.bias, gate_in, gate, wait=False)
    program.emit(Activation(kind=ActivationKind.SIGMOID, width=n_heads, gated=False, x=beta))
    emit_convolution(program, mixer.convolution, q, state.leaf(0))
    query, key = (program.buffer(f"unit_{name}", width, local=True) for name in ("query", "key"))
    emit_units(program, q, query, n_heads, d_key, UNIT_EPS)
    emit_units(program, q.after(width), key, n_heads, d_key, UNIT_EPS)
    rule = RankOneMemory(
        n_heads=n_heads,
        d_value=mixer.d_value,
        d_key=d_key,
        decay=decay,
        read=key,
        erase=None,
        write=key,
        query=query,
        gain=beta,
        most_gain=float(mixer.most_beta),
        decayed=True,
        scale=d_key**-0.5,
        v=v,
        y=v,
        state=state.leaf(1),
    )
    program.emit(rule, wait=True)
    emit_normed_output(
        program,
        v,
        mixer.out_proj,
        residual,
        weight=mixer.norm.weight.repeat(n_heads),
        eps=mixer.norm.eps,
        n_groups=n_heads,
        gate=gate,
        gate_kind=ActivationKind[mixer.norm.activation.upper()],
    )
    return state
