"""LFM2: ``lfm2``."""

from __future__ import annotations

from typing import Any

from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.gguf_hybrids.architecture import Architecture, Shapes, count, number
from statewise.checkpoints.convert.gguf_hybrids.common import KV, attention_width, each, one_of
from statewise.checkpoints.convert.gguf_values import Value, Values
from statewise.models.language_model import LanguageModelConfig


def read(values: Values, shapes: Shapes, given: Config) -> dict[str, Any]:
    kv_heads = each(values, KV, given)
    return {
        "num_key_value_heads": one_of(values, KV, kv_heads) if any(kv_heads) else None,
        "layer_types": ["full_attention" if n else "conv" for n in kv_heads],
        "head_dim": attention_width(values, given),
    }


def write(given: Config, config: LanguageModelConfig) -> dict[str, Value]:
    return {KV: [given["num_key_value_heads"] * (kind == "full_attention") for kind in given["layer_types"]]}


ARCHITECTURE = Architecture(
    name="lfm2",
    family="lfm2",
    keys={
        "embedding_length": count("hidden_size"),
        "feed_forward_length": count("intermediate_size"),
        "attention.head_count": count("num_attention_heads"),
        "attention.layer_norm_rms_epsilon": number("norm_eps"),
        "rope.freq_base": number("rope_theta", 10_000.0),
        "shortconv.l_cache": count("conv_L_cache"),
    },
    read=read,
    write=write,
    fixed={"block_auto_adjust_ff_dim": False},
    final="token_embd_norm.weight",
)
