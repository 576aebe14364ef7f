"""GPT-2, GPT-Neo, OPT and GPT-NeoX as ``transformers`` names their tensors: which of them is which of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, affine, ends, prefix_in, require_shape, same
from statewise.checkpoints.convert.layer_tables import output_bias, separate_attention
from statewise.mixers.attention import AttentionConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig


@dataclass(frozen=True)
class Names:
    """What a family calls its parts; what is in the layers begins with ``layers`` and the layer's number.

    prefix:     of all but the head; files that hold the inner model alone lack it
    tables:     in a layer, that files may have and that are computed: causal masks, rotary frequencies
    heads:      of the head, the first as it is written
    mixer:      (block, their layer, our layer, d_model) -> the entries of the attention
    transposed: maps are stored as (inputs, outputs)
    """

    prefix: str
    embedding: str
    layers: str
    norm: str
    mixer_norm: str
    mlp_norm: str
    mlp: tuple[str, str]
    mixer: Callable[[BlockConfig, str, str, int], list[Entry]]
    tables: tuple[str, ...] = ()
    positions: str | None = None
    narrow: tuple[str, str] | None = None
    heads: tuple[str, ...] = ("lm_head.weight",)
    transposed: bool = False


def decoder_entries(kind: str, config: LanguageModelConfig, names: frozenset[str] | None = None) -> list[Entry]:
    """The table of a model of this kind. names: of the tensors of a file; None: for one that is written."""
    own = NAMES[kind]
    prefix = prefix_of(kind, names)
    embedding = prefix + own.embedding
    head = next((name for name in own.heads if names is not None and name in names), own.heads[0])
    table = ends(embedding, head, tied=config.tie_embeddings, held=names is not None and head in names)
    if own.positions is not None:
        table.append(same(prefix + own.positions, "positions.weight"))
    if own.narrow is not None and config.d_embedding is not None:
        into, out_of = own.narrow
        table += [same(prefix + into, "embedding_in.weight"), same(prefix + out_of, "embedding_out.weight")]
    if config.norm is not None:
        table += affine(prefix + own.norm, "norm")
    for i, block in enumerate(config.blocks):
        theirs, ours = f"{prefix}{own.layers}.{i}.", f"layers.{i}."
        table += affine(theirs + own.mixer_norm, f"{ours}mixer_norm") + affine(theirs + own.mlp_norm, f"{ours}mlp_norm")
        table += own.mixer(block, theirs, ours, config.d_model)
        assert isinstance(block.mlp, MLPConfig)  # as every config that was read has, or that may be written
        for name, part in zip(own.mlp, ("in_proj", "out_proj")):
            table += _map(theirs + name, f"{ours}mlp.{part}", bias=block.mlp.bias, transposed=own.transposed)
        table += [Entry((theirs + name,), (), optional=True) for name in own.tables]
    return table


def prefix_of(kind: str, names: frozenset[str] | None) -> str:
    """What the names of a file's tensors begin with."""
    return prefix_in(NAMES[kind].prefix, NAMES[kind].embedding, names)


def tables_of(kind: str, config: LanguageModelConfig, names: frozenset[str]) -> list[tuple[str, int, float]]:
    """The tables of rotary frequencies that a file may have: name, features, base."""
    found = []
    for i, block in enumerate(config.blocks):
        mixer = block.mixer
        if isinstance(mixer, AttentionConfig) and mixer.positions == "rotary":
            name = f"{prefix_of(kind, names)}{NAMES[kind].layers}.{i}.attention.rotary_emb.inv_freq"
            found.append((name, mixer.rotary_width(mixer.head_width(config.d_model)), mixer.rotary_base))
    return found


def _map(theirs: str, ours: str, *, bias: bool, transposed: bool) -> list[Entry]:
    if not transposed:
        return affine(theirs, ours, bias=bias)
    weight = Entry((f"{theirs}.weight",), (f"{ours}.weight",), _transposed, _transposed)
    return [weight, *([same(f"{theirs}.bias", f"{ours}.bias")] if bias else [])]


def _transposed(weight: Tensor) -> Tensor:
    return weight.mT.contiguous() if weight.ndim == 2 else weight


def _attention(block: BlockConfig) -> AttentionConfig:
    assert isinstance(block.mixer, AttentionConfig)
    return block.mixer


def _stacked(inner: str, out: str, transposed: bool) -> Callable[[BlockConfig, str, str, int], list[Entry]]:
    """Queries, keys and values in one map, as ours are."""

    def entries(block: BlockConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        mixer = _attention(block)
        projection = _map(theirs + inner, f"{ours}mixer.in_proj", bias=mixer.bias, transposed=transposed)
        return projection + _map(theirs + out, f"{ours}mixer.out_proj", bias=output_bias(mixer), transposed=transposed)

    return entries


def _separate(folder: str) -> Callable[[BlockConfig, str, str, int], list[Entry]]:
    """A map for each of queries, keys and values."""

    def entries(block: BlockConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
        return separate_attention(_attention(block), theirs + folder, f"{ours}mixer.", d_model, output="out_proj")

    return entries


def _interleaved(block: BlockConfig, theirs: str, ours: str, d_model: int) -> list[Entry]:
    """GPT-NeoX's: head by head its queries, its keys and its values; ours first all queries, then all keys."""
    mixer = _attention(block)
    sizes, rows = (mixer.n_heads, 3, mixer.head_width(d_model)), 3 * d_model
    name = f"{theirs}attention.query_key_value"

    def to_ours(tensor: Tensor) -> Tensor:
        require_shape(name, tensor, (rows, d_model)[: tensor.ndim])
        return tensor.unflatten(0, sizes).transpose(0, 1).flatten(0, 2)

    def to_theirs(tensor: Tensor) -> Tensor:
        return tensor.unflatten(0, (sizes[1], sizes[0], sizes[2])).transpose(0, 1).flatten(0, 2)

    return [
        *(
            Entry((f"{name}.{part}",), (f"{ours}mixer.in_proj.{part}",), to_ours, to_theirs)
            for part in ("weight", "bias")[: 1 + mixer.bias]
        ),
        *affine(f"{theirs}attention.dense", f"{ours}mixer.out_proj", bias=output_bias(mixer)),
    ]


_GPT: dict[str, Any] = {
    "prefix": "transformer.",
    "embedding": "wte.weight",
    "positions": "wpe.weight",
    "layers": "h",
    "norm": "ln_f",
}
_GPT |= {"mixer_norm": "ln_1", "mlp_norm": "ln_2"}
NAMES: Mapping[str, Names] = {
    "gpt2": Names(
        **_GPT,
        mlp=("mlp.c_fc", "mlp.c_proj"),
        mixer=_stacked("attn.c_attn", "attn.c_proj", True),
        tables=("attn.bias", "attn.masked_bias"),
        transposed=True,
    ),
    "gpt_neo": Names(
        **_GPT,
        mlp=("mlp.c_fc", "mlp.c_proj"),
        mixer=_separate("attn.attention."),
        tables=("attn.attention.bias", "attn.attention.masked_bias"),
    ),
    "opt": Names(
        prefix="model.decoder.",
        embedding="embed_tokens.weight",
        positions="embed_positions.weight",
        narrow=("project_in.weight", "project_out.weight"),
        layers="layers",
        norm="final_layer_norm",
        mixer_norm="self_attn_layer_norm",
        mlp_norm="final_layer_norm",
        mlp=("fc1", "fc2"),
        mixer=_separate("self_attn."),
    ),
    "gpt_neox": Names(
        prefix="gpt_neox.",
        embedding="embed_in.weight",
        layers="layers",
        norm="final_layer_norm",
        mixer_norm="input_layernorm",
        mlp_norm="post_attention_layernorm",
        mlp=("mlp.dense_h_to_4h", "mlp.dense_4h_to_h"),
        mixer=_interleaved,
        tables=("attention.bias", "attention.masked_bias", "attention.rotary_emb.inv_freq"),
        heads=("embed_out.weight", "lm_head.weight"),  # version 5 has the second in memory, and both in files
    ),
}
