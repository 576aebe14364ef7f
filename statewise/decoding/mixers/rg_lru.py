"""A step of RG-LRU."""

from __future__ import annotations

import math

import torch.nn.functional as F
from torch import nn

from statewise.decoding.instructions import Multiply
from statewise.decoding.memories import CountTokens, RgLru
from statewise.decoding.operands import ActivationKind, Place
from statewise.decoding.parts import emit_convolution
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.rg_lru import LEAST_SHARE, RGLRU


def emit_rg_lru(program: Program, mixer: RGLRU, x: Place, residual: Place) -> StateTable:
    state, width = RecurrentState(program, n_leaves=3), mixer.d_inner
    y = program.buffer("projected", 2 * width)
    u, input_gate = y.after(width), program.buffer("gates", 2 * width)
    recurrence_gate = input_gate.after(width)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, y, wait=True)
    emit_convolution(program, mixer.convolution, u, state.leaf(0))
    _emit_gates(program, mixer.input_gates, u, input_gate)
    _emit_gates(program, mixer.recurrence_gates, u, recurrence_gate, wait=True)
    decay = F.softplus(mixer.dynamics.Lambda.double()) * (-mixer.config.exponent * math.log2(math.e))
    system = RgLru(
        width=width,
        log_decay=decay,
        least=LEAST_SHARE,
        input_gate=input_gate,
        recurrence_gate=recurrence_gate,
        x=u,
        state=state.leaf(1),
        n_read=state.leaf(2),
    )
    program.emit(system)  # a thread's share of the channels is the same in the next
    program.emit(Multiply(kind=ActivationKind.GELU_TANH, width=width, x=u, by=y), wait=True)
    program.emit(CountTokens(n_read=state.leaf(2)))
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, u, residual, add=True, wait=True)
    return state


def _emit_gates(program: Program, gates: nn.ModuleList, u: Place, y: Place, *, wait: bool = False) -> None:
    """A block-diagonal map, block by block."""
    for i, gate in enumerate(gates):
        assert isinstance(gate, nn.Linear)
        first = i * gate.in_features
        program.linear(gate.weight, gate.bias, u.after(first), y.after(first), wait=wait and i == len(gates) - 1)
