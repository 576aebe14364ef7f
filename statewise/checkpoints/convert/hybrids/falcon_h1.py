"""Falcon-H1: attention beside Mamba-2 in each layer, a gated MLP behind them, and multipliers everywhere."""

from __future__ import annotations

from typing import Any

from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    activation,
    gqa_attention,
    granite_mamba2,
    head_dim,
    hidden,
    inner_width,
    model_fields,
    multiplier,
    rotary,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import gated_mlp, mamba2, separate_attention
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.parallel import ParallelMixersConfig
from statewise.models.mlp import MLPConfig

EPS = Field("rms_norm_eps", 1e-5)
INTO, OUT = ("attention_in_multiplier", "ssm_in_multiplier"), ("attention_out_multiplier", "ssm_out_multiplier")


def both(names: tuple[str, str]) -> Field:
    def back(value: Any, within: Any, d_model: int) -> dict[str, Any]:
        return dict(zip(names, value))

    return Field("", None, lambda value, given: tuple(given.get(name, 1.0) for name in names), back)


def mlp_scale(number: int) -> Field:
    def into(value: Any, given: Config) -> Any:
        if value is None:
            return 1.0
        gate, output = value
        return (gate, output)[number]

    return Field("mlp_multipliers", None, into, lambda value, within, d_model: [within.gate_scale, within.output_scale])


def d_head(value: Any, given: Config) -> Any:
    """``mamba_d_ssm`` by the heads, if it is not said."""
    if value != "auto":
        return value
    d_inner = given.get("mamba_d_ssm", 1024)
    d_inner = inner_width(given) if d_inner is None else d_inner
    return d_inner // count(given, "mamba_n_heads", 128, "falcon_h1")


SCALES = Field("ssm_multipliers", None, back=lambda value, within, d_model: [1.0] * 5 if value is None else list(value))
KEYS = Field(
    "key_multiplier",
    1.0,
    lambda value, given: value * head_dim(given) ** -0.5,
    lambda value, within, d_model: value * within.d_head**0.5,
)
WIDTH = Field("head_dim", None, lambda value, given: head_dim(given))
ATTENTION = {**gqa_attention(32, 8), **rotary(head_dim=head_dim), "d_head": WIDTH, "scale": KEYS}
NORM_FIRST = Field("mamba_norm_before_gate", True, lambda value, given: value and given.get("mamba_rms_norm", False))
MAMBA = granite_mamba2() | {
    "d_head": Field("mamba_d_head", "auto", d_head),
    "expand": Field(
        "mamba_d_ssm",
        None,
        lambda value, given: Mamba2Config.expand,
        lambda value, within, d_model: within.heads(d_model) * within.d_head,
    ),
    "norm": Field("mamba_rms_norm", False),
    "norm_before_gate": NORM_FIRST,
    "output_bias": Field("projectors_bias", False),
    "projection_scales": SCALES,
}
MIXERS: dict[str, Field | Part] = {
    "first": Part(AttentionConfig, "self_attn", separate_attention, ATTENTION),
    "second": Part(Mamba2Config, "mamba", mamba2, MAMBA),
    "input_scales": both(INTO),
    "output_scales": both(OUT),
}
MLP_FIELDS = {"expand": hidden(default=14336), "activation": activation(), "bias": Field("mlp_bias", False)}
MLP_FIELDS |= {"gate_scale": mlp_scale(0), "output_scale": mlp_scale(1)}
MLP = Part(MLPConfig, "feed_forward", gated_mlp(), MLP_FIELDS, {"gated": True})

FAMILIES = {
    "falcon_h1": Family(
        model_type="falcon_h1",
        architecture="FalconH1ForCausalLM",
        norm="final_layernorm",
        model=model_fields(
            128000,
            4096,
            EPS,
            embedding_scale=multiplier("embedding_multiplier"),
            logit_scale=multiplier("lm_head_multiplier"),
        ),
        block={"norm_eps": EPS},
        kinds=lambda given: ["hybrid"] * count(given, "num_hidden_layers", 32, "falcon_h1"),
        kinds_back=lambda names: {},
        blocks={
            "hybrid": Kind(Part(ParallelMixersConfig, "", None, MIXERS), MLP, ("input_layernorm", "pre_ff_layernorm"))
        },
        required={"hidden_act": "silu"},
    )
}
