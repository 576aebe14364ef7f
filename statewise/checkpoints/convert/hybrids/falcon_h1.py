"""Falcon-H1: attention beside Mamba-2 in each layer, a gated MLP behind them, and multipliers everywhere."""

from __future__ import annotations

from typing import Any

from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import D_HEAD, head_dim, hidden, inner_width, rotary
from statewise.checkpoints.convert.hybrids.family import Family, Field, Part
from statewise.checkpoints.convert.hybrids.parts import attention, each, gated, granite_mamba2
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.parallel import ParallelMixersConfig


def both(*names: str) -> Field:
    """A multiplier for each of the two mixers."""

    def back(value: Any, within: Any, d_model: int) -> dict[str, Any]:
        return dict(zip(names, value))

    return Field("", None, lambda value, given: tuple(given.get(name, 1.0) for name in names), back)


def mlp_scale(number: int) -> Field:
    def into(value: Any, given: Config) -> Any:
        gate, output = (1.0, 1.0) if value is None else value
        return (gate, output)[number]

    return Field("mlp_multipliers", None, into, lambda value, within, d_model: [within.gate_scale, within.output_scale])


def d_head(value: Any, given: Config) -> Any:
    """``mamba_d_ssm`` by the heads, if it is not said."""
    if value != "auto":
        return value
    d_inner = given.get("mamba_d_ssm", 1024)
    d_inner = inner_width(given) if d_inner is None else d_inner
    return d_inner // count(given, "mamba_n_heads", 128, "falcon_h1")


def norm_first(value: Any, given: Config) -> Any:
    return value and given.get("mamba_rms_norm", False)


EPS = Field("rms_norm_eps", 1e-5)
KEYS = Field(
    "key_multiplier",
    1.0,
    lambda value, given: value * head_dim(given) ** -0.5,
    lambda value, within, d_model: value * within.d_head**0.5,
)
MAMBA = granite_mamba2(
    d_head=Field("mamba_d_head", "auto", d_head),
    expand=Field(
        "mamba_d_ssm",
        None,
        lambda value, given: Mamba2Config.expand,
        lambda value, within, d_model: within.heads(d_model) * within.d_head,
    ),
    norm=Field("mamba_rms_norm", False),
    norm_before_gate=Field("mamba_norm_before_gate", True, norm_first),
    norm_eps=EPS,
    output_bias=Field("projectors_bias", False),
    projection_scales=Field(
        "ssm_multipliers", None, None, lambda value, within, d_model: [1.0] * 5 if value is None else list(value)
    ),
)
MIXERS = {
    "first": attention("self_attn", 32, 8, rotary_base=rotary()["rotary_base"], d_head=D_HEAD, scale=KEYS),
    "second": MAMBA,
    "input_scales": both("attention_in_multiplier", "ssm_in_multiplier"),
    "output_scales": both("attention_out_multiplier", "ssm_out_multiplier"),
}
SCALES: dict[str, Any] = {"gate_scale": mlp_scale(0), "output_scale": mlp_scale(1)}
MLP = gated("feed_forward", hidden(14336), bias=Field("mlp_bias", False), **SCALES)

FAMILIES = (
    Family(
        model_type="falcon_h1",
        architecture="FalconH1ForCausalLM",
        norm="final_layernorm",
        sizes=(128000, 4096),
        norm_eps=EPS,
        model={
            "embedding_scale": Field("embedding_multiplier", 1.0),
            "logit_scale": Field("lm_head_multiplier", 1.0),
        },
        kinds=lambda given: ["hybrid"] * count(given, "num_hidden_layers", 32, "falcon_h1"),
        kinds_back=lambda names: {},
        blocks=each(
            {"hybrid": Part(ParallelMixersConfig, "", None, MIXERS)},
            {"": MLP},
            ("input_layernorm", "pre_ff_layernorm"),
        ),
        required={"hidden_act": "silu"},
    ),
)
