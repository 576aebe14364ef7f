"""A step of LFM2's gated short convolution."""

from __future__ import annotations

from statewise.decoding.instructions import Multiply
from statewise.decoding.operands import ActivationKind, Place
from statewise.decoding.parts import emit_convolution
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.gated_convolution import GatedConvolution


def emit_gated_convolution(program: Program, mixer: GatedConvolution, x: Place, residual: Place) -> StateTable:
    state, width = RecurrentState(program, n_leaves=1), mixer.d_model
    B = program.buffer("projected", 3 * width)
    C = B.after(width)
    u = C.after(width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, B, wait=True)
    # A thread's share of the columns is the same in all three
    program.emit(Multiply(kind=ActivationKind.IDENTITY, width=width, x=u, by=B))
    emit_convolution(program, mixer.convolution, u, state.leaf(0), wait=False)
    program.emit(Multiply(kind=ActivationKind.IDENTITY, width=width, x=u, by=C), wait=True)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, u, residual, add=True, wait=True)
    return state
