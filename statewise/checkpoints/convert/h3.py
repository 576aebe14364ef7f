"""H3's released files: a state dict and no config, in any of the three ways its names were given.

The architecture is read off the names and shapes. The heads of the attention are in no shape: they are those of the
released models by their width, unless a ``config.json`` beside the file says otherwise: {"n_heads": 12}, or the
arguments of the published constructor, {"attn_cfg": {"num_heads": 12}}. What a config repeats, of the shapes or of
itself, has to agree.

Source: the loader of the published code, ``SSMLMHeadModel.load_state_dict``, and its ``H3`` module.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import Entry, read_entries, repeated, reshaped, same, write_entries
from statewise.checkpoints.convert.formats import Config, Format, Tensors
from statewise.checkpoints.convert.h3_config import check_written, from_theirs, tables_in, to_theirs
from statewise.checkpoints.convert.h3_names import Names
from statewise.checkpoints.convert.rotary_tables import check_frequencies, frequencies
from statewise.checkpoints.convert.weights import LIGHTNING_VERSION
from statewise.checkpoints.empty import expected_shapes
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.h3 import H3Config
from statewise.models.base import ModelConfig
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig

_SYSTEMS = re.compile(r"\.mixer\.(kernel\.|ssm_k_|D$)")
_SHIFT_B = re.compile(r"\.mixer\.ssm_k_kernel\.kernel\.B$")


def recognises(config: Config, names: frozenset[str]) -> bool:
    """By the parameters of the shift SSM, which nothing else has under this name."""
    return any(map(_SHIFT_B.search, names))


def read(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model that a released file holds.

    Cost:    nothing but the projections is copied, which become one matrix.
    Errors:  CheckpointError for a tensor that is missing, left over or of a wrong shape, a width without known heads,
             a config that the file contradicts, and heads of H3 wider than 1: the published code has two paths that
             order their features differently, and the file does not say for which it was trained.
    """
    if LIGHTNING_VERSION in config and any(name.startswith("model.") for name in tensors):
        # beside the model there are the states of metrics, which the published loader leaves out as well
        tensors = {name: tensor for name, tensor in tensors.items() if name.startswith("model.")}
    names = Names.of(tensors)
    ours = from_theirs(config, names, tensors)
    tied = names("lm_head.weight") in tensors
    table = _entries(ours, names, head=tied, frequencies_optional=not tables_in(names, tensors))
    for i, block in enumerate(ours.blocks):
        if isinstance(block.mixer, AttentionConfig) and block.mixer.positions == "rotary":
            name, d_rotary = names(f"backbone.layers.{i}.mixer.rotary_emb.inv_freq"), block.mixer.d_rotary
            assert d_rotary is not None
            check_frequencies(name, tensors, d_rotary, block.mixer.rotary_base, "the H3 checkpoint")
    return ours, read_entries(table, tensors, expected_shapes(ours), where="the H3 checkpoint")


def write(config: ModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The state dict of the published code, under its last names, and the arguments that build its model.

    Errors:  CheckpointError for a model that the published code does not have.
    """
    config = check_written(config)
    table = _entries(config, Names(), head=True, frequencies_optional=False)
    return to_theirs(config), write_entries(table, tensors, where="the model")


def _entries(config: LanguageModelConfig, names: Names, *, head: bool, frequencies_optional: bool) -> list[Entry]:
    """head: the tied head is there a second time. frequencies_optional: the tables of rotary features may be absent."""
    embedding = names("backbone.embeddings.word_embeddings.weight")
    table = [same(embedding, "embedding.weight")]
    if head:
        table = [repeated(embedding, names("lm_head.weight"), "embedding.weight")]
    if config.max_positions is not None:
        table.append(same(names("backbone.embeddings.position_embeddings.weight"), "positions.weight"))
    table += _both(names, "backbone.ln_f", "norm")
    for i, block in enumerate(config.blocks):
        theirs, ours = f"backbone.layers.{i}", f"layers.{i}"
        table += _both(names, f"{theirs}.norm1", f"{ours}.mixer_norm")
        table += _both(names, f"{theirs}.norm2", f"{ours}.mlp_norm")
        table += _both(names, f"{theirs}.mlp.fc1", f"{ours}.mlp.in_proj")
        table += _both(names, f"{theirs}.mlp.fc2", f"{ours}.mlp.out_proj")
        if isinstance(block.mixer, AttentionConfig):
            table += _both(names, f"{theirs}.mixer.Wqkv", f"{ours}.mixer.in_proj")
            table += _both(names, f"{theirs}.mixer.out_proj", f"{ours}.mixer.out_proj")
            if block.mixer.positions == "rotary":
                name = names(f"{theirs}.mixer.rotary_emb.inv_freq")
                mixer = block.mixer
                table.append(
                    Entry((name,), (), to_theirs=lambda m=mixer: _frequencies(m, config), optional=frequencies_optional)
                )
        else:
            table += _h3_entries(config.d_model, block, names, theirs, ours)
    return table


def _h3_entries(d_model: int, block: BlockConfig, names: Names, theirs: str, ours: str) -> list[Entry]:
    assert isinstance(block.mixer, H3Config)
    n, d_shift = block.mixer.d_state // 2, block.mixer.d_shift or block.mixer.d_state
    table = []
    for part in ("weight", "bias"):
        split = tuple(names(f"{theirs}.mixer.{letter}_proj.{part}") for letter in "qkv")
        table.append(
            Entry(
                split,
                (f"{ours}.mixer.in_proj.{part}",),
                lambda *parts: torch.cat(parts),
                lambda stacked: stacked.chunk(3),
            )
        )
    table += _both(names, f"{theirs}.mixer.output_linear", f"{ours}.mixer.out_proj")
    shift, diagonal = f"{theirs}.mixer.ssm_k_kernel.kernel", f"{theirs}.mixer.kernel.kernel"
    shapes = {f"{shift}.C": (d_shift,), f"{diagonal}.C": (n, 2)}
    for name, target in ((f"{shift}.C", "readout.shift_C"), (f"{diagonal}.C", "readout.C")):
        shape = (d_model, *shapes[name])
        table.append(reshaped(names(name), f"{ours}.mixer.{target}", theirs_shape=(1, *shape), ours_shape=shape))
    for name, target in (
        (f"{shift}.B", "dynamics.shift_B"),
        (f"{theirs}.mixer.ssm_k_D", "readout.shift_D"),
        (f"{theirs}.mixer.D", "readout.D"),
        # B is in C already, once, and is multiplied into it a second time in every call: that is what was trained.
        (f"{diagonal}.B", "dynamics.diagonal.B"),
        (f"{diagonal}.inv_A_real", "dynamics.diagonal.log_decay"),
        (f"{diagonal}.A_imag", "dynamics.diagonal.frequency"),
        (f"{diagonal}.log_dt", "dynamics.diagonal.log_dt"),
    ):
        table.append(same(names(name), f"{ours}.mixer.{target}"))
    return table


def _both(names: Names, theirs: str, ours: str) -> list[Entry]:
    return [same(names(f"{theirs}.{part}"), f"{ours}.{part}") for part in ("weight", "bias")]


def _stacked(*parts: Tensor) -> Tensor:
    return torch.cat(parts)


def _frequencies(mixer: AttentionConfig, config: LanguageModelConfig) -> Tensor:
    return frequencies(mixer.rotary_width(mixer.head_width(config.d_model)), mixer.rotary_base)


FORMATS = (
    Format(
        name="h3",
        recognises=recognises,
        read=read,
        write=write,
        keeps_wide=lambda name: bool(_SYSTEMS.search(name)),
        files=("model.pt", "config.json"),
    ),
)
