"""Text data: sources, tokenizers, the token store on disk, and batches.

Only ``Batches`` needs torch, and only a tokenizer.json the ``tokenizers`` library: each is imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statewise.data.text import Corpus, TextDataConfig, TokenSplit, open_corpus
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, load_tokenizer, require_same_tokenizer

if TYPE_CHECKING:
    from statewise.data.batches import Batch, Batches

__all__ = [
    "Batch",
    "Batches",
    "ByteTokenizer",
    "Corpus",
    "FileTokenizer",
    "TextDataConfig",
    "TokenSplit",
    "Tokenizer",
    "load_tokenizer",
    "open_corpus",
    "require_same_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name in ("Batch", "Batches"):
        from statewise.data import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
