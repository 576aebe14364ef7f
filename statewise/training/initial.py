"""Parameters that a run begins with: a copy of a model in the run's folder, so that it needs nothing else later."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import NamedTuple

import torch

from statewise.checkpoints import load, locate_source, resolve, save
from statewise.checkpoints.convert.source import is_published
from statewise.checkpoints.folders import RUN_FILE
from statewise.generation.opening import find_tokenizer
from statewise.models.base import Model, ModelConfig
from statewise.models.language_model import LanguageModel
from statewise.models.text_input import needs_tokenizer
from statewise.training.initial_tokenizer import tokenizer_of

INITIAL = "initial"  # the folder within a run's, and in it
CHECKPOINT = "model"


class Initial(NamedTuple):
    """Where the copy lies, its model's config, and the tokenizer to read text by, as ``data.tokenizer`` has it."""

    path: Path
    config: ModelConfig
    tokenizer: str | None


def keep_initial(model: Model | str | os.PathLike[str], folder: Path) -> Initial:
    """Writes into an empty folder a checkpoint in float32, of a model or of what :func:`statewise.load` takes.

    The model that was given stays as it is.

    Errors:  CheckpointError as ``load`` and ``save``.
    """
    tokenizer, target = None, folder / CHECKPOINT
    if not isinstance(model, Model):
        path = locate_source(model)
        model = load(path, dtype=torch.float32)
        if isinstance(model, LanguageModel) or needs_tokenizer(model.config):
            tokenizer = find_tokenizer(path if is_published(path) or not (path / RUN_FILE).exists() else resolve(path))
    if any(p.is_floating_point() and p.dtype != torch.float32 for p in model.parameters()):
        model = copy.deepcopy(model).float()
    save(model, target, tokenizer=tokenizer)
    return Initial(target, model.config, tokenizer_of(target))
