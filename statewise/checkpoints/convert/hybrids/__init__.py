"""Hybrids of ``transformers``: a file a family, which is data, and what reads and writes it.

Source: ``models/*/modeling_*.py`` of https://github.com/huggingface/transformers, version 5. Fields that its model code
does not read are not read here either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import reduce
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import read_entries
from statewise.checkpoints.convert.fields import section
from statewise.checkpoints.convert.formats import Config, Tensors
from statewise.checkpoints.convert.hybrids.family import Family
from statewise.checkpoints.convert.layer_tables import in_memory
from statewise.checkpoints.tensor_files import require_finite
from statewise.errors import CheckpointError
from statewise.models.block import Block
from statewise.models.language_model import LanguageModelConfig
from statewise.models.shared_transformer import SharedTransformerConfig

# The module of each, by their model_type. A model that several could hold is written as the first of them.
FAMILIES: Mapping[str, str] = {
    "bamba": "bamba",
    "granitemoehybrid": "granitemoehybrid",
    "falcon_h1": "falcon_h1",
    "nemotron_h": "nemotron_h",
    "jamba": "jamba",
    "zamba2": "zamba2",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2",
    "qwen3_5_text": "qwen3_next",
    "qwen3_next": "qwen3_next",
    "olmo_hybrid": "olmo_hybrid",
    "kimi_linear": "kimi_linear",
    "recurrent_gemma": "recurrent_gemma",
    "xlstm": "xlstm",
}


# Models that also see pictures, and the language model inside each: this alone is read.
INSIDE: Mapping[str, str] = {"qwen3_5": "qwen3_5_text"}
_PREFIX, _SECTION = "model.language_model.", "text_config"


def family_of(model_type: object) -> Family | None:
    """The family of this name, if there is one."""
    kind = INSIDE.get(model_type, model_type) if isinstance(model_type, str) else ""
    if kind not in FAMILIES:
        return None
    families: tuple[Family, ...] = import_module(f"{__name__}.{FAMILIES[kind]}").FAMILIES
    return next(family for family in families if family.model_type == kind)


def every_family() -> Iterator[Family]:
    for name in FAMILIES:
        family = family_of(name)
        assert family is not None
        yield family


def read(config: Config, tensors: Tensors) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """The model of a ``config.json`` and its tensors; see :meth:`Family.read`."""
    family = family_of(config.get("model_type"))
    assert family is not None
    return family.read(*_language_model(config, tensors))


def _language_model(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    """The model itself, or of one that also sees pictures the language model."""
    if config["model_type"] not in INSIDE:
        return config, tensors
    inner = section(config, _SECTION, f"the {config['model_type']} config")
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith((_PREFIX, "lm_head."))}
    tied = {"tie_word_embeddings": config.get("tie_word_embeddings", False)}
    return {**inner, **tied}, {name.replace(_PREFIX, "model.", 1): tensor for name, tensor in kept.items()}


def load_layer(config: Config, tensors: Tensors, *, layer: int) -> Block:
    """One layer of a published hybrid, as a block in evaluation mode: y, state = block(x, state).

    config:  the model's config.json    tensors: those of the layer, by their names behind the layer's number
    layer:   which of the model's layers it is, counted from 0

    Errors:  CheckpointError for a model that is not one of these, a layer that it does not have, and tensors that are
             missing, left over or of a wrong shape: as the layers of Zamba2 that share a Transformer, whose weights are
             those of several layers.
    """
    if not isinstance(config, Mapping):
        raise CheckpointError(f"load_layer takes the content of a config.json; got a {type(config).__name__}")
    wrong = next((name for name, tensor in tensors.items() if not isinstance(tensor, Tensor)), None)
    if wrong is not None:
        raise CheckpointError(f"load_layer takes tensors; {wrong} is a {type(tensors[wrong]).__name__}")
    family = family_of(config.get("model_type"))
    if family is None:
        raise CheckpointError(f"load_layer reads {', '.join(FAMILIES)}; got model_type={config.get('model_type')!r}")
    config = family.named(_language_model(config, {})[0])
    whole = family.config(config)
    if isinstance(layer, bool) or not isinstance(layer, int):
        raise CheckpointError(f"layer={layer!r} is not the number of a layer; expected an integer from 0")
    if not 0 <= layer < len(whole.layers):
        raise CheckpointError(f"layer={layer} of a model with {len(whole.layers)} layers; they count from 0")
    one = whole.blocks[layer]
    if isinstance(one.mixer, SharedTransformerConfig):
        raise CheckpointError(
            f"layer {layer} shares a Transformer with others: its weights are in them; load the model"
        )
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            raise CheckpointError(f"layer {layer}: {name} is {tensor.dtype}; expected floating-point numbers")
        require_finite(name, tensor, f"layer {layer}")
    block = one.build(whole.d_model)
    expected = {name: tuple(tensor.shape) for name, tensor in block.state_dict().items()}
    table = family.layer_entries(one, "", "", whole.d_model, family.kinds_of(config)[layer])
    where = f"layer {layer} of the {family.model_type} checkpoint"
    tensors = family.named_tensors(tensors, where)
    table = [in_memory(entry, frozenset(tensors)) for entry in table]
    found = read_entries(table, tensors, expected, where=where)
    block.to(reduce(torch.promote_types, (tensor.dtype for tensor in found.values())))
    block.load_state_dict(found)
    return block.eval()


def write(config: LanguageModelConfig, tensors: Tensors) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The model as the first family that has it.

    Errors:  CheckpointError with the reason of each that has its layers but not the whole, or of all.
    """
    reasons = []
    for family in every_family():
        try:
            return family.write(config, tensors)
        except CheckpointError as error:
            reasons.append(str(error))
    near = [reason for reason in reasons if "has no layer of" not in reason]
    raise CheckpointError("; ".join(near) or f"{reasons[0]}; a hybrid of mamba_ssm is written by format='mamba_ssm'")
