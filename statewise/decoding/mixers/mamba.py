"""A step of Mamba."""

from __future__ import annotations

import math

from statewise.decoding.operands import Place
from statewise.decoding.parts import emit_convolution, emit_norms
from statewise.decoding.program import Program
from statewise.decoding.recurrences import Selective
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.mamba import NORMED, Mamba


def mamba_refusal(mixer: Mamba) -> str | None:
    return "is a Mamba with complex A, but the step needs a real A" if mixer.config.is_complex else None


def emit_mamba(program: Program, mixer: Mamba, x: Place, residual: Place) -> StateTable:
    config, width, n_state = mixer.config, mixer.d_inner, mixer.config.d_state
    state = RecurrentState(program, n_leaves=2)
    projected = program.buffer("projected", 2 * width)
    selected = program.buffer("selected", sum(mixer.sizes))
    dt = program.buffer("dt", width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, projected, wait=True)
    emit_convolution(program, mixer.convolution, projected, state.leaf(0))
    program.linear(mixer.x_proj.weight, mixer.x_proj.bias, projected, selected, wait=True)
    raw_dt, B, C = _parts(mixer, selected)
    if config.norm_dt_b_c:  # every thread norms all of it for itself
        normed = _parts(mixer, program.buffer("normed_selected", sum(mixer.sizes), local=True))
        weights = [mixer.norm_weights[name] if config.norm_weights else None for name in NORMED]
        for size, before, after, weight in zip(mixer.sizes, (raw_dt, B, C), normed, weights):
            emit_norms(program, before, after, size, weight=weight, eps=config.norm_eps)
        raw_dt, B, C = normed
    # A thread's share of dt is its share of the channels: it need not wait
    program.linear(mixer.dt_proj.weight, mixer.dt_proj.bias, raw_dt, dt, wait=False)
    dynamics = mixer.dynamics
    selective = Selective(
        width=width,
        n_state=n_state,
        zero_order_hold=config.method == "zoh",
        log_decay=dynamics.A_log.double().exp().mul(-math.log2(math.e)),
        D=dynamics.D,
        dt_bias=dynamics.dt_bias,
        u=projected,
        z=projected.after(width),
        dt=dt,
        B=B,
        C=C,
        y=projected,
        state=state.leaf(1),
    )
    program.emit(selective, wait=True)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, projected, residual, add=True, wait=True)
    return state


def _parts(mixer: Mamba, selected: Place) -> tuple[Place, Place, Place]:
    """dt, B and C."""
    B = selected.after(mixer.sizes[0])
    return selected, B, B.after(mixer.sizes[1])
