"""LFM2: gated short convolutions, and some layers of attention with normed heads; a gated MLP in each, or
experts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from statewise.checkpoints.convert.delta_tables import gated_convolution, normed_attention
from statewise.checkpoints.convert.fields import count, flag, number
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import D_HEAD, WHERE, hidden, layer_types, rotary, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field, Part
from statewise.checkpoints.convert.hybrids.parts import attention, each, experts, gated
from statewise.checkpoints.convert.layer_tables import gated_mlp, single_experts
from statewise.mixers.gated_convolution import GatedConvolutionConfig


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


def moe_kinds(given: Config) -> list[str]:
    n_dense = count(given, "num_dense_layers", 2, WHERE, at_least=0)
    return [f"{name} {'dense' if i < n_dense else 'sparse'}" for i, name in enumerate(layer_types(given, ()))]


def moe_kinds_back(names: Sequence[str]) -> dict[str, Any]:
    return types_back(names) | {"num_dense_layers": sum(name.endswith("dense") for name in names)}


EPS = Field("norm_eps", 1e-5)
WIDTH = Field("intermediate_size", 12288, width, lambda value, within, d_model: within.hidden_width(d_model))
TAPS = {"n_taps": Field("conv_L_cache", 3), "bias": Field("conv_bias", False)}
ATTENTION = attention(
    "self_attn",
    32,
    8,
    partial(normed_attention, output="out_proj", norms=("q_layernorm", "k_layernorm")),
    bias=False,
    d_head=D_HEAD,
    rotary_base=rotary(default_base=1e6)["rotary_base"],
    qk_norm="head",
    qk_norm_eps=EPS,
)
MIXERS = {"conv": Part(GatedConvolutionConfig, "conv", gated_convolution, TAPS), "full_attention": ATTENTION}
PROJECTIONS = gated_mlp("w1", "w3", "w2")
MLP = gated("feed_forward", WIDTH, PROJECTIONS, activation="silu")
DENSE = gated("feed_forward", hidden(7168), PROJECTIONS, activation="silu")
MOE = experts(
    "feed_forward",
    single_experts(("w1", "w3"), "w2", bias="expert_bias"),
    Field("num_experts", 32),
    Field("num_experts_per_tok", 4),
    hidden(1792, "moe_intermediate_size"),
    activation="silu",
    router="sigmoid",
    normalize=Field("norm_topk_prob", True),
    normalize_eps=1e-6,
    route_scale=Field("routed_scaling_factor", 1.0),
    correction_bias=Field("use_expert_bias", True),
)
NORMS = ("operator_norm", "ffn_norm")
COMMON: dict[str, Any] = {
    "norm": "embedding_norm",
    "norm_eps": EPS,
    "model": {
        "tie_embeddings": Field("tie_word_embeddings", True, lambda value, given: given.get("tie_embedding", value))
    },
}
FAMILIES = (
    Family(
        model_type="lfm2",
        architecture="Lfm2ForCausalLM",
        sizes=(65536, 2560),
        kinds=kinds,
        kinds_back=types_back,
        blocks=each(MIXERS, {"": MLP}, NORMS),
        written={"block_auto_adjust_ff_dim": False},
        **COMMON,
    ),
    Family(
        model_type="lfm2_moe",
        architecture="Lfm2MoeForCausalLM",
        sizes=(65536, 2048),
        kinds=moe_kinds,
        kinds_back=moe_kinds_back,
        blocks=each(MIXERS, {" dense": DENSE, " sparse": MOE}, NORMS),
        **COMMON,
    ),
)
