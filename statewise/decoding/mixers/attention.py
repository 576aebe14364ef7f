"""A step of attention."""

from __future__ import annotations

import math

import torch

from statewise.decoding import instructions
from statewise.decoding.histories import AttentionHistory
from statewise.decoding.instructions import AddRow, Advance, Angles, Multiply
from statewise.decoding.operands import ActivationKind, Place
from statewise.decoding.parts import emit_affine, emit_convolution, emit_map, emit_norms
from statewise.decoding.program import Program
from statewise.decoding.states import JoinedState, RecurrentState, StateTable
from statewise.mixers.attention import Attention
from statewise.mixers.rms_norm import RMSNorm


def emit_attention(program: Program, mixer: Attention, x: Place, residual: Place) -> StateTable:
    config, n_heads, d_head, d_model = mixer.config, mixer.n_heads, mixer.d_head, mixer.d_model
    past = None if mixer.convolution is None else RecurrentState(program, n_leaves=1)
    state = AttentionHistory(program, config.window, config.max_positions)
    if mixer.positions is not None:
        placed = program.buffer("placed", d_model, local=True)
        emit_affine(program, x, placed, d_model)
        table = mixer.positions.weight
        program.emit(AddRow(width=d_model, table=table, positions=state.member("position"), x=placed))
        x = placed
    projected = program.buffer("projected", len(mixer.in_proj.weight))
    attended = program.buffer("attended", n_heads * d_head)
    n_angles = mixer.d_rotary // 2
    angles = program.buffer("angles", 2 * n_angles, local=True)
    emit_map(program, mixer.in_proj, x, projected, wait=True)
    if mixer.convolution is not None and past is not None:
        emit_convolution(program, mixer.convolution, projected, past.leaf(0))
    _emit_norm(program, mixer, mixer.q_norm, projected, n_heads, wait=False)
    _emit_norm(program, mixer, mixer.k_norm, projected.after(n_heads * d_head), mixer.n_kv_heads, wait=True)
    if n_angles:
        exponents = torch.arange(n_angles, dtype=torch.float64, device="cpu") * (-1.0 / n_angles)
        frequencies = config.rotary_base**exponents
        program.emit(Angles(n_angles=n_angles, frequencies=frequencies, output=angles, history=state.slot))
    attention = instructions.Attention(
        n_heads=n_heads,
        n_kv_heads=mixer.n_kv_heads,
        d_head=d_head,
        n_angles=n_angles,
        window=config.window or 0,
        scale=math.log2(math.e) * config.scale_of(d_head),
        qkv=projected,
        angles=angles,
        output=attended,
        scratch=program.buffer("weighted", d_head, local=True),
        history=state.slot,
    )
    program.emit(attention, wait=True)
    program.emit(Advance(history=state.slot))
    if config.gate:
        gate = projected.after(mixer.sizes[0])
        program.emit(Multiply(kind=ActivationKind.SIGMOID, width=n_heads * d_head, x=attended, by=gate), wait=True)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, attended, residual, add=True, wait=True)
    return state if past is None else JoinedState(past, state)


def _emit_norm(program: Program, mixer: Attention, norm: RMSNorm | None, x: Place, n_heads: int, *, wait: bool) -> None:
    """In place, of the queries or the keys."""
    if norm is None:
        return
    width, by_head = n_heads * mixer.d_head, mixer.config.qk_norm == "head"
    weight, n_groups = (norm.factor.repeat(n_heads), n_heads) if by_head else (norm.factor, 1)
    emit_norms(program, x, x, width, weight=weight, eps=norm.eps or 0.0, n_groups=n_groups, wait=wait)
