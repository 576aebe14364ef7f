"""What the model of lm-eval is made of: opened, or refused before anything is read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints import load, read_config, resolve
from statewise.checkpoints.convert.read import Published, open_published
from statewise.checkpoints.convert.source import is_published
from statewise.checkpoints.convert.wrapped import WRAPPED
from statewise.checkpoints.loading import locate_source
from statewise.conventions.published import FILES as PUBLISHED_FILES
from statewise.data.tokenizers import Tokenizer, load_tokenizer
from statewise.errors import ConfigError
from statewise.generation.opening import find_tokenizer
from statewise.models.language_model import LanguageModel

DEFAULT_BATCH = 16
DTYPES = {name: getattr(torch, name) for name in ("float32", "float16", "bfloat16", "float64")}


def rows_together(batch_size: int | str | None, most: int | None) -> int:
    """``batch_size`` as lm-eval's models take it, as a number."""
    if batch_size is None or (isinstance(batch_size, str) and batch_size.split(":")[0] == "auto"):
        size: Any = DEFAULT_BATCH if most is None else min(DEFAULT_BATCH, most)
    else:
        size = int(batch_size) if isinstance(batch_size, str) and batch_size.isdecimal() else batch_size
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise ConfigError(f'StatewiseLM batch_size={batch_size!r} is unknown; use an integer of at least 1, or "auto"')
    return size


def open_model(
    pretrained: str | os.PathLike[str] | LanguageModel,
    tokenizer: str | Tokenizer | None,
    device: str | None,
    dtype: str | torch.dtype | None,
) -> tuple[LanguageModel, Tokenizer, bool]:
    """The model, its tokenizer, and whether it has seen every document begin with the document token: one of ours, and
    one that was given as it is."""
    if isinstance(tokenizer, (str, os.PathLike)):
        tokenizer = load_tokenizer(str(tokenizer))
    if isinstance(pretrained, LanguageModel):
        if tokenizer is None:
            raise ConfigError('a model needs its tokenizer; give tokenizer="bytes", a path or a tokenizer')
        if device is not None or dtype not in (None, "auto"):
            raise ConfigError("device and dtype are for a model that is loaded from a folder; use model.to(...) before")
        return pretrained, tokenizer, True
    wanted, place = _dtype(dtype), _device(device)  # before anything is read
    checkpoint = locate_source(pretrained)
    published = open_published(checkpoint) if is_published(checkpoint) else None
    if published is None:
        checkpoint = resolve(checkpoint, "best")
        model = load(checkpoint, device=place, dtype=wanted)
    else:
        model = published.build(device=place, dtype=wanted)
    if not isinstance(model, LanguageModel):
        raise ConfigError(
            f"{pretrained} holds a {type(model).__name__}, which cannot score text; give a language model"
        )
    if tokenizer is None:
        tokenizer = _tokenizer_of(checkpoint)
    return model, tokenizer, _begins_documents(checkpoint, published)


def _begins_documents(checkpoint: Path, published: Published | None) -> bool:
    """Whether it is a model of ours, wrapped or not, but none that others published and that says how it is used."""
    if published is None:
        return not read_config(checkpoint).files.keys() & {*PUBLISHED_FILES}
    theirs = published.source.tokenizer
    return published.format == WRAPPED and not (theirs and theirs.files)


def _dtype(given: str | torch.dtype | None) -> torch.dtype | None:
    if given is None or given == "auto":
        return None
    found = given if isinstance(given, torch.dtype) else DTYPES.get(str(given))
    if found not in DTYPES.values():
        raise ConfigError(f'StatewiseLM dtype={str(given)!r} is unknown; use "auto" or one of {", ".join(DTYPES)}')
    return found


def _device(given: str | torch.device | None) -> torch.device:
    try:
        device = torch.device("cpu" if given is None else given)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:  # unknown, or known and not here
        reason = str(error).splitlines()[0][:120]
        raise ConfigError(
            f'StatewiseLM device={str(given)!r} cannot be used ({reason}); use "cpu", or "cuda" if there is a GPU'
        ) from error
    return device


def _tokenizer_of(path: Path) -> Tokenizer:
    """Errors: ConfigError if there is none."""
    found = find_tokenizer(path)
    if found is None:
        raise ConfigError(f'{path} has no tokenizer; give tokenizer="bytes" or the path of a tokenizer.json')
    return found
