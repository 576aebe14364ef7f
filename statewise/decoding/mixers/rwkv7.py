"""A step of RWKV-7's time mixing."""

from __future__ import annotations

import math

import torch

from statewise.decoding.instructions import Activation
from statewise.decoding.memories import ChannelDecay, MixValues, RankOneMemory, Rwkv7Bonus, Rwkv7Keys, TokenShift
from statewise.decoding.operands import ActivationKind, DecayKind, NormKind, Place
from statewise.decoding.parts import emit_norms
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.rwkv7 import LEAST_LOG_DECAY, MIXES, RWKV7, UNIT_EPS


def emit_rwkv7(program: Program, mixer: RWKV7, x: Place, residual: Place) -> StateTable:
    width, n_heads, d_head = mixer.d_model, mixer.n_heads, mixer.config.d_head
    state = RecurrentState(program, n_leaves=2)
    shifted = program.buffer("shifted", len(MIXES) * width)
    mixes = {name: shifted.after(i * width) for i, name in enumerate(MIXES)}
    mu = torch.stack([mixer.mu[name] for name in MIXES])
    program.emit(TokenShift(width=width, n_mixes=len(mu), mu=mu, x=x, output=shifted, state=state.leaf(0)), wait=True)
    r = program.buffer("projected", 6 * width)
    k, v, decay, rate, gate = (r.after(i * width) for i in range(1, 6))
    first = program.buffer("first_values", width)  # where a layer leaves its values to those behind it
    v = first if mixer.value_net is None else v
    _emit_projections(program, mixer, mixes, (r, k, v, decay, rate, gate), first)
    read, erase, write = (program.buffer(f"{name}_keys", width, local=True) for name in ("read", "erase", "write"))
    keys = Rwkv7Keys(
        n_heads=n_heads,
        d_head=d_head,
        epsilon=UNIT_EPS,
        xi=mixer.xi,
        alpha=mixer.alpha,
        k=k,
        rate=rate,
        read=read,
        erase=erase,
        write=write,
    )
    program.emit(keys)
    y = program.buffer("recalled", width)
    memory = RankOneMemory(
        n_heads=n_heads,
        d_value=d_head,
        d_key=d_head,
        decay=decay,
        read=read,
        erase=erase,
        write=write,
        query=r,
        gain=None,
        most_gain=1.0,
        decayed=False,
        scale=1.0,
        v=v,
        y=y,
        state=state.leaf(1),
    )
    program.emit(memory, wait=True)
    normed = program.buffer("mixed", width, local=True)
    norm = mixer.norm
    emit_norms(
        program,
        y,
        normed,
        width,
        kind=NormKind.LAYER,
        weight=norm.weight,
        bias=norm.bias,
        eps=norm.eps,
        n_groups=n_heads,
    )
    program.emit(Rwkv7Bonus(n_heads=n_heads, d_head=d_head, rho=mixer.rho, r=r, k=write, v=v, gate=gate, x=normed))
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, normed, residual, add=True, wait=True)
    return state


def _emit_projections(
    program: Program, mixer: RWKV7, mixes: dict[str, Place], made: tuple[Place, ...], first: Place
) -> None:
    """r, k, v, the decay, the rate and the gate from the shifted inputs, and the first layer's values."""
    r, k, v, decay, rate, gate = made
    config = mixer.config
    ranks = (config.decay_rank, config.rate_rank, config.gate_rank)
    narrow_decay = program.buffer("narrow", sum(ranks))
    narrow_rate = narrow_decay.after(ranks[0])
    narrow_gate = narrow_rate.after(ranks[1])
    program.linear(mixer.decay_net.down.weight, None, mixes["w"], narrow_decay, wait=False)
    # A thread's share of an activation is what it has projected
    program.emit(Activation(kind=ActivationKind.TANH, width=ranks[0], gated=False, x=narrow_decay))
    program.linear(mixer.rate_net.down.weight, None, mixes["a"], narrow_rate, wait=False)
    program.linear(mixer.gate_net.down.weight, None, mixes["g"], narrow_gate, wait=False)
    program.emit(Activation(kind=ActivationKind.SIGMOID, width=ranks[2], gated=False, x=narrow_gate))
    narrow_share, share = program.buffer("narrow_share", config.value_rank or 1), program.buffer("share", mixer.d_model)
    if mixer.value_net is not None:
        program.linear(mixer.value_net.down.weight, None, mixes["v"], narrow_share, wait=False)
    program.linear(mixer.r_proj.weight, None, mixes["r"], r, wait=False)
    program.linear(mixer.k_proj.weight, None, mixes["k"], k, wait=False)
    program.linear(mixer.v_proj.weight, None, mixes["v"], v, wait=True)
    program.linear(mixer.decay_net.up.weight, None, narrow_decay, decay, wait=False)
    factor, bias = torch.full((mixer.d_model,), LEAST_LOG_DECAY * math.log2(math.e)), mixer.dynamics.bias
    decays = ChannelDecay(kind=DecayKind.LOGISTIC, width=mixer.d_model, factor=factor, bias=bias, x=decay)
    program.emit(decays)
    if mixer.value_net is not None:
        program.linear(mixer.value_net.up.weight, mixer.value_net.up.bias, narrow_share, share, wait=False)
        program.emit(MixValues(width=mixer.d_model, share=share, other=first, x=v))
    program.linear(mixer.rate_net.up.weight, mixer.rate_net.up.bias, narrow_rate, rate, wait=False)
    program.linear(mixer.gate_net.up.weight, None, narrow_gate, gate, wait=True)
