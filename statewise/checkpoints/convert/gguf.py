"""llama.cpp's one-file format GGUF, for its architectures mamba, mamba2, gpt2 and gptneox: read in F32, F16, BF16 and
Q8_0, written in F32 and F16. The ``gguf`` package (extra ``gguf``) does it, and is imported when needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from statewise.checkpoints.convert.entries import read_entries, write_entries
from statewise.checkpoints.convert.gguf_conventions import read_files
from statewise.checkpoints.convert.gguf_decoders import DECODERS
from statewise.checkpoints.convert.gguf_entries import (
    ARCHITECTURES,
    EMBEDDING,
    build_entries,
    read_config,
    write_config,
)
from statewise.checkpoints.convert.gguf_tokenizer import TOKENS, read_tokenizer, write_tokenizer
from statewise.checkpoints.convert.gguf_values import Value
from statewise.checkpoints.empty import expected_shapes
from statewise.checkpoints.files import SavedTokenizer
from statewise.checkpoints.tensor_files import require_held, shown
from statewise.errors import CheckpointError, ConfigError, InputError, retold
from statewise.models.base import ModelConfig
from statewise.models.language_model import LanguageModelConfig

TYPES = ("F32", "F16", "Q8_0", "BF16")  # that are read
KNOWN = (*ARCHITECTURES, *DECODERS)
NUMBERS = ("F64", "I8", "I16", "I32", "I64")  # that are not read, and are no quantisations
FILE_TYPES = {torch.float32: 0, torch.float16: 1}  # of general.file_type
# Matrices that are always float32, since llama.cpp reads them so; with the vectors, and the norms of Mamba-2
FLOAT32 = ("position_embd.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "norm.weight")


def read_gguf(path: str | os.PathLike[str]) -> tuple[LanguageModelConfig, dict[str, Tensor]]:
    """Our config and our tensors of a GGUF file of Mamba, Falcon-Mamba, Mamba-2, GPT-2 or GPT-NeoX.

    The tensors are float32, whatever the file has them in: a file mixes types, and float32 holds each exactly. Only
    A_log = log(-ssm_a) is computed, in float64.

    Cost:    one pass over the file; the tensors in memory once.
    Errors:  CheckpointError for a file that is not GGUF, or is damaged; for an architecture or a quantisation that is
             not read, with both; for a tensor or a key that is missing, of a wrong shape, or one too many.
    """
    from statewise.checkpoints.convert.gguf_file import read_file

    path = Path(path)
    file = read_file(path)
    if strange := [name for name in file.tensors if shown(name) != name]:
        raise CheckpointError(
            f"{path}: {shown(strange[0])} is not a tensor name in any architecture that Statewise reads"
        )
    architecture = file.metadata.get("general.architecture")
    unread = sorted({tensor.type for tensor in file.tensors.values()} - set(TYPES))
    if not isinstance(architecture, str) or architecture not in KNOWN or unread:
        found = sorted({tensor.type for tensor in file.tensors.values()})
        raise CheckpointError(
            f"{path} is a GGUF file of architecture {shown(str(architecture))} "
            f"with tensors in {', '.join(found) or 'no type'}; "
            f"Statewise reads {', '.join(KNOWN)}, in {', '.join(TYPES)}" + _advice(unread)
        )
    with retold(CheckpointError, CheckpointError, ConfigError, where=f"{path}: "):
        config = read_config(architecture, file.metadata, {name: tensor.shape for name, tensor in file.tensors.items()})
        shapes = expected_shapes(config)
    entries = build_entries(config)
    tensors = {name: file.read(name) for name in file.tensors}
    return config, read_entries(entries, tensors, shapes, where=str(path))


def write_gguf(
    config: ModelConfig,
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    tokenizer: SavedTokenizer | None = None,
) -> None:
    """A new file that llama.cpp runs.

    tensors:    ours by name, as a checkpoint holds them (``stored_tensors(model)``)
    dtype:      of the matrices: float32 or float16; None: float16 if the embedding is, else float32. The vectors, the
                convolution and A are always float32, as llama.cpp's own converter has them
    tokenizer:  a byte tokenizer, or one of a tokenizer.json that is byte-level BPE; None: the file has no vocabulary
    Errors:     CheckpointError for a model or a tokenizer that GGUF has no form for, and for numbers that float16 does
                not hold; OSError, also if there is a file. It is not written atomically.
    """
    from statewise.checkpoints.convert.gguf_file import write_file

    if not isinstance(config, LanguageModelConfig):
        raise CheckpointError(f"only a language model can be written as GGUF; this is a {type(config).__name__}")
    if dtype not in (None, *FILE_TYPES):
        raise InputError(f"GGUF cannot be written in {dtype}; use float32 or float16")
    architecture, values = write_config(config)
    theirs = write_entries(build_entries(config), tensors)
    if dtype is None:
        dtype = torch.float16 if theirs[EMBEDDING].dtype == torch.float16 else torch.float32
    if tokenizer is None:
        values[f"{architecture}.vocab_size"] = config.vocab_size
    metadata: dict[str, Value] = {
        "general.architecture": architecture,
        "general.file_type": FILE_TYPES[dtype],
        **values,
        **write_tokenizer(tokenizer, config.vocab_size),
    }
    write_file(Path(path), metadata, {name: _cast(name, tensor, dtype) for name, tensor in theirs.items()})


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


def _cast(name: str, tensor: Tensor, dtype: torch.dtype) -> Tensor:
    if tensor.ndim < 2 or name.endswith(FLOAT32):
        dtype = torch.float32
    made = tensor.detach().to("cpu", dtype)
    require_held(name, made, "GGUF")
    return made
