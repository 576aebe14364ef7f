"""The tensors of a published model's files by name, mapped to the files and not yet in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from statewise.checkpoints.convert.pickles import load_pickle, plain
from statewise.checkpoints.convert.source import INDEX, Source, shards_of
from statewise.checkpoints.manifest import DTYPES
from statewise.checkpoints.tensor_files import SAFETENSORS, count_bytes, dtype_name, map_tensors, shown
from statewise.errors import CheckpointError, DataError, excerpt, reading, retold
from statewise.files.limits import require_within
from statewise.models.quantised import QuantisedTensor

Tensors = dict[str, Tensor]
# Under which a training program's file has the weights: Lightning's, and the example of the S4 repository
STATE_DICT_KEYS = ("state_dict", "model")
COUNTERS = (torch.int32, torch.int64)  # as single numbers: lengths of filters, batches seen by a norm
MASK = ("attn.bias", "attention.bias")  # causal masks, which transformers' decoders stored until 2023
LIGHTNING_VERSION = "pytorch-lightning_version"


def read_weights(source: Source) -> tuple[dict[str, Any], Tensors]:
    """The config of a source and its tensors.

    To the config of a file by Lightning are added its "pytorch-lightning_version" and its "hyper_parameters", as plain
    data. Tensors have the names of the file, such as "model.encoder.weight" in one by Lightning; only the "module."
    that ``nn.DataParallel`` puts before all of them is gone.

    Errors:  CheckpointError for files that are damaged, that would run code, whose shards are missing or elsewhere,
             or that hold something else than tensors.
    """
    config = dict(source.config)
    if source.weights.name.endswith(INDEX):
        tensors = _read_shards(source.weights)
    else:
        more, tensors = _read_file(source.weights)
        config = more | config
    if not tensors:
        raise CheckpointError(f"{source.weights} contains no tensors")
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return config, tensors


def owned(tensors: dict[str, Tensor], mapped: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Takes the tensors out one by one, each in memory of its own and no longer the file's."""
    files = {tensor.untyped_storage().data_ptr() for tensor in mapped.values()}
    for name in list(tensors):
        tensor = tensors.pop(name).detach()
        if isinstance(tensor, QuantisedTensor):
            yield name, tensor
            continue
        storage = tensor.untyped_storage()
        alone = storage.nbytes() == tensor.numel() * tensor.element_size() and tensor.is_contiguous()
        if not alone or storage.data_ptr() in files:
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        files.add(storage.data_ptr())  # what shares it comes later, and has to have its own
        yield name, tensor


def _read_shards(index: Path) -> Tensors:
    found: Tensors = {}
    for file, names in shards_of(index).items():
        _, tensors = _read_file(index.parent / file)
        for problem, differing in (("lacks", set(names) - tensors.keys()), ("also holds", tensors.keys() - set(names))):
            if differing:
                raise CheckpointError(
                    f"{index.parent / file} {problem} the tensor {shown(min(differing))}, by {index.name}"
                )
        found |= tensors
    return found


def _read_file(path: Path) -> tuple[dict[str, Any], Tensors]:
    with reading(path, CheckpointError):
        if path.suffix == SAFETENSORS:
            return {}, _plain_tensors(map_tensors(path), path)
        loaded = load_pickle(path)
    if not isinstance(loaded, Mapping):
        raise CheckpointError(f"{path} contains a {type(loaded).__name__}; expected a dict of tensors by name")
    for key in STATE_DICT_KEYS:
        if isinstance(loaded.get(key), Mapping):
            more = {}
            if LIGHTNING_VERSION in loaded:
                more[LIGHTNING_VERSION] = str(loaded[LIGHTNING_VERSION])
                more["hyper_parameters"] = _plain_data(loaded.get("hyper_parameters"), path)
            return more, _plain_tensors(loaded[key], path)
    return {}, _plain_tensors(loaded, path)


def _plain_data(value: Any, path: Path) -> Any:
    try:
        return plain(value)
    except RecursionError as error:  # it may hold itself
        raise CheckpointError(f"{path}: its hyper_parameters are nested too deeply") from error


def _plain_tensors(loaded: Mapping[Any, Any], path: Path) -> Tensors:
    for name, tensor in loaded.items():
        _require_plain(name, tensor, path)
    with retold(CheckpointError, DataError):
        # One number may stand for many, by a stride of 0, and a tensor may be made without any number of the file
        require_within(str(path), count_bytes(loaded), path.stat().st_size, unit="bytes of tensors")
    return dict(loaded)


def _require_plain(name: Any, tensor: Any, path: Path) -> None:
    if not isinstance(name, str):
        raise CheckpointError(f"{path}: a key is {shown(repr(name))}, expected the names of tensors")
    if not isinstance(tensor, Tensor):
        raise CheckpointError(f"{path}: {excerpt(name)} is a {type(tensor).__name__}; expected a tensor")
    if shown(name) != name:
        raise CheckpointError(f"{path}: {shown(name)} is not a tensor name in any known format")
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        raise CheckpointError(f"{path}: {name} is sparse, quantised or empty; expected a plain tensor")
    if tensor.dtype in DTYPES.values() or (tensor.ndim == 0 and tensor.dtype in COUNTERS):
        return
    if tensor.dtype in (torch.bool, torch.uint8) and name.endswith(MASK):
        return
    quantised = "" if tensor.is_floating_point() or tensor.is_complex() else ", perhaps of a quantisation"
    raise CheckpointError(
        f"{path}: {name} is {dtype_name(tensor.dtype)}{quantised}, which Statewise does not read; convert the weights "
        f"to one of {', '.join(DTYPES)}"
    )
