"""Nemotron-H: each layer is Mamba-2, attention without positions, an MLP, or experts, alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.fields import wrong
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    activation,
    gqa_attention,
    hidden,
    layer_types,
    least_dt,
    model_fields,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import mamba2, plain_mlp, separate_attention, single_experts
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

EPS = Field("layer_norm_epsilon", 1e-5)
LETTERS = {"M": "linear_attention", "E": "moe", "*": "full_attention", "-": "mlp"}
MAMBA = {
    "n_heads": Field("mamba_num_heads", 128),
    "d_head": Field("mamba_head_dim", 64),
    "d_state": Field("ssm_state_size", 128),
    "n_groups": Field("n_groups", 8),
    "n_taps": Field("conv_kernel", 4),
    "convolution_bias": Field("use_conv_bias", True),
    "bias": Field("use_bias", False),
    "dt_limit": least_dt(),
    "norm_eps": EPS,
}
ATTENTION = gqa_attention(32, 8, bias=None) | {"d_head": Field("head_dim", 128)}
BIAS = Field("mlp_bias", False)
ACTIVATION = activation("mlp_hidden_act", "relu2")
SHARED: dict[str, Field | Part] = {
    "expand": hidden("moe_shared_expert_intermediate_size", 7688),
    "activation": ACTIVATION,
    "bias": BIAS,
}
LATENT_BIAS = Field(
    "mlp_bias",
    False,
    lambda value, given: value and given.get("moe_latent_size") is not None,
    lambda value, within, d_model: within.shared.bias,
)
EXPERTS: dict[str, Field | Part] = {
    "n_experts": Field("n_routed_experts", 8),
    "n_active": Field("num_experts_per_tok", 2),
    "expand": hidden("moe_intermediate_size", 7688),
    "activation": ACTIVATION,
    "normalize": Field("norm_topk_prob", True),
    "route_scale": Field("routed_scaling_factor", 1.0),
    "n_groups": Field("n_group", 1),
    "n_groups_active": Field("topk_group", 1),
    "d_latent": Field("moe_latent_size", None),
    "latent_bias": LATENT_BIAS,
    "shared": Part(MLPConfig, "shared_experts", plain_mlp(), SHARED),
}
EXPERT_TABLE = single_experts("gate.weight", ("experts.{}.up_proj.weight",), "experts.{}.down_proj.weight")
MLP = {"expand": hidden(default=21504), "activation": ACTIVATION, "bias": BIAS}
SIGMOID = {"router": "sigmoid", "correction_bias": True, "gated": False}


def kinds(given: Config) -> list[str]:
    pattern = given.get("hybrid_override_pattern")
    if pattern is None or given.get("layers_block_type") is not None:
        return layer_types(given, list(LETTERS.values()))
    if not isinstance(pattern, str) or not pattern or not set(pattern) <= set(LETTERS):
        raise wrong("hybrid_override_pattern", pattern, f"a letter of {''.join(LETTERS)} for each layer", "nemotron_h")
    return [LETTERS[letter] for letter in pattern]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return {"layers_block_type": list(names)}


FAMILIES = {
    "nemotron_h": Family(
        model_type="nemotron_h",
        architecture="NemotronHForCausalLM",
        prefix="backbone.",
        embedding="embeddings.weight",
        norm="norm_f",
        model=model_fields(131072, 4096, EPS),
        block={"norm_eps": EPS},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={
            "linear_attention": Kind(Part(Mamba2Config, "mixer", mamba2, MAMBA), None, ("norm", None)),
            "full_attention": Kind(
                Part(AttentionConfig, "mixer", separate_attention, ATTENTION, {"positions": None}), None, ("norm", None)
            ),
            "mlp": Kind(None, Part(MLPConfig, "mixer", plain_mlp(), MLP), (None, "norm")),
            "moe": Kind(None, Part(MoEConfig, "mixer", EXPERT_TABLE, EXPERTS, SIGMOID), (None, "norm")),
        },
        aliases={"num_local_experts": "n_routed_experts"},
        required={"mamba_hidden_act": "silu", "sliding_window": None},
    )
}
