"""OLMo-Hybrid: Gated DeltaNet, and in some layers attention with its heads normed together and norms behind the
branches."""

from __future__ import annotations

from typing import Any

from statewise.checkpoints.convert.delta_tables import normed_attention, separate_delta
from statewise.checkpoints.convert.fields import count
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import WHERE, hidden, layer_types, rotary, types_back
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.hybrids.parts import attention, gated
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.delta_net import GatedDeltaNetConfig


def heads(value: Any, given: Config) -> int:
    return count(given, "num_attention_heads", 30, WHERE) if value is None else value


def d_key(value: Any, given: Config) -> int:
    if value is not None:
        return int(value)
    n_heads = heads(given.get("linear_num_key_heads"), given)
    return int(0.75 * count(given, "hidden_size", 3840, WHERE) / n_heads)


def d_value(value: Any, given: Config) -> int:
    return 2 * d_key(given.get("linear_key_head_dim"), given) if value is None else value


def positions(value: Any, given: Config) -> str | None:
    """None where the field of the base is null, and nothing is scaled."""
    if given.get("rope_scaling") is not None:
        return "rotary"
    return None if (value or {"rope_theta": 1}).get("rope_theta", 1) is None else "rotary"


def base_back(value: float, within: AttentionConfig, d_model: int) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": value if within.positions == "rotary" else None}


def base(value: Any, given: Config) -> float:
    return AttentionConfig.rotary_base if positions(value, given) is None else ROTARY.into(value, given)


def kinds(given: Config) -> list[str]:
    n_layers = count(given, "num_hidden_layers", 32, WHERE)
    names = ["linear_attention" if i % 4 != 3 else "full_attention" for i in range(n_layers)]
    return layer_types(given, names if "full_attention" in names else [*names[:-1], "full_attention"])


EPS, ROTARY = Field("rms_norm_eps", 1e-6), rotary()["rotary_base"]
ATTENTION = attention(
    "self_attn",
    30,
    None,
    normed_attention,
    positions=Field("rope_parameters", None, positions, lambda value, within, d_model: {}),
    rotary_base=Field("rope_parameters", None, base, base_back),
    qk_norm="all",
    qk_norm_eps=EPS,
)
DELTA = {
    "n_heads": Field("linear_num_value_heads", None, heads),
    "n_key_heads": Field("linear_num_key_heads", None, heads),
    "d_key": Field("linear_key_head_dim", None, d_key),
    "d_value": Field("linear_value_head_dim", None, d_value),
    "n_taps": Field("linear_conv_kernel_dim", 4),
    "negative_eigenvalues": Field("linear_allow_neg_eigval", True),
    "norm_eps": 1e-5,
}
LINEAR, MLP = Part(GatedDeltaNetConfig, "linear_attn", separate_delta, DELTA), gated("mlp", hidden(11008))
FIRST, SECOND, LAST = "attention_layer_norm", "feedforward_layer_norm", "post_feedforward_layernorm"

FAMILIES = (
    Family(
        model_type="olmo_hybrid",
        architecture="OlmoHybridForCausalLM",
        sizes=(100352, 3840),
        norm_eps=EPS,
        kinds=kinds,
        kinds_back=types_back,
        blocks={
            "linear_attention": Kind(LINEAR, MLP, (FIRST, SECOND)),
            "full_attention": Kind(ATTENTION, MLP, (SECOND, LAST), {"placement": "after"}),
        },
        required={"hidden_act": "silu"},  # of the convolutions too
        left_out=("mtp.",),
        # names as that library writes them, and as it has them in memory or the published files do
        spellings={".input_layernorm.": f".{FIRST}.", ".post_attention_layernorm.": f".{SECOND}."},
    ),
)
