"""A model turned from one format into another, as `statewise convert` does it."""

from __future__ import annotations

import os
from typing import Any

from statewise.checkpoints import save
from statewise.checkpoints.convert import WRITTEN, Progress, save_as
from statewise.checkpoints.convert.gguf_types import WRITTEN as GGUF_TYPES
from statewise.checkpoints.manifest import DTYPES
from statewise.checkpoints.tensor_files import GGUF, dtype_name
from statewise.cli.model_folder import open_model
from statewise.data.tokenizers import describe_tokenizer
from statewise.errors import CheckpointError, ConfigError, DataError

TARGETS = ("statewise", *WRITTEN)
CONVERT_DTYPES = ("float32", "float16", "bfloat16")
NO_TOKENIZER = "none"


def convert_model(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    to: str | None = None,
    dtype: str | None = None,
    type: str | None = None,
    tokenizer: str | None = None,
    which: str = "best",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Reads a model of any format, writes it in another, and returns what it was. Its tokenizer goes with it.

    to:        "statewise", or one of ``checkpoints.convert.WRITTEN``; None: gguf if ``target`` is named so, else ours
    dtype:     "float32", "float16" or "bfloat16"; None: as it is. ``Dynamics`` stay float32 in a checkpoint of ours.
    type:      of the matrices in GGUF, such as "q8_0"
    tokenizer: "bytes", or the path of a tokenizer.json; "none": the source's is left out; None: it goes with it
    Errors:    ConfigError for an unknown format or dtype, and for a folder named *.gguf; CheckpointError if there is
               something at ``target``; else as :func:`open_model` and ``save_as``.
    """
    if to is None:
        to = "gguf" if os.fspath(target).endswith(GGUF) else "statewise"
    if to not in TARGETS:
        raise ConfigError(f"--to {to!r} is unknown; use one of {', '.join(TARGETS)}")
    if to != "gguf" and os.fspath(target).endswith(GGUF):
        raise ConfigError(
            f"{target} is the name of a GGUF file, but --to {to} writes a folder; give --to gguf, or another name"
        )
    if dtype is not None and dtype not in CONVERT_DTYPES:
        raise ConfigError(f"--dtype {dtype!r} is unknown; use one of {', '.join(CONVERT_DTYPES)}")
    if type is not None and (to != "gguf" or dtype is not None):
        raise ConfigError(f"--type {type!r} is for --to gguf without --dtype; leave one of them out")
    if type is not None and type.upper() not in GGUF_TYPES:
        raise ConfigError(f"--type {type!r} is not written; use one of {', '.join(GGUF_TYPES).lower()}")
    if os.path.exists(target):
        raise CheckpointError(f"{target} exists already and is not replaced; give another name, or remove it")
    wanted = None if dtype is None else DTYPES[dtype]
    without = tokenizer == NO_TOKENIZER
    given = None if without else tokenizer
    opened = open_model(source, which=which, device="cpu", tokenizer=given, dtype=wanted, progress=progress)
    carried = opened.tokenizer if opened.has_tokenizer and not without else None
    if carried is not None and carried.vocab_size > opened.language_model.config.vocab_size:
        raise DataError(
            f"the tokenizer has {carried.vocab_size} ids, but the model only "
            f"{opened.language_model.config.vocab_size}; give the tokenizer it was "
            "trained with, --tokenizer FILE, or write none, --tokenizer none"
        )
    if to == "statewise":
        save(opened.model, target, tokenizer=carried)
    else:
        save_as(opened.model, target, to, dtype=wanted, type=type and type.upper(), tokenizer=carried)
    return {
        "source": str(source),
        "format": opened.format,
        "target": str(target),
        "to": to,
        "model": opened.model.__class__.__name__,
        "layers": len(opened.model.layers),
        "parameters": sum(parameter.numel() for parameter in opened.model.parameters()),
        "dtype": type.upper() if type else dtype_name(next(opened.model.parameters()).dtype),
        "tokenizer": None if carried is None else describe_tokenizer(carried),
    }
