"""Zamba2: Mamba-2, into some of whose layers a Transformer is read that they share, with adapters of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from statewise.checkpoints.convert.fields import count, require
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    LEAST_DT,
    activation,
    expand_back,
    hidden,
    layer_types,
    rotary,
    types_back,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.hybrids.parts import attention, gated
from statewise.checkpoints.convert.layer_tables import mamba2
from statewise.checkpoints.convert.shared_tables import around_shared, shared_transformers
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.shared_transformer import SharedTransformerConfig

WHERE = "zamba2"
MOST_SHARED = 64  # sets of shared weights
EPS = Field("rms_norm_eps", 1e-5)
DEFAULT = ["linear_attention", *["linear_attention"] * 5, "hybrid"]


def inner_width(given: Config) -> int:
    return count(given, "mamba_expand", 2, WHERE) * count(given, "hidden_size", 2560, WHERE)


def d_head(given: Config) -> int:
    return 2 * count(given, "hidden_size", 2560, WHERE) // count(given, "num_attention_heads", 32, WHERE)


MAMBA = {
    "n_heads": Field("n_mamba_heads", 8),
    "d_head": Field(
        "mamba_headdim", None, lambda value, given: inner_width(given) // count(given, "n_mamba_heads", 8, WHERE)
    ),
    "expand": Field("mamba_expand", 2, lambda value, given: Mamba2Config.expand, expand_back),
    "d_state": Field("mamba_d_state", 64),
    "n_taps": Field("mamba_d_conv", 4),
    "n_groups": Field("mamba_ngroups", 1),
    "bias": Field("add_bias_linear", False),
    "dt_limit": LEAST_DT,
}
POSITIONS = Field(
    "use_mem_rope",
    False,
    lambda value, given: "rotary" if value else None,
    lambda value, within, d_model: value == "rotary",
)
ATTENTION = attention(
    "",
    32,
    None,
    table=None,
    bias=False,
    d_head=Field("attention_head_dim", None, lambda value, given: d_head(given)),
    scale=Field("", None, lambda value, given: (d_head(given) / 2) ** -0.5, lambda value, within, d_model: {}),
    positions=POSITIONS,
    rotary_base=rotary(head_dim=d_head)["rotary_base"],
)
MLP = gated("", hidden(10240), table=None, bias=Field("add_bias_linear", False), activation=activation(default="gelu"))


def hybrid(number: int) -> Part:
    fields = {
        "shared": number,
        "mixer": Part(Mamba2Config, "mamba_decoder.mamba", mamba2, MAMBA),
        "attention": ATTENTION,
        "mlp": MLP,
        "d_adapter": Field("adapter_rank", 128),
        "attention_adapters": Field("use_shared_attention_adapter", False),
        "norm_eps": EPS,
    }
    return Part(SharedTransformerConfig, "", around_shared, fields)


def kinds(given: Config) -> list[str]:
    n_shared, n_hybrids, found = count(given, "num_mem_blocks", 1, WHERE), 0, []
    names = layer_types(given, DEFAULT)
    places = [i for i, name in enumerate(names) if name == "hybrid"]
    require(given, {"hybrid_layer_ids": given.get("hybrid_layer_ids") and places}, f"transformers' {WHERE} config")
    for name in names:
        found.append(f"hybrid {n_hybrids % n_shared}" if name == "hybrid" else name)
        n_hybrids += name == "hybrid"
    return found


def kinds_back(names: Sequence[str]) -> dict[str, Any]:
    numbers = {name for name in names if name.startswith("hybrid")}
    return types_back(names, "layers_block_type") | {"num_mem_blocks": max(1, len(numbers))}


def is_number(number: int, block: BlockConfig) -> bool:
    return isinstance(block.mixer, SharedTransformerConfig) and block.mixer.shared == number


PLAIN = Kind(Part(Mamba2Config, "mamba", mamba2, MAMBA), None, ("input_layernorm", None))
HYBRIDS = {
    f"hybrid {number}": Kind(hybrid(number), None, (None, None), fits=partial(is_number, number))
    for number in range(MOST_SHARED)
}
FAMILIES = (
    Family(
        model_type="zamba2",
        architecture="Zamba2ForCausalLM",
        norm="final_layernorm",
        sizes=(32000, 2560),
        norm_eps=EPS,
        model={"tie_embeddings": Field("tie_word_embeddings", True)},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={"linear_attention": PLAIN, **HYBRIDS},
        # With a head of its own that library unties the shared layers as well
        required={"use_long_context": False, "use_conv_bias": True, "tie_word_embeddings": True},
        aliases={"head_dim": "attention_head_dim"},
        between=shared_transformers,
    ),
)
