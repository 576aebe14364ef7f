"""A model's recurrent state in a file: read a long document once, and continue it at any time later."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.atomic import write_file
from statewise.checkpoints.differences import differences
from statewise.checkpoints.manifest import encode_json
from statewise.checkpoints.tensor_files import (
    count_bytes,
    dtype_name,
    read_metadata,
    read_tensors,
    stored_tensors,
    write_tensors,
)
from statewise.checkpoints.trees import flatten_tree, unflatten_into
from statewise.configuration import parse_json
from statewise.errors import CheckpointError, ConfigError, InputError, reading, retold
from statewise.models.language_model import LanguageModel, LanguageModelState
from statewise.models.registry import model_from_dict, model_to_dict

STATE_FORMAT_VERSION = 1
PREFIX = "state"
METADATA_KEY = "statewise"


def save_state(state: LanguageModelState, path: str | os.PathLike[str], *, model: LanguageModel) -> Path:
    """Writes a state that ``model`` returned as one safetensors file, which replaces a file of that name.

    The file also holds the model's config and a digest of its weights, so that no other model can read it by mistake.

    Cost:    one pass over the model's weights and the state.
    Errors:  CheckpointError if writing fails; a folder of that name is not replaced.
    """
    if not isinstance(state, LanguageModelState):
        raise InputError(f"save_state needs a LanguageModelState; got a {type(state).__name__}")
    tensors = {name: tensor.detach().cpu() for name, tensor in flatten_tree(state, PREFIX).items()}
    data = {
        "format_version": STATE_FORMAT_VERSION,
        "model": model_to_dict(model.config),
        "weights": weights_digest(model),
        "batch": len(state.position),
        "position": state.position.tolist(),
    }
    data["sha256"] = _digest(data, tensors)
    metadata = {METADATA_KEY: json.dumps(data)}
    write_file(Path(path), count_bytes(tensors), lambda aside: write_tensors(aside, tensors, metadata))
    return Path(path)


def load_state(path: str | os.PathLike[str], *, model: LanguageModel) -> LanguageModelState:
    """The state that :func:`save_state` wrote, on the model's device.

    Errors:  CheckpointError if the file is missing or damaged, is not a state, or is the state of another model, with
             the first field of the config that differs. You may have cast the model to another dtype in between.
    """
    path = Path(path)
    if not path.is_file():
        raise CheckpointError(f"{path} is a folder, not a state" if path.exists() else f"there is no state at {path}")
    with reading(path, CheckpointError):
        tensors, data = read_tensors(path), _read_data(path)
    if _digest({key: value for key, value in data.items() if key != "sha256"}, tensors) != data.get("sha256"):
        raise CheckpointError(f"{path} is damaged: its checksum does not match")
    try:
        saved = model_from_dict(data["model"], f"{path}: model")
        weights = data["weights"]
    except (ConfigError, KeyError) as error:
        raise CheckpointError(f"{path} is not the state of a known model: {error}") from error
    if differing := differences(saved, model.config):
        raise CheckpointError(f"{path} is the state of another model: {differing[0]}")
    if weights != weights_digest(model):
        raise CheckpointError(
            f"{path} is the state of a model with different weights (perhaps of another training step); use the model "
            "that made it, or read the text again"
        )
    position = tensors.get(f"{PREFIX}.position")
    if position is None or position.ndim != 1:
        raise CheckpointError(f"{path} is not the state of a known model: it has no position for each row")
    with retold(CheckpointError, CheckpointError, where=f"{path}: "):
        state = unflatten_into(model.initial_state(len(position)), tensors, PREFIX, same_shapes=False)
    assert isinstance(state, LanguageModelState)
    return state


def weights_digest(model: LanguageModel) -> str:
    """SHA-256 over all names, shapes and values, these rounded to bfloat16, so that a cast model has the same."""
    digest = hashlib.sha256()
    for name, tensor in stored_tensors(model).items():
        tensor = tensor.detach().cpu()
        _update(digest, name, tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor)
    return digest.hexdigest()


def _digest(data: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(encode_json(data))
    for name in sorted(tensors):
        _update(digest, name, tensors[name])
    return digest.hexdigest()


def _update(digest: Any, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {dtype_name(tensor.dtype)} {tuple(tensor.shape)}\n".encode())
    if tensor.numel():
        digest.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy())


def _read_data(path: Path) -> dict[str, Any]:
    text = read_metadata(path).get(METADATA_KEY)
    if text is None:
        raise CheckpointError(f"{path} is a safetensors file, but not a state that Statewise wrote")
    try:
        data = parse_json(text, str(path))
    except ConfigError as error:
        raise CheckpointError(f"{error}; the file is damaged") from error
    version = data.get("format_version") if isinstance(data, dict) else None
    if type(version) is not int:
        raise CheckpointError(f"{path} is not a state that Statewise wrote: it has no format_version")
    if version > STATE_FORMAT_VERSION:
        raise CheckpointError(
            f"{path} has format_version {version}, from a newer Statewise; this one reads up to "
            f"{STATE_FORMAT_VERSION}. Upgrade statewise"
        )
    return data
