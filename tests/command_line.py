"""The command line in tests: a small run, what a call prints, what lies in a folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import statewise as sw

ROOT = Path(sw.__file__).parent.parent


TRAIN = [
    "train",
    "--preset",
    "tiny",
    "--length",
    "64",
    "--set",
    "train.reporting.log_every=2",
    "--data",
    "text",
    "--set",
    "data.validation_fraction=0.2",
    "--set",
    "data.test_fraction=0.2",
]


@dataclass
class Result:
    code: int
    out: str
    err: str

    @property
    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Result]


def write_corpus(folder: Path) -> None:
    """Thirty files of the source of this package, so that there are three splits."""
    folder.mkdir()
    texts = [path.read_text("utf-8") for path in sorted((ROOT / "statewise").rglob("*.py"))]
    text = "".join(texts)[:60_000]
    for i in range(30):
        (folder / f"{i}.txt").write_text(text[2_000 * i : 2_000 * (i + 1)], "utf-8")


def contents(folder: Path) -> dict[str, str]:
    """Every file of a folder and its hash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def save_tokenizer(folder: Path, extra: str = "") -> Path:
    """A tokenizer.json of bytes and one document token; ``extra`` makes it another one."""
    import tokenizers

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*alphabet, *extra])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|endoftext|>"])
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"
