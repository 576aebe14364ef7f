"""A step of Mamba-2."""

from __future__ import annotations

import math

from statewise.decoding.operands import Place
from statewise.decoding.parts import emit_convolution, emit_normed_output
from statewise.decoding.program import Program
from statewise.decoding.recurrences import Ssd
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.mamba2 import Mamba2


def mamba2_refusal(mixer: Mamba2) -> str | None:
    heads = mixer.heads
    if heads.values == mixer.n_heads and heads.keys == heads.queries:
        return None
    return (
        f'is a Mamba2 with head_pattern="{mixer.config.head_pattern}", but the step has "multi_value" and "multi_head" '
        "alone"
    )


def emit_mamba2(program: Program, mixer: Mamba2, x: Place, residual: Place) -> StateTable:
    config = mixer.config
    state = RecurrentState(program, n_leaves=2)
    z = program.buffer("projected", sum(mixer.sizes))
    values = z.after(mixer.sizes[0])
    B = values.after(mixer.convolved_sizes[0])
    C = B.after(mixer.convolved_sizes[1])
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, z, scales=mixer.projection_scales(), wait=True)
    emit_convolution(program, mixer.convolution, values, state.leaf(0))
    dynamics, gate_first = mixer.dynamics, not config.norm_before_gate
    low, high = config.dt_limit
    ssd = Ssd(
        n_heads=mixer.n_heads,
        d_head=config.d_head,
        n_state=config.d_state,
        heads_per_group=mixer.n_heads // mixer.heads.keys,
        log_decay=dynamics.A_log.double().exp().mul(-math.log2(math.e)),
        D=dynamics.D,
        dt_bias=dynamics.dt_bias,
        low=low,
        high=high,
        x=values,
        z=z,
        dt=values.after(mixer.sizes[1]),
        B=B,
        C=C,
        y=values,
        gated=gate_first,
        state=state.leaf(1),
    )
    program.emit(ssd, wait=True)
    if mixer.norm is None:
        program.linear(mixer.out_proj.weight, mixer.out_proj.bias, values, residual, add=True, wait=True)
        return state
    emit_normed_output(
        program,
        values,
        mixer.out_proj,
        residual,
        weight=mixer.norm.weight,
        eps=mixer.norm.eps,
        n_groups=mixer.norm.n_groups,
        gate=None if gate_first else z,
    )
    return state
