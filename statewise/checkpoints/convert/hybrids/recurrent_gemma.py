"""RecurrentGemma: Griffin's recurrent blocks, attention over a window in every third layer, a capped head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from statewise.checkpoints.convert.delta_tables import rg_lru
from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    WHERE,
    activation,
    gqa_attention,
    head_dim,
    model_fields,
    rotary,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import gated_mlp, separate_attention
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.rg_lru import RGLRUConfig
from statewise.models.mlp import MLPConfig

EPS = Field("rms_norm_eps", 1e-6)
HEADS = Field("num_attention_heads", 10)
KINDS = {"recurrent": "linear_attention", "attention": "sliding_attention"}


def scale(value: Any, given: Config) -> float:
    """sqrt(d_model), which that library keeps in bfloat16."""
    return torch.tensor(count({"hidden_size": value}, "hidden_size", None, WHERE) ** 0.5, dtype=torch.bfloat16).item()


def half(value: Any, given: Config) -> float:
    """The MLPs' width is half of what is said."""
    return (
        count({"intermediate_size": value}, "intermediate_size", None, WHERE)
        // 2
        / count(given, "hidden_size", 2560, WHERE)
    )


ATTENTION = Part(
    AttentionConfig,
    "temporal_block",
    separate_attention,
    gqa_attention(10, None) | rotary(0.5, head_dim=head_dim) | {"window": Field("attention_window_size", 2048)},
    {"output_bias": True},
)
RECURRENCE = Part(
    RGLRUConfig,
    "temporal_block",
    rg_lru,
    {"d_inner": Field("lru_width", None), "n_blocks": HEADS, "n_taps": Field("conv1d_width", 4)},
)
WIDTH = Field("intermediate_size", 7680, half, lambda value, within, d_model: 2 * within.hidden_width(d_model))
MLP = Part(
    MLPConfig,
    "mlp_block",
    gated_mlp(),
    {"expand": WIDTH, "activation": activation("hidden_activation", "gelu_pytorch_tanh")},
    {"gated": True, "bias": True},
)
NORMS = ("temporal_pre_norm", "channel_pre_norm")


def kinds(given: Config) -> list[str]:
    names = list(given.get("block_types") or ("recurrent", "recurrent", "attention"))
    return (names * 100)[: count(given, "num_hidden_layers", 26, WHERE)]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return {"block_types": list(names)}


FAMILIES = {
    "recurrent_gemma": Family(
        model_type="recurrent_gemma",
        architecture="RecurrentGemmaForCausalLM",
        norm="final_norm",
        model=model_fields(
            256000,
            2560,
            EPS,
            embedding_scale=Field("hidden_size", 2560, scale, lambda value, within, d_model: d_model),
            logit_cap=Field("logits_soft_cap", 30.0),
            tie_embeddings=Field("tie_word_embeddings", True),
        ),
        block={"norm_eps": EPS},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={
            name: Kind(mixer, MLP, NORMS, block={"norm": "rms_offset"})
            for name, mixer in (("recurrent", RECURRENCE), ("attention", ATTENTION))
        },
        constant={"norm": "rms_offset"},
        required={"hidden_activation": "gelu_pytorch_tanh"},
        aliases={"sliding_window": "attention_window_size"},
    )
}
