"""``transformers``' GPT-2, GPT-Neo, OPT and GPT-NeoX (Pythia): their config.json and tensors.

Source: ``models/{gpt2,gpt_neo,opt,gpt_neox}`` of https://github.com/huggingface/transformers, version 5.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from statewise.checkpoints.convert.decoder_configs import CLASSES, from_theirs, n_layers_of, named
from statewise.checkpoints.convert.decoder_entries import NAMES, decoder_entries, prefix_of, tables_of
from statewise.checkpoints.convert.decoder_written import kind_of, to_theirs
from statewise.checkpoints.convert.entries import read_entries, require_shape, require_tensor, write_entries
from statewise.checkpoints.convert.fields import require_layers
from statewise.checkpoints.convert.formats import Config, Tensors
from statewise.checkpoints.convert.rotary_tables import check_frequencies
from statewise.checkpoints.empty import expected_shapes
from statewise.mixers.attention import AttentionConfig
from statewise.models.base import ModelConfig
from statewise.models.language_model import LanguageModelConfig


def recognises(config: Config, names: frozenset[str]) -> bool:
    """By the model's type."""
    kind = config.get("model_type")
    return isinstance(kind, str) and kind in CLASSES


def read(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model of a ``config.json`` and its tensors. A tied head, causal masks and tables of rotary positions may be
    there or not, and so may the prefix of all names, which files of the inner model alone lack.

    Cost:    nothing is copied but the projections of attention, and GPT-2's maps, which are stored transposed.
    Errors:  CheckpointError for a value that is not supported, as a quantised model's, and for a tensor that is
             missing, left over, or of a wrong shape.
    """
    config, kind = named(config), config["model_type"]
    where, names = f"the {kind} checkpoint", frozenset(tensors)
    field, n_layers = n_layers_of(config)
    own, prefix = NAMES[kind], prefix_of(kind, names)
    require_tensor(prefix + own.embedding, tensors, where)
    require_layers(n_layers, field, tensors, f"{prefix}{own.layers}.")
    ours = from_theirs(config)
    # Before a model of these sizes is built
    rows = ours.d_model if ours.d_embedding is None else ours.d_embedding
    require_shape(f"{where}: {prefix}{own.embedding}", tensors[prefix + own.embedding], (ours.vocab_size, rows))
    if own.positions is not None and ours.max_positions is not None:
        require_tensor(prefix + own.positions, tensors, where)
        expected = (ours.max_positions + ours.position_offset, ours.d_model)
        require_shape(f"{where}: {prefix}{own.positions}", tensors[prefix + own.positions], expected)
    for name, d_rotary, base in tables_of(kind, ours, names):
        check_frequencies(name, tensors, d_rotary, base, where)
    return ours, read_entries(decoder_entries(kind, ours, names), tensors, expected_shapes(ours), where=where)


def writes(config: ModelConfig) -> bool:
    """Whether a model is of attention alone, and so one of these if it is any model of transformers."""
    if not isinstance(config, LanguageModelConfig):
        return False
    return all(isinstance(block.mixer, AttentionConfig) for block in config.blocks)


def write(config: LanguageModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What ``AutoModelForCausalLM.from_pretrained`` reads, as the kind of model that this one is.

    Errors:  CheckpointError that names what that kind of model does not have.
    """
    kind = kind_of(config)
    theirs = to_theirs(kind, config)
    return theirs, write_entries(decoder_entries(kind, config), tensors)
