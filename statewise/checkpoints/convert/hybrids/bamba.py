"""Bamba: Mamba-2, some layers of attention with rotary positions on half of each head, a gated MLP in each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    activation,
    gqa_attention,
    granite_mamba2,
    head_dim,
    hidden,
    model_fields,
    rotary,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import gated_mlp, mamba2, separate_attention
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.mlp import MLPConfig

EPS = Field("rms_norm_eps", 1e-5)
ROTARY = rotary(0.5, head_dim=head_dim)
ATTENTION = Part(AttentionConfig, "self_attn", separate_attention, gqa_attention(32, 8) | ROTARY)
MAMBA = Part(Mamba2Config, "mamba", mamba2, granite_mamba2())
WIDTHS = {"expand": hidden(default=14336), "activation": activation(), "bias": Field("mlp_bias", False)}
MLP = Part(MLPConfig, "feed_forward", gated_mlp(), WIDTHS, {"gated": True})
NORMS = ("input_layernorm", "pre_ff_layernorm")


def kinds(given: Config) -> list[str]:
    attention = given.get("attn_layer_indices") or ()
    return ["attention" if i in attention else "mamba" for i in range(count(given, "num_hidden_layers", 32, "bamba"))]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return {"attn_layer_indices": [i for i, name in enumerate(names) if name == "attention"]}


FAMILIES = {
    "bamba": Family(
        model_type="bamba",
        architecture="BambaForCausalLM",
        norm="final_layernorm",
        model=model_fields(128000, 4096, EPS),
        block={"norm_eps": EPS},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={"mamba": Kind(MAMBA, MLP, NORMS), "attention": Kind(ATTENTION, MLP, NORMS)},
        required={"hidden_act": "silu"},
    )
}
