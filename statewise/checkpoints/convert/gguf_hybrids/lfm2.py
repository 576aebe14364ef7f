"""LFM2: ``lfm2``, and ``lfm2moe``, whose first layers alone have no experts."""

from __future__ import annotations

from typing import Any

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import KV, attention_width, each, one_of
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.models.language_model import LanguageModelConfig

DENSE = "leading_dense_block_count"


def read(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    kv_heads = each(values, KV, given)
    return {
        "num_key_value_heads": one_of(values, KV, kv_heads) if any(kv_heads) else None,
        "layer_types": ["full_attention" if n else "conv" for n in kv_heads],
        "head_dim": attention_width(values, given),
    }


def write(given: Config, config: LanguageModelConfig) -> dict[str, Value]:
    return {KV: [given.get("num_key_value_heads", 0) * (kind == "full_attention") for kind in given["layer_types"]]}


def read_moe(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    return {**read(values, shapes, given), "num_dense_layers": values.natural(DENSE)}


def write_moe(given: Config, config: LanguageModelConfig) -> dict[str, Value]:
    return {**write(given, config), DENSE: given["num_dense_layers"], "expert_gating_func": 2}


KEYS = {
    "embedding_length": count("hidden_size"),
    "feed_forward_length": count("intermediate_size"),
    "attention.head_count": count("num_attention_heads"),
    "attention.layer_norm_rms_epsilon": number("norm_eps"),
    "rope.freq_base": number("rope_theta", 10_000.0),
    "shortconv.l_cache": count("conv_L_cache"),
}
EXPERTS = {
    "feed_forward_length": count("intermediate_size", None),
    "expert_count": count("num_experts"),
    "expert_used_count": count("num_experts_per_tok"),
    "expert_feed_forward_length": count("moe_intermediate_size"),
}
FINAL = "token_embd_norm.weight"
PLAIN = Architecture(
    name="lfm2",
    family="lfm2",
    keys=KEYS,
    read=read,
    write=write,
    fixed={"block_auto_adjust_ff_dim": False},
    final=FINAL,
)
MOE = Architecture(
    name="lfm2moe",
    family="lfm2_moe",
    keys=KEYS | EXPERTS,
    read=read_moe,
    write=write_moe,
    fixed={"norm_topk_prob": True, "routed_scaling_factor": 1.0, "use_expert_bias": True},
    only={"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.0},
    final=FINAL,
)
