"""Checkpoints, and how reading one is refused."""

from __future__ import annotations

from pathlib import Path

import statewise as sw
from statewise import checkpoints

FILES = ("config.json", "model.safetensors", "tokenizer.json", "trainer/state.json", "trainer/state.safetensors")


class JSONTokenizer:
    """Enough of a tokenizer to be saved with its JSON."""

    kind, vocab_size, fingerprint, json = "tokenizers", 2, "f" * 64, '{"model": "é"}'


def read_all(folder: Path) -> None:
    sw.load(folder)
    checkpoints.read_tokenizer(folder)
    checkpoints.read_trainer(folder)
