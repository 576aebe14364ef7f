"""Our models in the formats of others, so that their programs read what was trained here."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.atomic import require_free, write_file, write_folder
from statewise.checkpoints.convert.extras import refuse_extras
from statewise.checkpoints.convert.formats import formats
from statewise.checkpoints.empty import require_described
from statewise.checkpoints.files import SavedTokenizer, published_files
from statewise.checkpoints.manifest import TOKENIZER_FILE
from statewise.checkpoints.tensor_files import (
    GGUF,
    SAFETENSORS,
    count_bytes,
    require_finite,
    require_floating,
    require_held,
    stored_tensors,
    uncompiled,
    write_tensors,
)
from statewise.errors import CheckpointError, ConfigError, InputError, retold
from statewise.models.base import Model
from statewise.models.quantised import require_plain

WRITTEN = ("mamba_ssm", "transformers", "h3", "s4", "s4d", "rwkv", "fla", "gguf")
KNOW_THEIR_OWN = ("transformers", "rwkv", "fla", "gguf")  # formats that see by themselves whether they hold a model


def save_as(
    model: Model,
    path: str | os.PathLike[str],
    format: str,
    *,
    dtype: torch.dtype | None = None,
    type: str | None = None,
    tokenizer: SavedTokenizer | None = None,
) -> Path:
    """Writes a model as others publish theirs; the files appear under their name complete, or not at all.

    path:      the folder to make; for "gguf" a file named *.gguf
    format:    one of :data:`WRITTEN`
    dtype:     of the floating tensors; None: as the model has them. What h3, s4 and s4d have in float32 always, their
               systems, stays float32, and in GGUF all but the matrices; mamba_ssm and transformers have all in one
    type:      of the matrices in GGUF, such as "Q8_0": one of ``gguf_types.WRITTEN``
    tokenizer: goes with the model: as tokenizer.json (the byte tokenizer has none) and the files that say how it is
               used, or into the GGUF file, with its end tokens and its chat template
    Errors:    CheckpointError if the format cannot hold the model (with the reason), if ``path`` exists already, if a
               tensor is not finite or would not be in ``dtype``, if the model has other tensors than its config builds,
               or if writing fails.
               InputError for an unknown format, dtype or type.
    """
    if format not in WRITTEN:
        raise InputError(f"format={format!r} is unknown; use one of {list(WRITTEN)}")
    require_floating(dtype, "save_as")
    model = uncompiled(model)
    if not isinstance(model, Model):
        raise InputError(f"save_as takes a Model, such as a LanguageModel; got a {model.__class__.__name__}")
    require_plain(model, "save_as writes plain numbers")
    if type is not None and format != "gguf":
        raise InputError(f"type={type!r} is for gguf; {format} has a dtype")
    target = Path(os.path.realpath(path))
    if format == "gguf" and target.suffix != GGUF:
        raise InputError(f"a GGUF file is named *{GGUF}; got {target.name!r}")
    require_free(target, _refuse)
    require_described(model, f"cannot save {path}")
    tokenizer_json = getattr(tokenizer, "json", None)
    tensors = {name: tensor.detach().cpu() for name, tensor in stored_tensors(model).items()}
    for name, tensor in tensors.items():
        require_finite(name, tensor, f"cannot save {path}")
    if format not in KNOW_THEIR_OWN:
        with retold(CheckpointError, CheckpointError, where=f"cannot save {path}: "):
            refuse_extras(model.config, format)
    if format == "gguf":
        _write_gguf(model, tensors, target, dtype=dtype, type=type, tokenizer=tokenizer)
        return Path(path)
    chosen = next(candidate for candidate in formats() if candidate.name == format)
    assert chosen.write is not None
    with retold(CheckpointError, CheckpointError, ConfigError, where=f"cannot save {path} as {format}: "):
        config, theirs = chosen.write(model.config, tensors)
    if dtype is not None:
        at_least_float32 = torch.promote_types(dtype, torch.float32)
        theirs = {
            name: t.to(at_least_float32 if chosen.keeps_wide(name) else dtype) if t.is_floating_point() else t
            for name, t in theirs.items()
        }
    for name, tensor in theirs.items():
        require_held(name, tensor, f"cannot save {path} as {format}")
    weights_name, config_name = chosen.files
    with write_folder(target, count_bytes(theirs), _refuse) as folder:
        if config_name:
            (folder / config_name).write_text(json.dumps(config, indent=2) + "\n", "utf-8")
        if tokenizer_json is not None:
            (folder / TOKENIZER_FILE).write_text(tokenizer_json, "utf-8")
        for name, text in published_files(tokenizer).items():
            (folder / name).write_bytes(text.encode())
        if weights_name.endswith(SAFETENSORS):
            write_tensors(folder / weights_name, theirs, {"format": "pt"})
        else:
            torch.save({name: _alone(tensor) for name, tensor in theirs.items()}, folder / weights_name)
    return Path(path)


def _alone(tensor: Tensor) -> Tensor:
    """A view would bring the whole of what it is a view of; what is a whole is written once, by all its names."""
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _write_gguf(model: Model, tensors: dict[str, Tensor], target: Path, **options: Any) -> None:
    from statewise.checkpoints.convert.gguf import write_gguf

    def write(aside: Path) -> None:
        write_gguf(model.config, tensors, aside, **options)

    write_file(target, count_bytes(tensors), write, may_replace=_refuse)


def _refuse(path: Path) -> None:
    raise CheckpointError(f"{path} exists already and is not replaced; give a new name")
