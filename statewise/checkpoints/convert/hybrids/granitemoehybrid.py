"""Granite 4: Mamba-2 or attention, with four multipliers; a gated MLP in each layer, beside experts or alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    divisor,
    gqa_attention,
    granite_mamba2,
    head_dim,
    hidden,
    layer_types,
    model_fields,
    multiplier,
    rotary,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import mamba2, plain_mlp, separate_attention, stacked_experts
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

EPS = Field("rms_norm_eps", 1e-6)
POSITIONS = Field(
    "position_embedding_type",
    None,
    lambda value, given: "rotary" if value == "rope" else None,
    lambda value, within, d_model: "rope" if value == "rotary" else None,
)
ROTARY = rotary(head_dim=head_dim)["rotary_base"]
SCALE = Field("attention_multiplier", 1.0)
ATTENTION = Part(
    AttentionConfig,
    "self_attn",
    separate_attention,
    gqa_attention(32, None) | {"positions": POSITIONS, "scale": SCALE, "rotary_base": ROTARY},
)
MAMBA = Part(Mamba2Config, "mamba", mamba2, granite_mamba2(eps=1e-6))
PROJECTIONS = plain_mlp("input_linear", "output_linear")
GATED = {"gated": True, "bias": False, "activation": "silu"}
MLP = Part(MLPConfig, "shared_mlp", PROJECTIONS, {"expand": hidden("shared_intermediate_size", 1024)}, GATED)
MOE = Part(
    MoEConfig,
    "",
    stacked_experts(
        *(f"block_sparse_moe.{name}" for name in ("router.layer.weight", "input_linear.weight", "output_linear.weight"))
    ),
    {
        "n_experts": Field("num_local_experts", 8),
        "n_active": Field("num_experts_per_tok", 2),
        "expand": hidden(default=11008),
        "shared": MLP,
    },
    {"router": "softmax_chosen"},
)
NORMS = ("input_layernorm", "post_attention_layernorm")


def kinds(given: Config) -> list[str]:
    n_layers = count(given, "num_hidden_layers", 32, "granitemoehybrid")
    experts = count(given, "num_local_experts", 8, "granitemoehybrid", at_least=0) > 0
    return [f"{name}{' moe' * experts}" for name in layer_types(given, ["linear_attention"] * n_layers)]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    said: dict[str, Any] = {"layer_types": [name.removesuffix(" moe") for name in names]}
    return said if names[0].endswith("moe") else {**said, "num_local_experts": 0}


FAMILIES = {
    "granitemoehybrid": Family(
        model_type="granitemoehybrid",
        architecture="GraniteMoeHybridForCausalLM",
        model=model_fields(
            32000, 4096, EPS, embedding_scale=multiplier("embedding_multiplier"), logit_scale=divisor("logits_scaling")
        ),
        block={"norm_eps": EPS, "branch_scale": multiplier("residual_multiplier")},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={
            f"{name}{suffix}": Kind(mixer, mlp, NORMS)
            for name, mixer in (("linear_attention", MAMBA), ("full_attention", ATTENTION))
            for suffix, mlp in (("", MLP), (" moe", MOE))
        },
        required={"hidden_act": "silu"},
    )
}
