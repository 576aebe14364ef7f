"""Saving and loading a model: a folder of safetensors and JSON, complete or absent, and checked when read.

config.json                 the model's config, its dtype, and the size and SHA-256 of every file below
model.safetensors           parameters and buffers, tied ones once
tokenizer.json              only with a tokenizer of the ``tokenizers`` library
generation_config.json      and the other files of ``conventions.published.FILES``: as they were published beside it
trainer/state.safetensors   what else a run needs to continue bit for bit, and
trainer/state.json          its plain data, such as the step
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from statewise import __version__
from statewise.checkpoints.atomic import require_free, write_folder
from statewise.checkpoints.differences import differences
from statewise.checkpoints.empty import build_empty, fill, require_described
from statewise.checkpoints.folders import read_checkpoint, require_replaceable
from statewise.checkpoints.manifest import (
    CONFIG_FILE,
    FILES,
    MODEL_FILE,
    TOKENIZER_FILE,
    TRAINER_DATA,
    TRAINER_TENSORS,
    Manifest,
    TokenizerRecord,
    encode_json,
    record_file,
    verify_file,
)
from statewise.checkpoints.tensor_files import (
    Expected,
    count_bytes,
    map_tensors,
    read_expected,
    read_tensors,
    require_finite,
    require_floating,
    require_storable,
    stored_tensors,
    uncompiled,
    write_tensors,
)
from statewise.configuration import parse_json
from statewise.conventions.published import FILES as PUBLISHED_FILES
from statewise.conventions.published import read_text
from statewise.errors import CheckpointError, ConfigError, DataError, InputError, retold
from statewise.memory import size
from statewise.models.base import Model, ModelConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.quantised import require_plain
from statewise.models.registry import model_to_dict
from statewise.models.shapes import TooLargeError
from statewise.models.text_input import needs_tokenizer

# Bytes of a model for each byte of its file: numbers of 64 bits here may be of 16 there
ROOM = 4

Trainer = tuple[Mapping[str, Tensor], Mapping[str, Any]]


class SavedTokenizer(Protocol):
    """What a checkpoint needs of a tokenizer; one of the kind "tokenizers" also has its ``json`` text, and a published
    model's its ``conventions``."""

    kind: str
    vocab_size: int
    document_token: int
    fingerprint: str


class StoredTokenizer(NamedTuple):
    """The tokenizer of a checkpoint. ``json`` is the text of its tokenizer.json; None for the byte tokenizer.
    ``files`` are the texts of the files that it was published with, by their names."""

    kind: str
    fingerprint: str
    json: str | None
    files: Mapping[str, str]


def save(
    model: Model,
    folder: str | os.PathLike[str],
    *,
    tokenizer: SavedTokenizer | None = None,
    overwrite: bool = False,
    trainer: Trainer | None = None,
    whole: Callable[[Tensor], Tensor] | None = None,
) -> Path:
    """Writes a checkpoint, which appears under its name complete or not at all.

    trainer:   (tensors, data) for :func:`read_trainer` to return: named tensors and JSON data
    whole:     returns a whole tensor of the model or the trainer where this process has only a piece of it;
               it is called for one tensor at a time, which is written before the next
    overwrite: replace a checkpoint that exists already; anything else at ``folder`` is never replaced
    Cost:      one pass over the tensors, and waiting until they are on disk.
    Errors:    CheckpointError if ``folder`` exists already, if a tensor holds NaN or infinity, if the model has other
               tensors than its config builds, if its vocabulary is smaller than the tokenizer's, or if writing fails
               (with the bytes needed and free).
               What was there before is unchanged. ConfigError if the model's config is not in
               ``models.registry.CONFIG_TYPES``. InputError for a dtype that safetensors cannot hold.
    """
    model = uncompiled(model)
    if not isinstance(model, Model):
        raise InputError(f"save needs a Model, such as a LanguageModel; got a {type(model).__name__}")
    require_plain(model, "save writes plain numbers")
    model_to_dict(model.config)  # a class that could be written and never be read is refused before anything is
    target = Path(os.path.realpath(folder))  # a link to a folder stays one

    def may_replace(path: Path) -> None:
        require_replaceable(path, overwrite)

    require_free(target, may_replace)
    if trainer is None:  # a run's model is built from its config, at no cost for each of its checkpoints
        require_described(model, f"cannot save {folder}")
    tensors = stored_tensors(model)
    if tokenizer is not None:
        _require_vocabulary(model, tokenizer, str(folder))
    contents = _text_files(tokenizer, trainer, str(folder))
    parts = {MODEL_FILE: tensors, **({} if trainer is None else {TRAINER_TENSORS: trainer[0]})}
    for part in parts.values():
        for name, tensor in part.items():
            require_storable(name, tensor)
    n_bytes = sum(map(count_bytes, parts.values())) + sum(map(len, contents.values()))
    dtype, dtype_of = _dtypes(tensors)

    def fetch(name: str, tensor: Tensor) -> Tensor:
        return tensor.detach() if whole is None else whole(tensor)

    def fetch_finite(name: str, tensor: Tensor) -> Tensor:
        tensor = fetch(name, tensor)
        require_finite(name, tensor, f"cannot save {folder}")
        return tensor

    with write_folder(target, n_bytes, may_replace) as aside:
        if trainer is not None:
            (aside / TRAINER_DATA).parent.mkdir()
        for name, part in parts.items():
            checked = fetch_finite if name == MODEL_FILE else fetch
            write_tensors(aside / name, part, {"format": "pt"}, fetch=checked)
        for name, text in contents.items():
            (aside / name).write_bytes(text)
        manifest = Manifest(
            statewise_version=__version__,
            model=model.config,
            dtype=dtype,
            dtype_of=dtype_of,
            tokenizer=TokenizerRecord(tokenizer.kind, tokenizer.fingerprint) if tokenizer is not None else None,
            files={name: record_file(aside / name) for name in FILES if (aside / name).exists()},
        )
        (aside / CONFIG_FILE).write_bytes(manifest.encode())
    return Path(folder)


def load(
    folder: str | os.PathLike[str], *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None
) -> Model:
    """The model of a checkpoint folder, in evaluation mode; ``model.train()`` to train it on.

    dtype:   of the floating parameters, by default as stored. Those that set a system's time scales (in a ``Dynamics``
             module) are never narrower than float32.
    Errors:  CheckpointError, with a reason, for anything but an intact checkpoint; it never runs code from a file.
    PyTorch's generators are as they were before.
    """
    require_floating(dtype, "load")

    empty: tuple[ModelConfig, Model] | None = None  # kept where the folder is replaced meanwhile and read again

    def read(path: Path, manifest: Manifest) -> tuple[Model, dict[str, Tensor]]:
        nonlocal empty
        file = verify_file(path, MODEL_FILE, manifest.files[MODEL_FILE])
        if empty is None or empty[0] != manifest.model:
            try:
                empty = manifest.model, build_empty(manifest.model, ROOM * manifest.files[MODEL_FILE].n_bytes)
            except TooLargeError as error:
                there = size(manifest.files[MODEL_FILE].n_bytes)
                raise CheckpointError(f"{path / CONFIG_FILE}: {error}; {MODEL_FILE} beside it has {there}") from error
            except ConfigError as error:
                raise CheckpointError(f"{path / CONFIG_FILE}: {error}") from error
        expected = {
            name: Expected(
                tuple(tensor.shape),
                manifest.dtype_of.get(name, manifest.dtype) if tensor.is_floating_point() else tensor.dtype,
            )
            for name, tensor in stored_tensors(empty[1]).items()
        }
        return empty[1], dict(read_expected(file, expected))

    model, tensors = read_checkpoint(folder, read)
    fill(model, ((name, tensors.pop(name)) for name in list(tensors)), dtype)
    return model.to(device).eval()


def load_into(
    model: Model, folder: str | os.PathLike[str], put: Callable[[Tensor, Tensor], object] = Tensor.copy_
) -> None:
    """Copies a checkpoint's tensors into a model of the same config and dtype; its Parameters stay the same objects.

    put:     (parameter, tensor) copies a whole tensor into a parameter of which this process may have only a piece
    Cost:    three passes over the file (checksum, numbers, copy), with one tensor at a time in memory.
    Errors:  CheckpointError naming the first fields that differ, or as :func:`load`; the model is then unchanged.
    """

    def read(path: Path, manifest: Manifest) -> None:
        if differing := differences(manifest.model, model.config):
            raise CheckpointError(
                f"{path} is a checkpoint of a different architecture: {'; '.join(differing[:3])}"
                f"{f' (and {len(differing) - 3} more)' if len(differing) > 3 else ''}"
            )
        file = verify_file(path, MODEL_FILE, manifest.files[MODEL_FILE])
        targets = stored_tensors(model)
        expected = {name: Expected(tuple(t.shape), t.dtype) for name, t in targets.items()}
        for _ in read_expected(file, expected):
            pass  # all of it is in order before the first is copied
        with torch.no_grad():
            for name, tensor in read_expected(file, expected):
                put(targets[name], tensor)

    read_checkpoint(folder, read)


def read_trainer(folder: str | os.PathLike[str], *, mapped: bool = False) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The (tensors, data) that were saved with the model, the tensors on the CPU.

    mapped:  read each tensor only when it is used, straight from the file
    Errors:  CheckpointError if there are none, or as :func:`load`.
    """

    def read(path: Path, manifest: Manifest) -> tuple[dict[str, Tensor], dict[str, Any]]:
        data = read_trainer_data(path, manifest)
        file = verify_file(path, TRAINER_TENSORS, manifest.files[TRAINER_TENSORS])
        return map_tensors(file) if mapped else read_tensors(file), data

    return read_checkpoint(folder, read)


def read_trainer_data(path: Path, manifest: Manifest) -> dict[str, Any]:
    """Only the plain data, without reading the tensors."""
    if TRAINER_DATA not in manifest.files:
        raise CheckpointError(f"{path} was saved without a trainer's state, so no run can continue from it")
    file = verify_file(path, TRAINER_DATA, manifest.files[TRAINER_DATA])
    with retold(CheckpointError, ConfigError):
        data = parse_json(file.read_bytes(), str(file))
    if not isinstance(data, dict):
        raise CheckpointError(f"{file} does not contain a JSON object")
    return data


def read_tokenizer(folder: str | os.PathLike[str]) -> StoredTokenizer | None:
    """The tokenizer that was saved with the model; None if none was.

    Errors:  CheckpointError, as :func:`load`.
    """

    def read(path: Path, manifest: Manifest) -> StoredTokenizer | None:
        if manifest.tokenizer is None:
            return None
        texts = {}
        for name in (TOKENIZER_FILE, *PUBLISHED_FILES):
            if name in manifest.files:
                file = verify_file(path, name, manifest.files[name])
                with retold(CheckpointError, DataError):
                    texts[name] = read_text(file)
        return StoredTokenizer(*manifest.tokenizer, texts.pop(TOKENIZER_FILE, None), texts)

    return read_checkpoint(folder, read)


def read_config(folder: str | os.PathLike[str]) -> Manifest:
    """What config.json says, without reading the tensors."""
    return read_checkpoint(folder, lambda path, manifest: manifest)


def _require_vocabulary(model: Model, tokenizer: SavedTokenizer, folder: str) -> None:
    if not (isinstance(model.config, LanguageModelConfig) or needs_tokenizer(model.config)):
        raise InputError(
            f"cannot save {folder}: a {type(model).__name__} does not read text; save it without a tokenizer"
        )
    vocab_size: int = model.config.vocab_size  # type: ignore[attr-defined]
    if tokenizer.vocab_size > vocab_size:
        raise CheckpointError(
            f"cannot save {folder}: the tokenizer has {tokenizer.vocab_size} tokens, the model only "
            f"{vocab_size}; give the tokenizer that the model was trained with"
        )


def _text_files(tokenizer: SavedTokenizer | None, trainer: Trainer | None, folder: str) -> dict[str, bytes]:
    contents = {}
    if tokenizer is not None and tokenizer.kind == "tokenizers":
        contents[TOKENIZER_FILE] = tokenizer.json.encode()  # type: ignore[attr-defined]
        contents |= {name: text.encode() for name, text in published_files(tokenizer).items()}
    if trainer is not None:
        try:
            contents[TRAINER_DATA] = encode_json(dict(trainer[1]))
        except (TypeError, ValueError) as error:
            raise InputError(f"cannot save {folder}: the trainer's data is not JSON ({error})") from error
    return contents


def published_files(tokenizer: SavedTokenizer | None) -> Mapping[str, str]:
    """What a tokenizer was published with, for a copy to carry: the text of each file by its name."""
    conventions = getattr(tokenizer, "conventions", None)
    return {} if conventions is None else conventions.files


def _dtypes(tensors: Mapping[str, Tensor]) -> tuple[torch.dtype, dict[str, torch.dtype]]:
    """The dtype of most floating tensors, and those that have another."""
    floating = {name: tensor.dtype for name, tensor in tensors.items() if tensor.is_floating_point()}
    found = list(floating.values())
    most = max(found, key=found.count)
    return most, {name: dtype for name, dtype in floating.items() if dtype != most}
