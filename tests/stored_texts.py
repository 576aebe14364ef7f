"""Token stores, and what is in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from statewise.data.splits import SPLITS
from statewise.data.text import Corpus, TextDataConfig, open_corpus
from statewise.errors import DataError


def config_of(folder: Path) -> TextDataConfig:
    return TextDataConfig(source=str(folder), validation_fraction=0.2, test_fraction=0.2)


def assert_right(corpus: Corpus) -> None:
    """The definition: each document after its document token, split after split, as bytes."""
    for name in SPLITS:
        split = corpus.split(name)
        texts = [
            part.document.path.read_bytes()[part.document.begin :][part.begin : part.end] for part in corpus.parts[name]
        ]
        expected = [token for text in texts for token in [256, *text]]
        assert split.tokens.dtype == np.uint16
        assert np.array_equal(split.tokens, np.array(expected))
        assert split.document_bytes.tolist() == [len(text) for text in texts]
        assert np.diff(split.document_offsets).tolist() == [len(text) + 1 for text in texts]
        assert (split.tokens[split.document_offsets[:-1]] == 256).all()
        assert split.n_tokens == len(expected)
        assert split.text_bytes() == b"".join(texts)
        assert split.n_bytes == len(split.text_bytes())


def refused(config: TextDataConfig) -> str:
    with pytest.raises(DataError) as caught:
        open_corpus(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
