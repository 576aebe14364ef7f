"""Kimi Linear: ``kimi-linear``. Its two kinds of layers have as many heads each."""

from __future__ import annotations

from typing import Any

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import KV, each
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.models.language_model import LanguageModelConfig

DENSE, WIDTHS = "leading_dense_block_count", ("attention.key_length_mla", "attention.key_length")


def read(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    n_layers, n_dense, kv_heads = given["num_hidden_layers"], values.natural(DENSE), each(values, KV, given)
    d_shared, rank = given["qk_rope_head_dim"], given["kv_lora_rank"]
    width = values.count(WIDTHS[0])
    if width <= d_shared:
        raise values.wrong(WIDTHS[0], f"expected more than rope.dimension_count, {d_shared}")
    if values.count(WIDTHS[1], rank + d_shared) != rank + d_shared:
        raise values.wrong(WIDTHS[1], f"expected {rank + d_shared}, as attention.kv_lora_rank has it")
    values.count("attention.value_length", rank)  # of any width: attention.value_length_mla is that of a head
    return {
        "linear_num_heads": given["num_attention_heads"],
        "qk_nope_head_dim": width - d_shared,
        "layer_types": ["full_attention" if n else "linear_attention" for n in kv_heads],
        "mlp_layer_types": ["dense" if i < n_dense else "sparse" for i in range(n_layers)],
    }


def write(given: Config, config: LanguageModelConfig) -> dict[str, Value]:
    d_shared, rank = given.get("qk_rope_head_dim", 0), given.get("kv_lora_rank", 0)
    mlps = given["mlp_layer_types"]
    return {
        KV: [int(kind == "full_attention") for kind in given["layer_types"]],
        DENSE: mlps.index("sparse") if "sparse" in mlps else len(mlps),
        WIDTHS[0]: given.get("qk_nope_head_dim", 0) + d_shared,
        WIDTHS[1]: rank + d_shared,
        "attention.value_length": rank,
        "expert_gating_func": 2,
    }


ARCHITECTURE = Architecture(
    name="kimi-linear",
    family="kimi_linear",
    keys={
        "embedding_length": count("hidden_size"),
        "feed_forward_length": count("intermediate_size"),
        "attention.head_count": count("num_attention_heads"),
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps"),
        "attention.q_lora_rank": count("q_lora_rank", None),
        "attention.kv_lora_rank": count("kv_lora_rank"),
        "attention.value_length_mla": count("v_head_dim"),
        "rope.dimension_count": count("qk_rope_head_dim"),
        "kda.head_dim": count("linear_head_dim"),
        "ssm.conv_kernel": count("linear_conv_kernel_dim"),
        "expert_count": count("num_experts"),
        "expert_used_count": count("num_experts_per_token"),
        "expert_feed_forward_length": count("moe_intermediate_size"),
        "expert_shared_count": count("num_shared_experts"),
        "expert_weights_scale": number("routed_scaling_factor", 1.0),
        "expert_group_count": count("num_expert_group", 1),
        "expert_group_used_count": count("topk_group", 1),
    },
    read=read,
    write=write,
    fixed={"moe_renormalize": True},
    idle=("rope.freq_base", "expert_weights_norm"),  # there are no positions; and weights are normed in any case
    only={"expert_gating_func": 2},
)
