"""Zamba2: Mamba-2, into some of whose layers a Transformer is read that they share, with adapters of each layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from statewise.checkpoints.convert.entries import Entry, affine, same
from statewise.checkpoints.convert.fields import count, require
from statewise.checkpoints.convert.formats import Config
from statewise.checkpoints.convert.hybrids.common import (
    activation,
    expand_back,
    gqa_attention,
    hidden,
    layer_types,
    least_dt,
    model_fields,
    rotary,
)
from statewise.checkpoints.convert.hybrids.family import Family, Field, Kind, Part
from statewise.checkpoints.convert.layer_tables import mamba2, separate_attention, together
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.models.shared_transformer import SharedTransformerConfig

WHERE = "zamba2"
MOST_SHARED = 64  # sets of shared weights
EPS = Field("rms_norm_eps", 1e-5)
DEFAULT = ["linear_attention", *["linear_attention"] * 5, "hybrid"]


def inner_width(given: Config) -> int:
    return count(given, "mamba_expand", 2, WHERE) * count(given, "hidden_size", 2560, WHERE)


def d_head(given: Config) -> int:
    return 2 * count(given, "hidden_size", 2560, WHERE) // count(given, "num_attention_heads", 32, WHERE)


MAMBA: dict[str, Field | Part] = {
    "n_heads": Field("n_mamba_heads", 8),
    "d_head": Field(
        "mamba_headdim", None, lambda value, given: inner_width(given) // count(given, "n_mamba_heads", 8, WHERE)
    ),
    "expand": Field("mamba_expand", 2, lambda value, given: Mamba2Config.expand, expand_back),
    "d_state": Field("mamba_d_state", 64),
    "n_taps": Field("mamba_d_conv", 4),
    "n_groups": Field("mamba_ngroups", 1),
    "bias": Field("add_bias_linear", False),
    "dt_limit": least_dt(),
}
ATTENTION = gqa_attention(32, None, bias=None) | {
    "d_head": Field("attention_head_dim", None, lambda value, given: d_head(given)),
    "scale": Field("", None, lambda value, given: (d_head(given) / 2) ** -0.5, lambda value, within, d_model: {}),
    "positions": Field(
        "use_mem_rope",
        False,
        lambda value, given: "rotary" if value else None,
        lambda value, within, d_model: value == "rotary",
    ),
    "rotary_base": rotary(head_dim=d_head)["rotary_base"],
}
BIAS = Field("add_bias_linear", False)
MLP = {"expand": hidden(default=10240), "activation": activation(default="gelu"), "bias": BIAS}


def own(config: SharedTransformerConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    norm = same(f"{theirs}mamba_decoder.input_layernorm.weight", f"{ours}norm.weight")
    return [same(f"{theirs}linear.weight", f"{ours}linear.weight"), norm]


def hybrid(number: int) -> Part:
    fields: dict[str, Field | Part] = {
        "mixer": Part(Mamba2Config, "mamba_decoder.mamba", mamba2, MAMBA),
        "attention": Part(AttentionConfig, fields=ATTENTION),
        "mlp": Part(MLPConfig, fields=MLP, fixed={"gated": True}),
        "d_adapter": Field("adapter_rank", 128),
        "attention_adapters": Field("use_shared_attention_adapter", False),
        "norm_eps": EPS,
    }
    return Part(SharedTransformerConfig, "", own, fields, {"shared": number})


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
    return {"layers_block_type": [name.split()[0] for name in names], "num_mem_blocks": max(1, len(numbers))}


def between(config: LanguageModelConfig, layers: str) -> list[Entry]:
    """The shared weights are in the first layer that has them, and with them the adapters of all that have them."""
    table: list[Entry] = []
    first: dict[int, int] = {}
    hybrids = [
        (i, block.mixer) for i, block in enumerate(config.blocks) if isinstance(block.mixer, SharedTransformerConfig)
    ]
    for use, (i, mixer) in enumerate(hybrids):
        theirs = f"{layers}{first.setdefault(mixer.shared, i)}.shared_transformer."
        ours, attention = f"layers.{i}.mixer.", mixer.attention
        if first[mixer.shared] == i:
            table += separate_attention(
                attention,
                f"{theirs}self_attn.",
                f"{ours}attention.",
                2 * config.d_model,
                into="in_proj.base" if mixer.attention_adapters else "in_proj",
            )
            table += affine(f"{theirs}input_layernorm", f"{ours}attention_norm", bias=False)
            table += affine(f"{theirs}pre_ff_layernorm", f"{ours}mlp_norm", bias=False)
            for name, part in (("gate_up_proj", "in_proj.base"), ("down_proj", "out_proj")):
                table += affine(f"{theirs}feed_forward.{name}", f"{ours}mlp.{part}", bias=mixer.mlp.bias)
        lists = [(f"{theirs}feed_forward.gate_up_proj_adapter_list.{use}", f"{ours}mlp.in_proj.", 0)]
        if mixer.attention_adapters:
            adapters = tuple(f"{theirs}self_attn.linear_{letter}_adapter_list.{use}" for letter in "qkv")
            down = tuple(f"{name}.0.weight" for name in adapters)
            table.append(
                Entry(down, (f"{ours}attention.in_proj.down.weight",), together, lambda stacked: stacked.chunk(3))
            )
            lists += [(name, f"{ours}attention.in_proj.", part) for part, name in enumerate(adapters)]
        table.append(same(f"{lists[0][0]}.0.weight", f"{ours}mlp.in_proj.down.weight"))
        table += [same(f"{name}.1.weight", f"{inner}ups.{part}.weight") for name, inner, part in lists]
    return table


def is_number(number: int, block: BlockConfig) -> bool:
    return isinstance(block.mixer, SharedTransformerConfig) and block.mixer.shared == number


PLAIN = Kind(Part(Mamba2Config, "mamba", mamba2, MAMBA), None, ("input_layernorm", None))
HYBRIDS = {
    f"hybrid {number}": Kind(hybrid(number), None, (None, None), partial(is_number, number))
    for number in range(MOST_SHARED)
}
FAMILIES = {
    "zamba2": Family(
        model_type="zamba2",
        architecture="Zamba2ForCausalLM",
        norm="final_layernorm",
        model=model_fields(32000, 2560, EPS, tie_embeddings=Field("tie_word_embeddings", True)),
        block={"norm_eps": EPS},
        kinds=kinds,
        kinds_back=kinds_back,
        blocks={"linear_attention": PLAIN, **HYBRIDS},
        # With a head of its own that library unties the shared layers as well
        required={"use_long_context": False, "use_conv_bias": True, "tie_word_embeddings": True},
        aliases={"head_dim": "attention_head_dim"},
        between=between,
    )
}
