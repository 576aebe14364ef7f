"""How each kind of mixer takes a step in C: a file for each, and the table of them.

An emitter writes ``residual += mixer(x)`` into a program, and returns how the C code finds the mixer's state. A new one
is a file and a line here; ``tests/decoding/test_decoding_law.py`` then holds its step against its ``forward``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from statewise.decoding.mixers.attention import emit_attention
from statewise.decoding.mixers.channel_mix import emit_channel_mix
from statewise.decoding.mixers.delta_net import emit_delta_net
from statewise.decoding.mixers.gated_convolution import emit_gated_convolution
from statewise.decoding.mixers.gated_linear_attention import emit_gla
from statewise.decoding.mixers.h3 import emit_h3
from statewise.decoding.mixers.kimi_delta_attention import emit_kda
from statewise.decoding.mixers.latent_attention import emit_latent_attention
from statewise.decoding.mixers.mamba import emit_mamba, mamba_refusal
from statewise.decoding.mixers.mamba2 import emit_mamba2, mamba2_refusal
from statewise.decoding.mixers.mamba3 import emit_mamba3
from statewise.decoding.mixers.mlstm import emit_mlstm
from statewise.decoding.mixers.parallel import emit_parallel, parallel_refusal
from statewise.decoding.mixers.rg_lru import emit_rg_lru
from statewise.decoding.mixers.rwkv7 import emit_rwkv7
from statewise.decoding.mixers.shared_transformer import emit_shared_transformer, shared_transformer_refusal
from statewise.decoding.operands import Place
from statewise.decoding.program import Program
from statewise.decoding.states import StateTable
from statewise.mixers.attention import Attention
from statewise.mixers.base import Mixer
from statewise.mixers.channel_mix import ChannelMix
from statewise.mixers.delta_net import DeltaNet, GatedDeltaNet
from statewise.mixers.gated_convolution import GatedConvolution
from statewise.mixers.gated_linear_attention import GLA
from statewise.mixers.h3 import H3
from statewise.mixers.kimi_delta_attention import KDA
from statewise.mixers.latent_attention import LatentAttention
from statewise.mixers.mamba import Mamba
from statewise.mixers.mamba2 import Mamba2
from statewise.mixers.mamba3 import Mamba3
from statewise.mixers.mlstm import MLSTM
from statewise.mixers.parallel import ParallelMixers
from statewise.mixers.rg_lru import RGLRU
from statewise.mixers.rwkv7 import RWKV7
from statewise.models.shared_transformer import SharedTransformer


class Emitter(NamedTuple):
    """emit:    (program, mixer, x, residual) -> the mixer's part of the table of states
    refusal: why a mixer of this kind has no step, or None, where some options have none
    """

    emit: Callable[[Program, Any, Place, Place], StateTable]
    refusal: Callable[[Any], str | None] = lambda mixer: None


MIXERS: Mapping[type, Emitter] = MappingProxyType(
    {
        Mamba: Emitter(emit_mamba, mamba_refusal),
        Mamba2: Emitter(emit_mamba2, mamba2_refusal),
        Mamba3: Emitter(emit_mamba3),
        Attention: Emitter(emit_attention),
        H3: Emitter(emit_h3),
        DeltaNet: Emitter(emit_delta_net),
        GatedDeltaNet: Emitter(emit_delta_net),
        GatedConvolution: Emitter(emit_gated_convolution),
        KDA: Emitter(emit_kda),
        RWKV7: Emitter(emit_rwkv7),
        ChannelMix: Emitter(emit_channel_mix),
        GLA: Emitter(emit_gla),
        MLSTM: Emitter(emit_mlstm),
        RGLRU: Emitter(emit_rg_lru),
        LatentAttention: Emitter(emit_latent_attention),
        ParallelMixers: Emitter(emit_parallel, parallel_refusal),
        SharedTransformer: Emitter(emit_shared_transformer, shared_transformer_refusal),
    }
)


def mixer_refusal(mixer: Mixer) -> str | None:
    """Why a mixer has no step in C, as the end of a sentence; None if it has one."""
    emitter = MIXERS.get(type(mixer))
    if emitter is None:
        names = ", ".join(one.__name__ for one in MIXERS)
        return f"is a {type(mixer).__name__}, and there is a step for {names}"
    return emitter.refusal(mixer)
