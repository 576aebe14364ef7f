"""A step of Mamba-3.

The state is what the last step sees, so that a step turns it back and adds keys that are not turned: no query or key of
its own token is.
"""

from __future__ import annotations

import torch

from statewise.decoding.instructions import Multiply
from statewise.decoding.operands import ActivationKind, Place
from statewise.decoding.parts import emit_normed_output, emit_norms
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.decoding.turning import JoinRanks, TurningKeys, TurningMemory
from statewise.mixers.mamba3 import Mamba3


def emit_mamba3(program: Program, mixer: Mamba3, x: Place, residual: Place) -> StateTable:
    state = RecurrentState(program, n_leaves=3)  # the memory, the value and the keys of the last step
    z = program.buffer("projected", sum(mixer.sizes))
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, z, wait=True)
    n_ranks, width = mixer.config.mimo_rank or 1, mixer.d_inner
    values = z.after(width)
    y = values if mixer.mimo is None else program.buffer("ranks", n_ranks * width)
    _emit_memory(program, mixer, values, y, state)
    if mixer.mimo is not None:
        _emit_joined(program, mixer, z, y, residual)
    elif mixer.norm is not None:
        weight, eps = mixer.norm.weight, mixer.norm.eps
        emit_normed_output(program, y, mixer.out_proj, residual, weight=weight, eps=eps, n_groups=mixer.n_heads, gate=z)
    else:
        program.emit(Multiply(kind=ActivationKind.SILU, width=width, x=y, by=z), wait=True)
        program.linear(mixer.out_proj.weight, mixer.out_proj.bias, y, residual, add=True, wait=True)
    return state


def _emit_memory(program: Program, mixer: Mamba3, values: Place, y: Place, state: RecurrentState) -> None:
    """Keys and queries, and what the memory reads to them. All threads wait after it where heads or ranks are normed,
    which every thread then does by itself."""
    config, dynamics, n_heads = mixer.config, mixer.dynamics, mixer.n_heads
    n_ranks, n = config.mimo_rank or 1, config.d_state
    d_groups = n_ranks * config.n_groups * n
    B = values.after(mixer.d_inner)
    dt = B.after(2 * d_groups)
    normed = program.buffer("normed_keys", 2 * d_groups, local=True)
    weights = [norm.weight.repeat(n_ranks * config.n_groups) for norm in (mixer.B_norm, mixer.C_norm)]
    n_groups = 2 * n_ranks * config.n_groups
    emit_norms(program, B, normed, 2 * d_groups, weight=torch.cat(weights), eps=config.norm_eps, n_groups=n_groups)
    same, crossed = (program.buffer(name, n_heads * n) for name in ("same", "crossed"))
    past, write, query = (program.buffer(f"{name}_keys", n_heads * n_ranks * n) for name in ("past", "write", "query"))
    keys = TurningKeys(
        n_heads=n_heads,
        n_ranks=n_ranks,
        n_groups=config.n_groups,
        d_state=n,
        n_angles=config.n_angles,
        heavy_tail=config.decay == "heavy_tail",
        least=float(config.a_floor),
        dt_bias=dynamics.dt_bias,
        key_bias=dynamics.B_bias.reshape(n_heads, -1),
        query_bias=dynamics.C_bias.reshape(n_heads, -1),
        dt=dt,
        rate=dt.after(n_heads),
        share=dt.after(2 * n_heads),
        angle=dt.after(3 * n_heads),
        turns=program.buffer("turns", config.n_angles, local=True),
        key=normed,
        query_in=normed.after(d_groups),
        same=same,
        crossed=crossed,
        past=past,
        write=write,
        query=query,
        state=state.leaf(2),
    )
    program.emit(keys, wait=True)
    memory = TurningMemory(
        n_heads=n_heads,
        n_ranks=n_ranks,
        d_head=config.d_head,
        d_state=n,
        D=dynamics.D,
        scales=None if mixer.mimo is None else mixer.mimo.x,
        same=same,
        crossed=crossed,
        past=past,
        write=write,
        query=query,
        v=values,
        inputs=program.buffer("inputs", 2 * n_ranks, local=True),
        y=y,
        state=state.leaf(0),
        last=state.leaf(1),
    )
    program.emit(memory, wait=mixer.norm is not None)


def _emit_joined(program: Program, mixer: Mamba3, z: Place, y: Place, residual: Place) -> None:
    """residual += W of the ranks' outputs, each normed where there is a norm, gated and joined."""
    assert mixer.mimo is not None
    n_ranks, width = mixer.mimo.x.shape[1], mixer.d_inner
    joined = y
    if mixer.norm is not None:
        joined = program.buffer("normed_ranks", n_ranks * width, local=True)
        weight, n_groups = mixer.norm.weight.repeat(n_ranks), n_ranks * mixer.n_heads
        emit_norms(program, y, joined, n_ranks * width, weight=weight, eps=mixer.norm.eps, n_groups=n_groups)
    join = JoinRanks(
        width=width,
        n_ranks=n_ranks,
        gate_scales=mixer.mimo.z.transpose(0, 1).reshape(n_ranks, width),
        out_scales=mixer.mimo.out.transpose(0, 1).reshape(n_ranks, width),
        z=z,
        y=joined,
        output=joined,
    )
    program.emit(join, wait=mixer.norm is None)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, joined, residual, add=True, wait=True)
