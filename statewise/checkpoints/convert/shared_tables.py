"""Which tensors of theirs are which of ours: Zamba2's Transformers that several layers share. As ``layer_tables``."""

from __future__ import annotations

from statewise.checkpoints.convert.entries import Entry, affine, same
from statewise.checkpoints.convert.layer_tables import separate_attention, stacked
from statewise.models.language_model import LanguageModelConfig
from statewise.models.shared_transformer import SharedTransformerConfig


def around_shared(config: SharedTransformerConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """What each layer has of its own around them, beside its Mamba-2."""
    norm = same(f"{theirs}mamba_decoder.input_layernorm.weight", f"{ours}norm.weight")
    return [same(f"{theirs}linear.weight", f"{ours}linear.weight"), norm]


def shared_transformers(config: LanguageModelConfig, layers: str) -> list[Entry]:
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
            assert mixer.d_adapter is not None  # or there are no adapters
            table.append(
                stacked(down, f"{ours}attention.in_proj.down.weight", [mixer.d_adapter] * 3, 2 * config.d_model)
            )
            lists += [(name, f"{ours}attention.in_proj.", part) for part, name in enumerate(adapters)]
        table.append(same(f"{lists[0][0]}.0.weight", f"{ours}mlp.in_proj.down.weight"))
        table += [same(f"{name}.1.weight", f"{inner}ups.{part}.weight") for name, inner, part in lists]
    return table
