"""A step of two mixers side by side."""

from __future__ import annotations

import torch

from statewise.decoding.operands import Place
from statewise.decoding.parts import emit_add, emit_affine, emit_cleared
from statewise.decoding.program import Program
from statewise.decoding.states import JoinedState, StateTable
from statewise.mixers.base import Mixer
from statewise.mixers.parallel import ParallelMixers


def parallel_refusal(mixer: ParallelMixers) -> str | None:
    return inner_refusal(mixer, mixer.first) or inner_refusal(mixer, mixer.second)


def inner_refusal(holder: Mixer, inner: Mixer) -> str | None:
    """Why a mixer that holds this one has no step because of it."""
    from statewise.decoding.mixers import mixer_refusal

    if inner.has_norm:  # it reads the residual stream itself, which another mixer does not give
        return f"is a {type(holder).__name__} of a {type(inner).__name__}, which the step has only by itself"
    reason = mixer_refusal(inner)
    return None if reason is None else f"is a {type(holder).__name__}, and one of its mixers {reason}"


def emit_parallel(program: Program, mixer: ParallelMixers, x: Place, residual: Place) -> StateTable:
    from statewise.decoding.mixers import MIXERS

    config, width = mixer.config, mixer.d_model
    tables = []
    for inner, into, out in zip((mixer.first, mixer.second), config.input_scales, config.output_scales):
        read, y = x, residual
        if into != 1.0 or x == residual:  # every thread does all of it for itself
            read = program.buffer("read", width, local=True)
            emit_affine(program, x, read, width, torch.full((width,), into))
        if out != 1.0:
            y = emit_cleared(program, "beside", width)
        tables.append(MIXERS[type(inner)].emit(program, inner, read, y))
        if out != 1.0:
            emit_add(program, residual, y, width, scale=out)
    return JoinedState(*tables)
