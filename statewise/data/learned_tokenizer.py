"""A tokenizer learned from the text itself: byte-pair encoding (Sennrich et al. 2016, arXiv:1508.07909) over bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from statewise.data.made_once import cache_folder, made_once
from statewise.data.splits import Part
from statewise.data.token_store import count_bytes, identify_parts, read_part
from statewise.data.tokenizers import FileTokenizer
from statewise.errors import ConfigError, DataError, excerpt

PREFIX = "bpe:"
LEAST, MOST = 257, 1 << 16  # the bytes and the document token; what two bytes a token hold on disk
LEARNED_BYTES = 64 << 20  # more text changes few merges and takes long
DOCUMENT_TOKEN = "<|endoftext|>"
FORMAT = 1  # of the recipe below: another one, another tokenizer


def learned_size(spec: str) -> int | None:
    """How many tokens "bpe:2048" asks for; None for a tokenizer that is not learned.

    Errors:  ConfigError if "bpe:" is not followed by a number from 257 to 65,536.
    """
    if not spec.startswith(PREFIX):
        return None
    digits = spec.removeprefix(PREFIX)
    size = int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 10 else 0
    if not LEAST <= size <= MOST:
        raise ConfigError(
            f"data.tokenizer={excerpt(spec)} has no valid size; give a number from {LEAST} to {MOST:,}, as in "
            '"bpe:2048"'
        )
    return size


def learn_tokenizer(parts: Sequence[Part], size: int) -> FileTokenizer:
    """Byte-pair encoding with ``size`` tokens, or fewer if the text has no more pairs; learned once, then in the cache.

    The bytes and the document token come first, so that any UTF-8 text has tokens and comes back as it was. Words are
    cut as GPT-2 cuts them. If there is more than 64 MB of text, it learns from 64 MB of documents drawn at random.

    Cost:    about 4 seconds for 13 MB on two cores.
    Errors:  DataError if a document cannot be read, or if the cache cannot be written.
    """
    key = json.dumps([FORMAT, size, LEARNED_BYTES, identify_parts(parts)])

    def load(folder: Path) -> FileTokenizer | None:
        try:
            return FileTokenizer(folder)
        except DataError:  # not there, or damaged
            return None

    def build(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(_learn(parts, size), "utf-8")

    folder = cache_folder() / "tokenizers" / hashlib.sha256(key.encode()).hexdigest()[:32]
    return made_once(folder, load=load, build=build, noun="learned tokenizer")


def _learn(parts: Sequence[Part], size: int) -> str:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[DOCUMENT_TOKEN], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_texts(parts), trainer)
    return str(tokenizer.to_str())


def _texts(parts: Sequence[Part]) -> Iterator[str]:
    """The text in pieces; of more than is learned from, documents in a random order that is always the same."""
    order: Sequence[int] = range(len(parts))
    if count_bytes(parts) > LEARNED_BYTES:
        order = np.random.default_rng(0).permutation(len(parts)).tolist()
    n_read = 0
    for index in order:
        for data in read_part(parts[index]):
            if n_read >= LEARNED_BYTES:
                return
            n_read += len(data)
            yield data.decode("utf-8", "replace")  # who tokenises the text says where it is not UTF-8
