"""The tokenizer of a model, wherever the model is."""

from __future__ import annotations

import os
from pathlib import Path

from statewise.checkpoints import locate_source, read_tokenizer
from statewise.checkpoints.convert.source import find_source, is_published
from statewise.checkpoints.manifest import TOKENIZER_FILE
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer
from statewise.errors import CheckpointError


def open_tokenizer(source: str | os.PathLike[str], *, revision: str | None = None) -> Tokenizer:
    """The tokenizer of a model, with its published conventions: end tokens, settings, chat template.

    source:  as in :func:`statewise.load`: a checkpoint of ours, a published folder or file, or a hub name
    Errors:  CheckpointError if the model comes without a tokenizer, and as ``load``; DataError for a tokenizer that
              cannot be used.
    """
    path = locate_source(source, revision)
    found = find_tokenizer(path)
    if found is None:
        raise CheckpointError(f"{path} has no tokenizer; open one with FileTokenizer(path of a tokenizer.json)")
    return found


def find_tokenizer(path: Path) -> Tokenizer | None:
    """That of a checkpoint of ours or of a published model; None if it comes without.

    Errors:  as for :func:`open_tokenizer`.
    """
    if is_published(path):
        theirs = find_source(path).tokenizer
        return None if theirs is None else FileTokenizer(theirs.json, name=str(theirs.file), files=theirs.files)
    stored = read_tokenizer(path)
    if stored is None or stored.json is None:
        return None if stored is None else ByteTokenizer()
    return FileTokenizer(stored.json, name=str(path / TOKENIZER_FILE), files=stored.files)
