"""LFM2: gated short convolutions, and some layers of attention with normed heads; a gated MLP in each."""

from __future__ import annotations

from functools import partial
from typing import Any

from statewise.checkpoints.convert.delta_tables import gated_convolution, normed_attention
from statewise.checkpoints.convert.fields import count, flag, number
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import D_HEAD, WHERE, layer_types, rotary, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field, Part
from statewise.checkpoints.convert.hybrids.parts import attention, each, gated
from statewise.checkpoints.convert.layer_tables import gated_mlp
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
FAMILIES = (
    Family(
        model_type="lfm2",
        architecture="Lfm2ForCausalLM",
        norm="embedding_norm",
        sizes=(65536, 2560),
        norm_eps=EPS,
        model={
            "tie_embeddings": Field("tie_word_embeddings", True, lambda value, given: given.get("tie_embedding", value))
        },
        kinds=kinds,
        kinds_back=types_back,
        blocks=each(
            {"conv": Part(GatedConvolutionConfig, "conv", gated_convolution, TAPS), "full_attention": ATTENTION},
            {"": gated("feed_forward", WIDTH, gated_mlp("w1", "w3", "w2"), activation="silu")},
            ("operator_norm", "ffn_norm"),
        ),
        written={"block_auto_adjust_ff_dim": False},
    ),
)
