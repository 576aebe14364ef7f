"""Jamba: ``jamba``. llama.cpp ends the process that loads one whose inner width is not twice d_model."""

from __future__ import annotations

from typing import Any

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import KV, each, has, one_of
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.checkpoints.convert.hybrids.jamba import kinds, kinds_back
from statewise.errors import CheckpointError
from statewise.models.language_model import LanguageModelConfig


def read(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    kv_heads, d_inner = each(values, KV, given), values.count("ssm.inner_size")
    if d_inner != 2 * given["hidden_size"]:
        raise values.wrong("ssm.inner_size", f"expected twice embedding_length, {2 * given['hidden_size']}")
    names = [
        ("attention" if n else "mamba") + " moe" * (f"blk.{i}.ffn_gate_inp.weight" in shapes)
        for i, n in enumerate(kv_heads)
    ]
    return {
        **kinds_back(names),
        "num_key_value_heads": one_of(values, KV, kv_heads) if any(kv_heads) else None,
        "mamba_expand": 2,
        "mamba_conv_bias": has(shapes, "ssm_conv1d.bias"),
    }


def write(given: Config, config: LanguageModelConfig) -> dict[str, Value]:
    if given.get("mamba_expand", 2) != 2:
        raise CheckpointError(f"GGUF's jamba cannot hold expand={given['mamba_expand']}; it needs 2")
    n_kv_heads = given.get("num_key_value_heads", 0)
    is_attention = [name.startswith("attention") for name in kinds(given)]
    return {KV: [n_kv_heads * one for one in is_attention], "ssm.inner_size": 2 * config.d_model}


ARCHITECTURE = Architecture(
    name="jamba",
    family="jamba",
    keys={
        "embedding_length": count("hidden_size"),
        "feed_forward_length": count("intermediate_size"),
        "attention.head_count": count("num_attention_heads"),
        "attention.layer_norm_rms_epsilon": number("rms_norm_eps"),
        "ssm.conv_kernel": count("mamba_d_conv"),
        "ssm.state_size": count("mamba_d_state"),
        "ssm.time_step_rank": count("mamba_dt_rank"),
        "expert_count": count("num_experts", 1),
        "expert_used_count": count("num_experts_per_tok", None),
    },
    read=read,
    write=write,
)
