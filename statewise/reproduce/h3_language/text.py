"""The text of ``h3-language`` and its tokens: a byte-level BPE made from the training split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from statewise.data.text import Corpus, TextDataConfig, open_corpus
from statewise.errors import ConfigError
from statewise.reproduce.work import write_text

TOKENIZER_FILE = "tokenizer.json"
DOCUMENT_TOKEN = "<|endoftext|>"


def train_tokenizer(text: str, vocab_size: int) -> str:
    """The JSON of a tokenizer as GPT-2's: BPE over the bytes of words, with a token that begins documents.

    Any text comes back from its tokens. The same text gives the same JSON.

    Errors:  ConfigError for a vocabulary that cannot hold the 256 bytes and the document token, and for a text too
             short for it.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    if vocab_size < 257:
        raise ConfigError(f"vocab_size={vocab_size} is too small; the 256 bytes and the document token need 257")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[DOCUMENT_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text.splitlines(keepends=True), trainer)
    if (found := tokenizer.get_vocab_size()) < vocab_size:
        raise ConfigError(f"vocab_size={vocab_size} is too large for the text, which gives {found}; use that at most")
    return str(tokenizer.to_str())


def make_tokenizer(source: str, vocab_size: int, folder: Path) -> dict[str, Any]:
    """Writes tokenizer.json into the folder, tokenises the text with it, and gives its fingerprint and sizes."""
    raw = open_corpus(TextDataConfig(source=source)).split("train").text_bytes()
    text = raw.decode("utf-8", "replace")  # what is not UTF-8 is refused when the text is tokenised
    write_text(folder / TOKENIZER_FILE, train_tokenizer(text, vocab_size))
    corpus = open_text(source, folder)
    splits = {name: corpus.split(name) for name in ("train", "validation", "test")}
    return {
        "fingerprint": corpus.fingerprint,
        "n_bytes": sum(split.n_bytes for split in splits.values()),
        "splits": {
            name: {"documents": split.n_documents, "bytes": split.n_bytes, "tokens": split.n_tokens}
            for name, split in splits.items()
        },
        "described": corpus.describe(),
    }


def text_config(source: str, folder: Path) -> TextDataConfig:
    return TextDataConfig(source=source, tokenizer=str((folder / TOKENIZER_FILE).absolute())).with_absolute_paths()


def open_text(source: str, folder: Path) -> Corpus:
    return open_corpus(text_config(source, folder))
