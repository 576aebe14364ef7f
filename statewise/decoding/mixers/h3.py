"""A step of H3."""

from __future__ import annotations

import torch

from statewise.decoding.operands import Place
from statewise.decoding.program import Program
from statewise.decoding.recurrences import Convolution, Diagonal
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.h3 import H3
from statewise.operators.causal_convolution import CausalConvolution
from statewise.operators.diagonal import DiagonalLTI


def emit_h3(program: Program, mixer: H3, x: Place, residual: Place) -> StateTable:
    width = mixer.d_model
    shift, diagonal = mixer.operators
    assert isinstance(shift, CausalConvolution)
    assert isinstance(diagonal, DiagonalLTI)
    assert diagonal.D is not None
    state = RecurrentState(program, n_leaves=2)
    query, recalled = program.buffer("projected", 3 * width), program.buffer("mixed", width)
    key, value = query.after(width), query.after(2 * width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, query, wait=True)
    taps = shift.taps.T
    program.emit(
        Convolution(width=width, n_taps=len(taps), taps=taps, bias=None, x=key, state=state.leaf(0), silu=False),
        wait=True,
    )
    A, B, C = diagonal.A, torch.view_as_real(diagonal.B), torch.view_as_real(2 * diagonal.C.conj())
    system = Diagonal(
        n_heads=mixer.n_heads,
        d_head=mixer.config.d_head,
        n_state=2 * A.shape[1],
        same=torch.stack([A.real, A.real], -1).flatten(-2),
        crossed=torch.stack([-A.imag, A.imag], -1).flatten(-2),
        B=B.flatten(-2),
        C=C.flatten(-2),
        D=diagonal.D,
        query=query,
        key=key,
        value=value,
        output=recalled,
        state=state.leaf(1),
    )
    program.emit(system, wait=True)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, recalled, residual, add=True, wait=True)
    return state
