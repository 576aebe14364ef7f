"""Granite 4: ``granitehybrid``, with experts or without. Heads of attention lie as Llama's, whose features are turned
with their neighbours, also where nothing is turned.

Bamba's is the same architecture, with rotary positions and no multipliers.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import (
    KV,
    SYSTEM,
    attention_width,
    each,
    has,
    one_of,
    system_width,
)
from statewise.checkpoints.convert.gguf_layers import attention
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.mixers.attention import AttentionConfig
from statewise.models.language_model import LanguageModelConfig

EXPERTS, TURNED = "expert_count", "rope.scaling.finetuned"
SHARED = "expert_shared_feed_forward_length"


def read(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    kv_heads, d_head = each(values, KV, given), attention_width(values, given)
    wide = SHARED if given["num_local_experts"] else "feed_forward_length"
    if not given["num_local_experts"]:
        values.natural(SHARED)  # which llama.cpp's converter writes for dense models too, and nothing reads
    return {
        **system_width(values, given),
        "num_key_value_heads": one_of(values, KV, kv_heads) if any(kv_heads) else None,
        "layer_types": ["full_attention" if n else "linear_attention" for n in kv_heads],
        "position_embedding_type": "rope" if values.flag(TURNED, True) else None,
        "attention_multiplier": values.positive("attention.scale", d_head**-0.5),
        "shared_intermediate_size": values.count(wide),
        "attention_bias": has(shapes, "attn_q.bias"),
        "mamba_conv_bias": not has(shapes, "ssm_conv1d.weight") or has(shapes, "ssm_conv1d.bias"),
    }


def write(given: Config, config: LanguageModelConfig) -> dict[str, Value]:
    is_attention = [kind == "full_attention" for kind in given["layer_types"]]
    values: dict[str, Value] = {
        KV: [given["num_key_value_heads"] * each for each in is_attention] if any(is_attention) else 0,
        "ssm.inner_size": given["mamba_n_heads"] * given["mamba_d_head"] if "mamba_n_heads" in given else 0,
        TURNED: given.get("position_embedding_type") == "rope",
    }
    if "attention_multiplier" in given:
        values["attention.scale"] = float(given["attention_multiplier"])
    shared = given["shared_intermediate_size"]
    if given["num_local_experts"]:
        return values | {SHARED: shared}
    return values | {"feed_forward_length": shared}


ARCHITECTURE = Architecture(
    name="granitehybrid",
    family="granitemoehybrid",
    keys={
        "embedding_length": count("hidden_size"),
        "attention.head_count": count("num_attention_heads"),
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps"),
        "rope.freq_base": number("rope_theta", 10_000.0),
        "embedding_scale": number("embedding_multiplier", 1.0),
        "residual_scale": number("residual_multiplier", 1.0),
        "logit_scale": number("logits_scaling", 1.0),
        "feed_forward_length": count("intermediate_size"),
        EXPERTS: count("num_local_experts", 0),
        "expert_used_count": count("num_experts_per_tok", None),
        **SYSTEM,
    },
    read=read,
    write=write,
    tables={AttentionConfig: partial(attention, neighbours=True)},
)
