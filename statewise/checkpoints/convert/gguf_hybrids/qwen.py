"""Qwen3.5, ``qwen35``, and Qwen3-Next, ``qwen3next``, all of whose layers have experts."""

from __future__ import annotations

from functools import partial
from typing import Any

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Key, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import each
from statewise.checkpoints.convert.gguf_layers import attention, delta
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.delta_net import GatedDeltaNetConfig
from statewise.models.language_model import LanguageModelConfig

INTERVAL, RECURRENT = "full_attention_interval", "attention.recurrent_layers"
LINEAR, FULL = "linear_attention", "full_attention"
SECTIONS = [11, 11, 10, 0]  # of the positions of pictures: those of a text are the same in all of them


def read(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    n_layers, d_head, n_heads = given["num_hidden_layers"], given["head_dim"], given["linear_num_value_heads"]
    if values.count("attention.value_length", d_head) != d_head:
        raise values.wrong("attention.value_length", f"expected attention.key_length, {d_head}")
    d_inner, d_key = values.count("ssm.inner_size"), given["linear_key_head_dim"]
    if d_inner != n_heads * d_key:
        raise values.wrong("ssm.inner_size", f"expected ssm.time_step_rank times ssm.state_size, {n_heads * d_key}")
    if values.has("rope.dimension_sections"):
        values.each("rope.dimension_sections", 1)
    if values.has(RECURRENT):
        kinds = [LINEAR if one else FULL for one in each(values, RECURRENT, given)]
    else:
        interval = values.count(INTERVAL, 4)
        kinds = [FULL if (i + 1) % interval == 0 else LINEAR for i in range(n_layers)]
    n_turned = values.count("rope.dimension_count", d_head)
    return {
        "linear_value_head_dim": d_key,
        "layer_types": kinds,
        "partial_rotary_factor": (n_turned + 0.5) / d_head if n_turned < d_head else 1.0,
    }


def write(given: Config, config: LanguageModelConfig, *, sections: bool) -> dict[str, Value]:
    kinds, d_head = given["layer_types"], given.get("head_dim", 0)
    values: dict[str, Value] = {
        "attention.value_length": d_head,
        "rope.dimension_count": round(d_head * given.get("partial_rotary_factor", 1.0)),
        "ssm.inner_size": given.get("linear_num_value_heads", 0) * given.get("linear_value_head_dim", 0),
    }
    if sections:
        values["rope.dimension_sections"] = list(SECTIONS)
    every = kinds.index(FULL) + 1 if FULL in kinds else len(kinds) + 1
    if [kind == FULL for kind in kinds] == [(i + 1) % every == 0 for i in range(len(kinds))]:
        return values | {INTERVAL: every}
    return values | {RECURRENT: [kind == LINEAR for kind in kinds]}


def architecture(name: str, family: str, more: dict[str, Key], *, is_35: bool, **own: Any) -> Architecture:
    return Architecture(
        name=name,
        family=family,
        keys={
            "embedding_length": count("hidden_size"),
            "attention.head_count": count("num_attention_heads"),
            "attention.head_count_kv": count("num_key_value_heads"),
            "attention.key_length": count("head_dim"),
            "attention.layer_norm_rms_epsilon": number("rms_norm_eps"),
            "rope.freq_base": number("rope_theta", 10_000.0),
            "ssm.conv_kernel": count("linear_conv_kernel_dim"),
            "ssm.state_size": count("linear_key_head_dim"),
            "ssm.group_count": count("linear_num_key_heads"),
            "ssm.time_step_rank": count("linear_num_value_heads"),
            **more,
        },
        read=read,
        write=partial(write, sections=is_35),
        second="post_attention_norm.weight",
        offset=True,
        tables={
            AttentionConfig: partial(attention, offset=True),
            GatedDeltaNetConfig: partial(delta, tiled=is_35),
        },
        **own,
    )


QWEN35 = architecture("qwen35", "qwen3_5_text", {"feed_forward_length": count("intermediate_size")}, is_35=True)
EXPERTS = {
    "feed_forward_length": count("intermediate_size", None),
    "expert_count": count("num_experts"),
    "expert_used_count": count("num_experts_per_tok"),
    "expert_feed_forward_length": count("moe_intermediate_size"),
    "expert_shared_feed_forward_length": count("shared_expert_intermediate_size"),
}
QWEN3_NEXT = architecture("qwen3next", "qwen3_next", EXPERTS, is_35=False, fixed={"norm_topk_prob": True})
