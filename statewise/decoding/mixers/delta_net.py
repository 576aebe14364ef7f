"""A step of DeltaNet and of Gated DeltaNet."""

from __future__ import annotations

import math

import torch

from statewise.decoding.operands import Place
from statewise.decoding.parts import emit_convolution, emit_normed_output
from statewise.decoding.program import Program
from statewise.decoding.recurrences import DeltaMemory
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.delta_layer import UNIT_EPS
from statewise.mixers.delta_net import DeltaNet, GatedDeltaNet


def emit_delta_net(program: Program, mixer: DeltaNet | GatedDeltaNet, x: Place, residual: Place) -> StateTable:
    state = RecurrentState(program, n_leaves=2)
    q = program.buffer("projected", sum(mixer.sizes))
    k = q.after(mixer.convolved_sizes[0])
    v = k.after(mixer.convolved_sizes[1])
    gate, beta = q.after(mixer.sizes[0]), q.after(sum(mixer.sizes[:-1]))
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, q, wait=True)
    emit_convolution(program, mixer.convolution, q, state.leaf(0))
    raw, log_decay, dt_bias = beta, torch.zeros(mixer.n_heads), torch.zeros(mixer.n_heads)  # a decay of 2^0
    if isinstance(mixer, GatedDeltaNet):
        assert mixer.dynamics is not None
        raw = q.after(sum(mixer.sizes[:-2]))
        log_decay = mixer.dynamics.A_log.double().exp().mul(-math.log2(math.e))
        dt_bias = mixer.dynamics.dt_bias
    rule = DeltaMemory(
        n_heads=mixer.n_heads,
        d_value=mixer.d_value,
        d_key=mixer.d_key,
        heads_per_group=mixer.n_heads // mixer.n_key_heads,
        log_decay=log_decay,
        dt_bias=dt_bias,
        most_beta=float(mixer.most_beta),
        epsilon=UNIT_EPS,
        q=q,
        k=k,
        v=v,
        raw=raw,
        beta=beta,
        y=v,
        state=state.leaf(1),
    )
    program.emit(rule, wait=True)
    emit_normed_output(
        program,
        v,
        mixer.out_proj,
        residual,
        weight=mixer.norm.weight.repeat(mixer.n_heads),
        eps=mixer.norm.eps,
        n_groups=mixer.n_heads,
        gate=gate if mixer.config.gate else None,
    )
    return state
