"""The tokenizer of the model that a run begins with: its token ids stand for other text in any other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from statewise.checkpoints import read_config, resolve
from statewise.checkpoints.manifest import TOKENIZER_FILE
from statewise.data.base import DataConfig
from statewise.data.learned_tokenizer import learned_size
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import ConfigError
from statewise.models.base import ModelConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.text_input import TextInputConfig, needs_tokenizer
from statewise.training.tasks import Task


def tokenizer_of(checkpoint: Path) -> str | None:
    """The tokenizer of a checkpoint as ``data.tokenizer`` has it: "bytes" or a path; None where it has none.

    Errors:  CheckpointError as ``load``.
    """
    manifest = read_config(checkpoint)
    if manifest.tokenizer is None:
        text = getattr(manifest.model, "text", None)
        return "bytes" if isinstance(text, TextInputConfig) and text.encoding == "bytes" else None
    return "bytes" if manifest.tokenizer.kind == "bytes" else str(checkpoint / TOKENIZER_FILE)


def own_tokenizer(data: DataConfig, assignments: Sequence[str]) -> list[str]:
    """What sets ``data.tokenizer`` to that of ``train.initial``, where the assignments or the data name no other.

    Errors: CheckpointError where there is no such checkpoint.
    """
    said = {name.strip(): value for name, _, value in (line.partition("=") for line in assignments)}
    initial = _plain(said.get("train.initial", "null"))
    is_named = getattr(data, "tokenizer", None) != "bytes" or {"data", "data.tokenizer"} & said.keys()
    if not isinstance(initial, str) or is_named:
        return []
    tokenizer = tokenizer_of(resolve(initial))
    return [] if tokenizer is None else [f"data.tokenizer={json.dumps(tokenizer)}"]


def _plain(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def require_own_tokenizer(initial: Path, data: DataConfig, task: Task[Any, Any] | None = None) -> None:
    """Before a model of tokens begins from the parameters of a checkpoint.

    task:   of the data; None: not opened yet, and only what their config says is compared
    Errors: ConfigError unless the tokens of the data are those that the checkpoint's model was trained on.
    """
    own, manifest, asked = tokenizer_of(initial), read_config(initial), getattr(data, "tokenizer", None)
    if own is None or not isinstance(asked, str):  # nothing is known of it, or the data are no text
        return
    if task is None:
        is_own = (asked == "bytes") == (own == "bytes")
        is_own &= (learned_size(asked) or 0) <= getattr(manifest.model, "vocab_size", 0)
    else:
        fingerprint = None if manifest.tokenizer is None else manifest.tokenizer.fingerprint
        is_own = fingerprint == (None if task.tokenizer is None else task.tokenizer.fingerprint)
    if not is_own:
        raise ConfigError(
            f"data.tokenizer={asked!r} is not the tokenizer that the model at {initial} was trained with, so its "
            f"parameters do not fit these tokens; set data.tokenizer={own}"
        )


def require_named(model: ModelConfig, data: DataConfig, named: Any) -> None:
    """Before a model in memory, which does not hold its tokenizer, is trained on texts.

    named:  data.tokenizer, where it is set beside the data
    Errors: ConfigError if it reads the tokens of a tokenizer, and none is named, or one that is yet to be learned.
    """
    tokenizer = named or getattr(data, "tokenizer", None)
    if not isinstance(tokenizer, str):
        return
    if isinstance(model, LanguageModelConfig):  # one that was never trained may learn any
        is_fine = named or tokenizer != "bytes" or model.vocab_size == ByteTokenizer.vocab_size
    else:
        is_fine = not needs_tokenizer(model) or (tokenizer != "bytes" and learned_size(tokenizer) is None)
    if not is_fine:
        raise ConfigError(
            "a model in memory does not hold the tokenizer that it was trained with; give the path of its run instead, "
            "or set data.tokenizer to its tokenizer.json"
        )
