"""A step of mLSTM."""

from __future__ import annotations

from statewise.decoding.memories import MlstmGates, MlstmMemory, MlstmRead
from statewise.decoding.operands import ActivationKind, NormKind, Place
from statewise.decoding.parts import emit_normed_output
from statewise.decoding.program import Program
from statewise.decoding.states import RecurrentState, StateTable
from statewise.mixers.mlstm import EPS, MLSTM


def emit_mlstm(program: Program, mixer: MLSTM, x: Place, residual: Place) -> StateTable:
    state, n_heads, d_value = RecurrentState(program, n_leaves=2), mixer.n_heads, mixer.d_value
    q = program.buffer("projected", sum(mixer.sizes))
    k = q.after(mixer.sizes[0])
    v = k.after(mixer.sizes[1])
    z = v.after(mixer.sizes[2])
    raw, gates = program.buffer("gates", 2 * n_heads), program.buffer("used_gates", 3 * n_heads)
    decay, entering, least = gates, gates.after(n_heads), gates.after(2 * n_heads)
    y = program.buffer("recalled", n_heads * (d_value + 1))
    read = program.buffer("mixed", n_heads * d_value, local=True)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, q, wait=False)
    program.linear(mixer.gate_proj.weight, mixer.gate_proj.bias, x, raw, wait=True)
    scales = MlstmGates(
        n_heads=n_heads,
        cap=float(mixer.config.gate_cap),
        raw=raw,
        decay=decay,
        input=entering,
        least=least,
        state=state.leaf(1),
    )
    program.emit(scales, wait=True)
    memory = MlstmMemory(
        n_heads=n_heads,
        d_value=d_value,
        d_key=mixer.d_key,
        q=q,
        k=k,
        v=v,
        decay=decay,
        input=entering,
        y=y,
        state=state.leaf(0),
    )
    program.emit(memory, wait=True)
    program.emit(MlstmRead(n_heads=n_heads, d_value=d_value, epsilon=EPS, y=y, least=least, output=read))
    emit_normed_output(
        program,
        read,
        mixer.out_proj,
        residual,
        weight=mixer.norm.weight,
        eps=mixer.norm.eps,
        n_groups=n_heads,
        gate=z,
        gate_kind=ActivationKind.SIGMOID,
        kind=NormKind.LAYER,
        bias=mixer.norm.bias,
    )
    return state
