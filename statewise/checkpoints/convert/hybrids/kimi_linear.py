"""Kimi Linear: Kimi Delta Attention, in every fourth layer latent attention without positions, and experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.delta_tables import kimi_delta, latent_attention
from statewise.checkpoints.convert.entries import Entry
from statewise.checkpoints.convert.fields import count, section, wrong
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import WHERE, activation, hidden, layer_types
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import gated_mlp, single_experts
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig

EPS = Field("rms_norm_eps", 1e-5)
GATED = {"gated": True, "bias": False}
NORMS = ("input_layernorm", "post_attention_layernorm")


def linear(theirs: str, published: str, default: int) -> Field:
    """A field of the linear layers, which the published file has in a group of them."""

    def into(value: Any, given: Config) -> Any:
        return section(given, "linear_attn_config", WHERE).get(published, value)

    return Field(theirs, default, into)


KDA = Part(
    KDAConfig,
    "self_attn",
    kimi_delta,
    {
        "n_heads": linear("linear_num_heads", "num_heads", 32),
        "d_key": linear("linear_head_dim", "head_dim", 128),
        "d_value": linear("linear_head_dim", "head_dim", 128),
        "rank": linear("linear_head_dim", "head_dim", 128),
        "n_taps": linear("linear_conv_kernel_dim", "short_conv_kernel_size", 4),
        "norm_eps": EPS,
    },
)
ATTENTION = Part(
    LatentAttentionConfig,
    "self_attn",
    latent_attention,
    {
        "n_heads": Field("num_attention_heads", 32),
        "d_key": Field("qk_nope_head_dim", 128),
        "d_value": Field("v_head_dim", 128),
        "d_shared": Field("qk_rope_head_dim", 64),
        "rank": Field("kv_lora_rank", 512),
        "query_rank": Field("q_lora_rank", None),
        "bias": Field("attention_bias", False),
        "dropout": Field("attention_dropout", 0.0),
    },
)
MLP = Part(
    MLPConfig, "block_sparse_moe", gated_mlp(), {"expand": hidden(default=9216), "activation": activation()}, GATED
)


EXPERTS = single_experts("gate.weight", ("experts.{}.w1.weight", "experts.{}.w3.weight"), "experts.{}.w2.weight")


def shared(value: Any, given: Config) -> MLPConfig:
    """One MLP, as wide as this number of experts."""
    n_wide = count({"num_shared_experts": value}, "num_shared_experts", None, WHERE)
    wide = n_wide * count(given, "moe_intermediate_size", 1024, WHERE)
    return MLPConfig(expand=wide / count(given, "hidden_size", 2304, WHERE), activation="silu", gated=True, bias=False)


def shared_back(value: MLPConfig, within: MoEConfig, d_model: int) -> int:
    return value.hidden_width(d_model) // within.hidden_width(d_model)


def experts(config: MoEConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    assert config.shared is not None  # as all that were read have, or that is written
    return [
        *EXPERTS(config, theirs, ours, d_model),
        *gated_mlp()(config.shared, f"{theirs}shared_experts.", f"{ours}shared.", d_model),
    ]


MOE = Part(
    MoEConfig,
    "block_sparse_moe",
    experts,
    {
        "n_experts": Field("num_experts", 256),
        "n_active": Field("num_experts_per_token", 8),
        "expand": hidden("moe_intermediate_size", 1024),
        "activation": activation(),
        "normalize": Field("moe_renormalize", True),
        "route_scale": Field("routed_scaling_factor", 2.446),
        "n_groups": Field("num_expert_group", 1),
        "n_groups_active": Field("topk_group", 1),
        "shared": Field("num_shared_experts", 1, shared, shared_back),
    },
    {"router": "sigmoid", "correction_bias": True},
)


def kinds(given: Config) -> list[str]:
    n_layers, linear_layers = count(given, "num_hidden_layers", 27, WHERE), section(given, "linear_attn_config", WHERE)
    full = linear_layers.get("full_attn_layers")  # counted from 1
    attention = [i and i % 4 == 0 if full is None else i + 1 in full for i in range(n_layers)]
    n_dense = count(given, "first_k_dense_replace", 1, WHERE, at_least=0)
    experts = given.get("mlp_layer_types") or ["dense" if i < n_dense else "sparse" for i in range(n_layers)]
    mixers = layer_types(given, ["full_attention" if it else "linear_attention" for it in attention])
    if len(experts) != len(mixers):
        raise wrong("mlp_layer_types", experts, f"as many as layer_types has, {len(mixers)}", WHERE)
    return [f"{mixer} {mlp}" for mixer, mlp in zip(mixers, experts)]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    mixers, mlps = zip(*(name.split() for name in names))
    return {"layer_types": list(mixers), "mlp_layer_types": list(mlps)}


FAMILIES = {
    "kimi_linear": Family(
        model_type="kimi_linear",
        architecture="KimiLinearForCausalLM",
        model={
            "vocab_size": Field("vocab_size", 163840),
            "d_model": Field("hidden_size", 2304),
            "norm_eps": EPS,
        },
        block={"norm_eps": EPS},
        required={"hidden_act": "silu"},  # of the convolutions too
        aliases={
            "norm_topk_prob": "moe_renormalize",
            "n_group": "num_expert_group",
            "num_local_experts": "num_experts",
            "num_experts_per_tok": "num_experts_per_token",
            "n_shared_experts": "num_shared_experts",
        },
        kinds=kinds,
        kinds_back=kinds_back,
        constant={"tie_embeddings": False},  # what that library takes it for, whatever the field says
        written={"tie_word_embeddings": False, "num_key_value_heads": None},  # none: as many as there are heads
        spellings={".mlp.": ".block_sparse_moe."},  # that library writes the second for both kinds of layers
        blocks={
            f"{name} {mlp}": Kind(mixer, inner, NORMS)
            for name, mixer in (("linear_attention", KDA), ("full_attention", ATTENTION))
            for mlp, inner in (("dense", MLP), ("sparse", MOE))
        },
    )
}
