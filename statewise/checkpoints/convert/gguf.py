"""llama.cpp's one-file format GGUF, for its architectures mamba, mamba2, rwkv7, gpt2, gptneox and those of
``gguf_hybrids``, in the types of ``gguf_types``.

The ``gguf`` package (extra ``gguf``) reads and writes it, and is imported when needed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import read_entries
from statewise.checkpoints.convert.gguf_conventions import read_files
from statewise.checkpoints.convert.gguf_decoders import DECODERS
from statewise.checkpoints.convert.gguf_entries import (
    ARCHITECTURES,
    EMBEDDING,
    HYBRIDS,
    build_entries,
    read_config,
    write_model,
)
from statewise.checkpoints.convert.gguf_rwkv7 import FLOAT32 as RWKV7_FLOAT32
from statewise.checkpoints.convert.gguf_rwkv7 import RWKV7
from statewise.checkpoints.convert.gguf_tokenizer import TOKENS, read_tokenizer, write_tokenizer
from statewise.checkpoints.convert.gguf_types import NUMBERS, QUANTISATIONS, READ, WRITTEN
from statewise.checkpoints.convert.gguf_values import Value
from statewise.checkpoints.empty import expected_shapes
from statewise.checkpoints.files import SavedTokenizer
from statewise.checkpoints.tensor_files import require_finite, require_held, shown
from statewise.errors import CheckpointError, ConfigError, InputError, retold
from statewise.models.base import ModelConfig
from statewise.models.language_model import LanguageModelConfig

if TYPE_CHECKING:
    from statewise.checkpoints.convert.gguf_file import GGUF, StoredTensor

KNOWN = (*ARCHITECTURES, RWKV7, *DECODERS, *HYBRIDS)
TYPE_OF = {torch.float32: "F32", torch.float16: "F16"}
QUANTISATION_VERSION = 2  # of the layout of the blocks, as the package and llama.cpp number it
# Matrices that are always float32, since llama.cpp reads them so; with the vectors, and the norms of Mamba-2
FLOAT32: tuple[str, ...] = ("position_embd.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "norm.weight")
FLOAT32 += ("shortconv.conv.weight", "ffn_gate_inp.weight", *(f"ssm_conv1d_{letter}.weight" for letter in "qkv"))
FLOAT32 += RWKV7_FLOAT32


def read_gguf(
    path: str | os.PathLike[str], *, keep_quantised: bool = False
) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """Our config and our tensors of a GGUF file of Mamba, Falcon-Mamba, Mamba-2, RWKV-7, GPT-2, GPT-NeoX or a hybrid.

    The tensors are float32, whatever the file has them in: a file mixes types, and float32 holds each exactly, but
    for F64, which is rounded. Only A_log = log(-ssm_a) is computed, in float64.

    keep_quantised: matrices in integers become a ``QuantisedTensor`` each, in the memory that they have in the file.
             What has to be computed from one, as A_log is, is plain.

    Cost:    one pass over the file; the tensors in memory once.
    Errors:  CheckpointError for a file that is not GGUF, or is damaged; for an architecture or a quantisation that is
             not read, with both; for a tensor or a key that is missing, of a wrong shape, or one too many.
    """
    from statewise.checkpoints.convert.gguf_file import read_file

    file = read_file(Path(path))
    config = gguf_config(file)
    tensors = {name: file.read(name, keep_quantised=keep_quantised) for name in model_tensors(file)}
    entries = build_entries(str(file.metadata["general.architecture"]), config)
    return config, read_entries(entries, tensors, expected_shapes(config), where=str(path))


def gguf_config(file: GGUF) -> LanguageModelConfig:
    """Our config of a file, of which only the header is read.

    Errors:  CheckpointError as :func:`read_gguf`, but for tensors that are missing or too many.
    """
    path = file.path
    if strange := [name for name in file.tensors if shown(name) != name]:
        raise CheckpointError(
            f"{path}: {shown(strange[0])} is not a tensor name in any architecture that Statewise reads"
        )
    architecture = file.metadata.get("general.architecture")
    found = {tensor.type for tensor in file.tensors.values()}
    unread = sorted(found - set(READ))
    if not isinstance(architecture, str) or architecture not in KNOWN or unread:
        raise CheckpointError(
            f"{path} is a GGUF file of architecture {shown(str(architecture))} "
            f"with tensors in {', '.join(sorted(found)) or 'no type'}; "
            f"Statewise reads {', '.join(KNOWN)}" + (f", in {', '.join(READ)}" if unread else "") + _advice(unread)
        )
    with retold(CheckpointError, CheckpointError, ConfigError, where=f"{path}: "):
        config = read_config(
            architecture, file.metadata, {name: tensor.shape for name, tensor in model_tensors(file).items()}
        )
        expected_shapes(config)
    return config


def model_tensors(file: GGUF) -> dict[str, StoredTensor]:
    """Those of the model itself, by name: without the layers behind it that guess further tokens, as Qwen3.5's."""
    prefix = file.metadata.get("general.architecture")
    n_layers, n_further = (file.metadata.get(f"{prefix}.{key}") for key in ("block_count", "nextn_predict_layers"))
    if prefix not in HYBRIDS or not isinstance(n_layers, int) or not isinstance(n_further, int):
        return file.tensors
    further = tuple(f"blk.{i}." for i in range(max(0, n_layers - n_further), min(n_layers, len(file.tensors))))
    return {name: tensor for name, tensor in file.tensors.items() if not name.startswith(further)}


def write_gguf(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    type: str | None = None,
    tokenizer: SavedTokenizer | None = None,
) -> None:
    """A new file that llama.cpp runs.

    tensors:    ours by name, as a checkpoint holds them (``stored_tensors(model)``)
    dtype:      of the matrices: float32 or float16; None: float16 if the embedding is, else float32. The vectors, the
                convolution and A are always float32, as llama.cpp's own converter has them
    type:       of the matrices instead of a dtype: one of ``gguf_types.WRITTEN``, such as "Q8_0". A matrix whose rows
                are not whole blocks of the type is in F16, as llama.cpp's converter has it
    tokenizer:  a byte tokenizer, or one of a tokenizer.json that is byte-level BPE; None: the file has no vocabulary
    Errors:     CheckpointError for a model or a tokenizer that GGUF has no form for, and for numbers that float16 does
                not hold; OSError, also if there is a file. It is not written atomically.
    """
    from statewise.checkpoints.convert.gguf_file import write_file

    if not isinstance(config, LanguageModelConfig):
        raise CheckpointError(f"only a language model can be written as GGUF; this is a {config.__class__.__name__}")
    if dtype not in (None, *TYPE_OF):
        raise InputError(f"GGUF cannot be written in {dtype}; use float32 or float16")
    if type is not None and (type not in WRITTEN or dtype is not None):
        given = f"type={type!r}" + (f" and dtype={dtype}" if dtype else "")
        raise InputError(f"{given} cannot be written in a GGUF file; use one of {', '.join(WRITTEN)} alone")
    architecture, values, theirs = write_model(config, tensors)
    if type is None:
        type = TYPE_OF[dtype or (torch.float16 if theirs[EMBEDDING].dtype == torch.float16 else torch.float32)]
    if tokenizer is None:
        values = values | {f"{architecture}.vocab_size": config.vocab_size}
    metadata: dict[str, Value] = {
        "general.architecture": architecture,
        "general.file_type": WRITTEN[type],
        **({"general.quantization_version": QUANTISATION_VERSION} if type in QUANTISATIONS else {}),
        **values,
        **write_tokenizer(tokenizer, config.vocab_size),
    }
    write_file(Path(path), metadata, {name: _cast(name, tensor, type) for name, tensor in theirs.items()})


def gguf_tokenizer(path: str | os.PathLike[str]) -> str | None:
    """The text of a tokenizer.json that cuts text as the tokenizer in the file; None if there is none, or if it is of
    a kind that is not turned: only byte-level BPE is, and only where the name of its splitting is known.

    Errors:  CheckpointError for a file that is not GGUF, or is damaged.
    """
    from statewise.checkpoints.convert.gguf_file import read_file

    return read_tokenizer(read_file(Path(path)).metadata)


def gguf_conventions(path: str | os.PathLike[str]) -> dict[str, str]:
    """How the file says that its model is used, as the files of ``conventions.published.FILES``.

    Errors:  CheckpointError for a file that is not GGUF, or is damaged, and for an id outside its vocabulary.
    """
    from statewise.checkpoints.convert.gguf_file import read_file

    metadata = read_file(Path(path)).metadata
    tokens = metadata.get(TOKENS)
    with retold(CheckpointError, CheckpointError, where=f"{path}: "):
        return read_files(metadata, tokens if isinstance(tokens, list) else [])


def _advice(unread: list[str]) -> str:
    """unread: names of types that are not read"""
    if not unread:
        return ""
    if unread[0] in NUMBERS:
        return f": {unread[0]} must be written as F32"
    return f": {unread[0]} must be made again from the unquantised model"


def _cast(name: str, tensor: Tensor, type: str) -> Tensor | StoredTensor:
    from statewise.checkpoints.convert.gguf_file import narrowed, widened

    tensor = tensor.detach().cpu()
    if tensor.ndim < 2 or name.endswith(FLOAT32):
        type = "F32"
    elif type in QUANTISATIONS and tensor.shape[-1] % QUANTISATIONS[type].block:
        type = "F16"
    if type in ("F32", "F16"):
        made = tensor.to(torch.float16 if type == "F16" else torch.float32)
        require_held(name, made, "GGUF")
        return made
    stored = narrowed(tensor.float(), type)
    require_finite(f"{name} in {type}", widened(stored), "GGUF")
    return stored
