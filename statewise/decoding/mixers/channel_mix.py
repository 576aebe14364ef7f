"""A step of RWKV-7's channel mixing."""

from __future__ import annotations

from statewise.decoding.instructions import Activation
from statewise.decoding.memories import TokenShift
from statewise.decoding.operands import ActivationKind, Place
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.channel_mix import ChannelMix


def emit_channel_mix(program: Program, mixer: ChannelMix, x: Place, residual: Place) -> StateTable:
    state, width = RecurrentState(program, n_leaves=1), mixer.d_model
    shifted = program.buffer("shifted", width)
    shift = TokenShift(width=width, n_mixes=1, mu=mixer.mu[None], x=x, output=shifted, state=state.leaf(0))
    program.emit(shift, wait=True)
    n_hidden = mixer.in_proj.out_features
    hidden = program.buffer("hidden", n_hidden)
    program.linear(mixer.in_proj.weight, None, shifted, hidden, wait=False)
    # A thread's share of the activation is what it has projected
    program.emit(Activation(kind=ActivationKind.RELU2, width=n_hidden, gated=False, x=hidden), wait=True)
    program.linear(mixer.out_proj.weight, None, hidden, residual, add=True, wait=True)
    return state
