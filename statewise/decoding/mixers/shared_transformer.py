"""A step of Zamba2's layer, into which a shared Transformer is read."""

from __future__ import annotations

from statewise.decoding.mixers.parallel import inner_refusal
from statewise.decoding.operands import Place
from statewise.decoding.parts import emit_add, emit_affine, emit_cleared, emit_mlp, emit_norm
from statewise.decoding.program import Program
from statewise.decoding.states import JoinedState, StateTable
from statewise.models.shared_transformer import SharedTransformer


def shared_transformer_refusal(mixer: SharedTransformer) -> str | None:
    return inner_refusal(mixer, mixer.attention) or inner_refusal(mixer, mixer.mixer)


def token_embedding(program: Program, d_model: int) -> Place:
    """Where the model leaves the embedding of the token, for all its layers."""
    return program.buffer("token_embedding", d_model)


def emit_shared_transformer(program: Program, mixer: SharedTransformer, x: Place, residual: Place) -> StateTable:
    """The weights that layers share are packed once, as each weight is."""
    from statewise.decoding.mixers import MIXERS

    width = mixer.d_model
    both = program.buffer("with_embedding", 2 * width, local=True)
    emit_affine(program, x, both, width)
    emit_affine(program, token_embedding(program, width), both.after(width), width)
    emit_norm(program, mixer.attention_norm, both, both)
    attended = emit_cleared(program, "transformer_attended", width)
    history = MIXERS[type(mixer.attention)].emit(program, mixer.attention, both, attended)
    normed = program.buffer("normed_inside", width, local=True)
    made = emit_cleared(program, "transformer_made", width)
    emit_mlp(program, mixer.mlp, emit_norm(program, mixer.mlp_norm, attended, normed), made)
    joined = program.buffer("transformer_joined", width)
    program.linear(mixer.linear.weight, None, made, joined, wait=False)
    emit_add(program, joined, x, width)
    emit_norm(program, mixer.norm, joined, normed)
    return JoinedState(history, MIXERS[type(mixer.mixer)].emit(program, mixer.mixer, normed, residual))
