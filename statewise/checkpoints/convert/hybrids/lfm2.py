"""LFM2: gated short convolutions, and some layers of attention with normed heads; a gated MLP in each, or experts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from statewise.checkpoints.convert.delta_tables import gated_convolution, normed_attention
from statewise.checkpoints.convert.fields import count, flag, number
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    WHERE,
    gqa_attention,
    head_dim,
    hidden,
    layer_types,
    model_fields,
    rotary,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import gated_mlp, single_experts
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.gated_convolution import GatedConvolutionConfig
from statewise.models.mlp import MLPConfig
from statewise.models.moe import MoEConfig


def width(value: Any, given: Config) -> float:
    """The inner width of the MLPs, as a multiple: two thirds of what is said, times a factor, rounded up."""
    wide = count({"block_ff_dim": value} | dict(given), "block_ff_dim", None, WHERE)
    if flag(given, "block_auto_adjust_ff_dim", True, WHERE):
        wide = int(2 * wide / 3)
        if given.get("block_ffn_dim_multiplier", 1.0) is not None:
            multiple = count(given, "block_multiple_of", 256, WHERE)
            wide = int(number(given, "block_ffn_dim_multiplier", 1.0, WHERE) * wide)
            wide = -(-wide // multiple) * multiple
    return wide / count(given, "hidden_size", 2560, WHERE)


def kinds(given: Config) -> list[str]:
    every = range(count(given, "num_hidden_layers", 32, WHERE))
    attention = every if given.get("full_attn_idxs") is None else given["full_attn_idxs"]
    return layer_types(given, ["full_attention" if i in attention else "conv" for i in every])


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return {"layer_types": list(names)}


def moe_kinds(given: Config) -> list[str]:
    n_dense = count(given, "num_dense_layers", 2, WHERE, at_least=0)
    return [f"{name} {'dense' if i < n_dense else 'sparse'}" for i, name in enumerate(layer_types(given, ()))]


def moe_kinds_back(names: Sequence[str]) -> dict[str, Any]:
    n_dense = sum(name.endswith("dense") for name in names)
    return {"layer_types": [name.partition(" ")[0] for name in names], "num_dense_layers": n_dense}


EPS = Field("norm_eps", 1e-5)
HEADS = gqa_attention(32, 8, bias=None) | {
    "d_head": Field("head_dim", None, lambda value, given: head_dim(given)),
    "rotary_base": rotary(default_base=1e6, head_dim=head_dim)["rotary_base"],
    "qk_norm_eps": EPS,
}
TABLE = partial(normed_attention, output="out_proj", norms=("q_layernorm", "k_layernorm"))
ATTENTION = Part(AttentionConfig, "self_attn", TABLE, HEADS, {"qk_norm": "head"})
TAPS = {"n_taps": Field("conv_L_cache", 3), "bias": Field("conv_bias", False)}
CONVOLUTION = Part(GatedConvolutionConfig, "conv", gated_convolution, TAPS)
WIDTH = Field("intermediate_size", 12288, width, lambda value, within, d_model: within.hidden_width(d_model))
GATED = {"gated": True, "bias": False, "activation": "silu"}
PROJECTIONS = gated_mlp("w1", "w3", "w2")
MLP = Part(MLPConfig, "feed_forward", PROJECTIONS, {"expand": WIDTH}, GATED)
DENSE = Part(MLPConfig, "feed_forward", PROJECTIONS, {"expand": hidden(default=7168)}, GATED)
MOE = Part(
    MoEConfig,
    "feed_forward",
    single_experts(
        "gate.weight", ("experts.{}.w1.weight", "experts.{}.w3.weight"), "experts.{}.w2.weight", bias="expert_bias"
    ),
    {
        "n_experts": Field("num_experts", 32),
        "n_active": Field("num_experts_per_tok", 4),
        "expand": hidden("moe_intermediate_size", 1792),
        "normalize": Field("norm_topk_prob", True),
        "route_scale": Field("routed_scaling_factor", 1.0),
        "correction_bias": Field("use_expert_bias", True),
    },
    {"router": "sigmoid", "normalize_eps": 1e-6},
)
NORMS = ("operator_norm", "ffn_norm")
TIED = Field("tie_word_embeddings", True, lambda value, given: given.get("tie_embedding", value))
FAMILIES = {
    "lfm2": Family(
        model_type="lfm2",
        architecture="Lfm2ForCausalLM",
        norm="embedding_norm",
        model=model_fields(65536, 2560, EPS, tie_embeddings=TIED),
        block={"norm_eps": EPS},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={"conv": Kind(CONVOLUTION, MLP, NORMS), "full_attention": Kind(ATTENTION, MLP, NORMS)},
        written={"block_auto_adjust_ff_dim": False},
    ),
    "lfm2_moe": Family(
        model_type="lfm2_moe",
        architecture="Lfm2MoeForCausalLM",
        norm="embedding_norm",
        model=model_fields(65536, 2048, EPS, tie_embeddings=TIED),
        block={"norm_eps": EPS},
        kinds=moe_kinds,
        kinds_back=moe_kinds_back,
        blocks={
            f"{name} {kind}": Kind(mixer, mlp, NORMS)
            for name, mixer in (("conv", CONVOLUTION), ("full_attention", ATTENTION))
            for kind, mlp in (("dense", DENSE), ("sparse", MOE))
        },
    ),
}
