"""Texts as the tokens that a classifier of documents was trained on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from statewise.data.long_range.vocabulary import CharacterEncoder, byte_tokens
from statewise.models.text_input import TextInputConfig


def encode_texts(texts: Sequence[str], config: TextInputConfig) -> list[np.ndarray]:
    """(length,) integers each, an end token last.

    >>> encode_texts(["abc"], TextInputConfig(encoding="bytes", max_length=3))[0].tolist()
    [99, 100, 1]
    """
    limit = config.max_length - 1
    if config.encoding == "bytes":
        return [byte_tokens(text.encode("utf-8", "surrogateescape")[:limit]) for text in texts]
    encode = CharacterEncoder(config.vocabulary)
    return [encode(text[:limit]) for text in texts]
