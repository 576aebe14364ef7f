"""A step of multi-head latent attention."""

from __future__ import annotations

import math

from torch import Tensor

from statewise.decoding.histories import AttentionHistory
from statewise.decoding.instructions import Advance
from statewise.decoding.latent import AppendLatent, TransposedLinear
from statewise.decoding.latent import LatentAttention as Attend
from statewise.decoding.operands import BLOCK, HEADS, Place
from statewise.decoding.packing import STORED, Packed, pack
from statewise.decoding.parts import emit_norm
from statewise.decoding.program import Program
from statewise.decoding.states import StateTable
from statewise.mixers.latent_attention import LatentAttention
from statewise.models.quantised import QuantisedTensor
from statewise.models.quantised_parts import KeysAndValues


def emit_latent_attention(program: Program, mixer: LatentAttention, x: Place, residual: Place) -> StateTable:
    """A head's query is multiplied with its W_k transposed, and what it has read with its W_v: the history is never
    mapped."""
    config, n_heads, rank = mixer.config, mixer.n_heads, mixer.config.rank
    state = AttentionHistory(program, window=None, max_positions=None)
    latent = program.buffer("projected", rank + config.d_shared)
    query = program.buffer("queries", n_heads * mixer.d_query)
    program.linear(mixer.in_proj.weight, mixer.in_proj.bias, x, latent, wait=mixer.query_down is None)
    if mixer.query_down is not None and mixer.query_norm is not None:
        narrow = program.buffer("narrow", mixer.query_down.out_features)
        program.linear(mixer.query_down.weight, mixer.query_down.bias, x, narrow, wait=True)
        normed_narrow = program.buffer("normed_narrow", mixer.query_down.out_features, local=True)
        x = emit_norm(program, mixer.query_norm, narrow, normed_narrow)
    program.linear(mixer.query_proj.weight, mixer.query_proj.bias, x, query, wait=True)
    normed = emit_norm(program, mixer.norm, latent, program.buffer("normed_latent", rank, local=True))
    shared = latent.after(rank)
    program.emit(AppendLatent(rank=rank, d_shared=config.d_shared, latent=normed, shared=shared, history=state.slot))
    absorbed, attended = program.buffer("absorbed", n_heads * rank), program.buffer("attended", n_heads * rank)
    scaled = program.buffer("scaled", -(-config.d_key // BLOCK) * BLOCK, local=True)
    maps, width = mixer.up_proj.weight, config.d_key + config.d_value
    for i in range(n_heads):
        own, out, last = query.after(i * mixer.d_query), absorbed.after(i * rank), i == n_heads - 1
        if (turned := _turned(program, maps, i)) is not None:
            program.linear(turned, None, own, out, wait=last)
            continue
        weight = program.matrix(maps, slice(i * width, i * width + config.d_key))
        program.emit(TransposedLinear(weight=weight, input=own, output=out, scaled=scaled), wait=last)
    attend = Attend(
        n_heads=n_heads,
        rank=rank,
        d_key=config.d_key,
        d_shared=config.d_shared,
        scale=math.log2(math.e) * mixer.d_query**-0.5,
        query=query,
        absorbed=absorbed,
        output=attended,
        scratch=program.buffer("weighted_latents", HEADS * (2 * rank + config.d_shared), local=True),
        history=state.slot,
    )
    program.emit(attend, wait=True)
    program.emit(Advance(history=state.slot))
    values = program.buffer("values", n_heads * config.d_value)
    for i in range(n_heads):
        rows = slice(i * width + config.d_key, (i + 1) * width)
        read, out = attended.after(i * rank), values.after(i * config.d_value)
        program.linear(maps, None, read, out, wait=i == n_heads - 1, rows=rows)
    program.linear(mixer.out_proj.weight, mixer.out_proj.bias, values, residual, add=True, wait=True)
    return state


def _turned(program: Program, maps: Tensor, head: int) -> Packed | None:
    """A head's W_k transposed, where the model has it so, in whole numbers."""
    if not isinstance(maps, QuantisedTensor) or not isinstance(maps.blocks, KeysAndValues):
        return None
    if program.weights.precision != STORED:
        return None
    keys = maps.blocks.keys_of(head)
    return program.weights.kept((id(maps), "keys", head), lambda: pack(QuantisedTensor(keys), STORED))
