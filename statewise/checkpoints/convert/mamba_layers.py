"""The layers of ``mamba_ssm`` and of those who took its names over: which of their tensors is which of ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, affine, ends, require_shape, same
from statewise.checkpoints.convert.layer_tables import convolution, mamba, mamba2, output_bias
from statewise.checkpoints.convert.mamba3 import mamba3
from statewise.errors import CheckpointError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.mamba3 import Mamba3Config
from statewise.mixers.projection import WEIGHT_STD
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig

# What each of our configs has to say for these formats to have it, whatever its other fields are.
_BLOCK = {"placement": "pre"}
_MAMBA = {"method": "mamba", "initialization": "real", "bidirectional": False}
_MAMBA2 = {"head_pattern": "multi_value", "bidirectional": False}
_MODEL = {"max_positions": None, "d_embedding": None}


def model_entries(
    config: LanguageModelConfig, *, embedding: str = "backbone.embedding.weight", prefix: str = "", head: bool
) -> list[Entry]:
    """head: the file has a head also where that is tied to the embedding."""
    embedding, lm_head = prefix + embedding, prefix + "lm_head.weight"
    table = ends(embedding, lm_head, tied=config.tie_embeddings, held=head)
    table += affine(f"{prefix}backbone.norm_f", "norm", bias=config.norm == "layer")
    for i, block in enumerate(config.blocks):
        theirs, ours = f"{prefix}backbone.layers.{i}", f"layers.{i}"
        table += affine(f"{theirs}.norm", f"{ours}.mixer_norm", bias=block.norm == "layer")
        table += _mixer(block.mixer, f"{theirs}.mixer.", f"{ours}.mixer.", config.d_model)
        if block.mlp is not None:
            table += affine(f"{theirs}.norm2", f"{ours}.mlp_norm", bias=block.norm == "layer")
            table.append(Entry((f"{theirs}.mlp.fc1.weight",), (f"{ours}.mlp.in_proj.weight",), _swapped, _swapped))
            table.append(same(f"{theirs}.mlp.fc2.weight", f"{ours}.mlp.out_proj.weight"))
    return table


def check_embedding(config: LanguageModelConfig, name: str, tensors: Mapping[str, Tensor], where: str) -> None:
    """CheckpointError where the file's embedding has other sizes than its config: before a model of these is built."""
    require_shape(f"{where}: {name}", tensors[name], (config.vocab_size, config.d_model))


def _mixer(config: MixerConfig | None, theirs: str, ours: str, d_model: int) -> list[Entry]:
    if isinstance(config, AttentionConfig):
        return [
            *affine(f"{theirs}in_proj", f"{ours}in_proj", bias=config.bias),
            *([] if config.n_taps is None else convolution(theirs, ours, bias=True)),
            *affine(f"{theirs}out_proj", f"{ours}out_proj", bias=output_bias(config)),
        ]
    if isinstance(config, Mamba2Config):
        return mamba2(config, theirs, ours)
    if isinstance(config, Mamba3Config):
        return mamba3(config, theirs, ours, d_model)
    assert isinstance(config, MambaConfig)
    return mamba(config, theirs, ours)


def _swapped(weight: Tensor) -> Tensor:
    """A gated MLP's two halves: theirs is value, gate; ours gate, value."""
    return torch.cat(weight.chunk(2)[::-1]) if weight.shape[0] > 1 else weight


def uniform(config: LanguageModelConfig, where: str) -> tuple[BlockConfig, MixerConfig | None, AttentionConfig | None]:
    """What all layers have in common, for a format that says it once: (a block, its selective mixer, its attention).

    The block's own mixer says nothing. The attention and the other mixer are None where there is no such layer.
    Errors:  CheckpointError that names what the format does not have.
    """
    only(config, _MODEL, "the model", where)
    blocks = config.blocks
    first = blocks[0]
    mixers: dict[bool, MixerConfig] = {}
    for i, block in enumerate(blocks):
        name = f"layers[{i}]"
        only(block, _BLOCK, name, where)
        for other, whose, fields in ((config, "the model", ("norm", "norm_eps")), (first, "layers[0]", ("mlp",))):
            for field in fields:
                here, there = getattr(block, field), getattr(other, field)
                if here != there:
                    raise CheckpointError(
                        f"{where}: {name} has {field}={here!r}, {whose} {field}={there!r}; the format has one value "
                        "for all layers"
                    )
        mixer = block.mixer
        if type(mixer) not in (MambaConfig, Mamba2Config, Mamba3Config, AttentionConfig):
            raise CheckpointError(f"{where} has no {type(mixer).__name__.removesuffix('Config')}, which {name} is")
        assert mixer is not None
        if isinstance(mixer, MambaConfig):
            only(mixer, _MAMBA, name, where)
        if isinstance(mixer, Mamba2Config):
            only(mixer, _MAMBA2, name, where)
        if isinstance(mixer, AttentionConfig):  # what says nothing of the outputs
            mixer = replace(mixer, dropout=0.0, weight_std=WEIGHT_STD)
        if mixers.setdefault(isinstance(mixer, AttentionConfig), mixer) != mixer:
            raise CheckpointError(
                f"{where} has one config for all layers of a kind, and {name} differs from one before"
            )
    attention = mixers.get(True)
    assert attention is None or isinstance(attention, AttentionConfig)
    return first, mixers.get(False), attention


def only(config: Any, supported: Mapping[str, Any], what: str, where: str) -> None:
    """CheckpointError if a field of ours has another value than the one that the format has."""
    for name, value in supported.items():
        if getattr(config, name) != value:
            raise CheckpointError(
                f"{where}: {what} has {name}={getattr(config, name)!r}; the format has only {value!r}"
            )
