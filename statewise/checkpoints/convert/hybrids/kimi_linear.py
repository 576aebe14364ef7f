"""Kimi Linear: Kimi Delta Attention, in every fourth layer latent attention without positions, and experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from statewise.checkpoints.convert.delta_tables import kimi_delta, latent_attention
from statewise.checkpoints.convert.fields import count, section, wrong
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import WHERE, hidden, layer_types, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field, Part
from statewise.checkpoints.convert.hybrids.parts import by_sigmoid, each, experts, gated, shared_experts, with_shared
from statewise.checkpoints.convert.layer_tables import single_experts
from statewise.mixers.kimi_delta_attention import KDAConfig
from statewise.mixers.latent_attention import LatentAttentionConfig

EPS = Field("rms_norm_eps", 1e-5)


def linear(theirs: str, published: str, default: int) -> Field:
    """A field of the linear layers, which the published file has in a group of them."""

    def into(value: Any, given: Config) -> Any:
        return section(given, "linear_attn_config", WHERE).get(published, value)

    return Field(theirs, default, into)


HEAD = linear("linear_head_dim", "head_dim", 128)
DELTA = {
    "n_heads": linear("linear_num_heads", "num_heads", 32),
    "d_key": HEAD,
    "d_value": HEAD,
    "rank": HEAD,
    "n_taps": linear("linear_conv_kernel_dim", "short_conv_kernel_size", 4),
    "norm_eps": EPS,
}
LATENT = {
    "n_heads": Field("num_attention_heads", 32),
    "d_key": Field("qk_nope_head_dim", 128),
    "d_value": Field("v_head_dim", 128),
    "d_shared": Field("qk_rope_head_dim", 64),
    "rank": Field("kv_lora_rank", 512),
    "query_rank": Field("q_lora_rank", None),
    "bias": Field("attention_bias", False),
    "dropout": Field("attention_dropout", 0.0),
}


MOE = experts(
    "block_sparse_moe",
    with_shared(single_experts(("w1", "w3"), "w2")),
    Field("num_experts", 256),
    Field("num_experts_per_token", 8),
    hidden(1024, "moe_intermediate_size"),
    **by_sigmoid("moe_renormalize", 2.446, "num_expert_group"),
    shared=shared_experts("num_shared_experts", width=1024, d_model=2304),
)


def kinds(given: Config) -> list[str]:
    n_layers, linear_layers = count(given, "num_hidden_layers", 27, WHERE), section(given, "linear_attn_config", WHERE)
    full = linear_layers.get("full_attn_layers")  # counted from 1
    attention = [i and i % 4 == 0 if full is None else i + 1 in full for i in range(n_layers)]
    n_dense = count(given, "first_k_dense_replace", 1, WHERE, at_least=0)
    mlps = given.get("mlp_layer_types") or ["dense" if i < n_dense else "sparse" for i in range(n_layers)]
    mixers = layer_types(given, ["full_attention" if it else "linear_attention" for it in attention])
    if len(mlps) != len(mixers):
        raise wrong("mlp_layer_types", mlps, f"as many as layer_types has, {len(mixers)}", WHERE)
    return [f"{mixer} {mlp}" for mixer, mlp in zip(mixers, mlps)]


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return types_back(names) | {"mlp_layer_types": [name.split()[1] for name in names]}


FAMILIES = (
    Family(
        model_type="kimi_linear",
        architecture="KimiLinearForCausalLM",
        sizes=(163840, 2304),
        norm_eps=EPS,
        model={"tie_embeddings": False},  # what that library takes it for, whatever the field says
        kinds=kinds,
        kinds_back=kinds_back,
        blocks=each(
            {
                "linear_attention": Part(KDAConfig, "self_attn", kimi_delta, DELTA),
                "full_attention": Part(LatentAttentionConfig, "self_attn", latent_attention, LATENT),
            },
            {" dense": gated("block_sparse_moe", hidden(9216)), " sparse": MOE},
            ("input_layernorm", "post_attention_layernorm"),
        ),
        required={"hidden_act": "silu"},  # of the convolutions too
        written={"tie_word_embeddings": False, "num_key_value_heads": None},  # none: as many as there are heads
        # that library writes the second name of MLPs for both kinds of layers; a module of the gate is in memory alone
        spellings={".mlp.": ".block_sparse_moe.", ".self_attn.forget_gate.": ".self_attn."},
        aliases={
            "norm_topk_prob": "moe_renormalize",
            "n_group": "num_expert_group",
            "num_local_experts": "num_experts",
            "num_experts_per_tok": "num_experts_per_token",
            "n_shared_experts": "num_shared_experts",
        },
    ),
)
