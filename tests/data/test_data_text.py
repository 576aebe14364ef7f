"""The corpus as a whole: opened, described, read, on real text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from places import SHARED
from test_data_tokenizers import byte_level

from statewise.data.text import Corpus, TextDataConfig, open_corpus
from statewise.errors import ConfigError, DataError

SHAKESPEARE = SHARED / "tinyshakespeare.txt"
needs_shakespeare = pytest.mark.skipif(
    not SHAKESPEARE.is_file(), reason="../shared/data/tinyshakespeare.txt is not on this machine"
)


@pytest.fixture(scope="module")
def stdlib() -> Corpus:
    return open_corpus(TextDataConfig())


def test_the_standard_library_is_divided_by_document(stdlib: Corpus) -> None:
    splits = [stdlib.split(name) for name in ("train", "validation", "test")]
    assert sum(split.n_bytes for split in splits) == stdlib.source.n_bytes
    assert sum(split.n_documents for split in splits) == len(stdlib.source.documents)
    for split in splits:
        assert split.n_tokens == split.n_bytes + split.n_documents
        assert split.tokens[0] == 256
    names = [{part.document.name for part in split.parts} for split in splits]
    assert not names[0] & names[1] | names[1] & names[2] | names[0] & names[2]
    assert 0.8 < splits[0].n_bytes / stdlib.source.n_bytes < 0.98
    assert stdlib.tokenizer.decode(splits[1].tokens[:50_000]) in splits[1].text_bytes().decode()


def test_the_corpus_describes_itself(stdlib: Corpus, tmp_path: Path) -> None:
    lines = stdlib.describe().splitlines()
    assert lines[0].startswith(f"text       stdlib: {len(stdlib.source.documents):,} documents, ")
    assert "empty)" in lines[0]
    assert lines[1:3] == ["tokenizer  bytes", "divided    by document: a fixed hash of each document's name"]
    assert [line.split()[0] for line in lines[3:]] == ["train", "validation", "test"]
    (tmp_path / "one.txt").write_text("a line\n" * 100, "utf-8")
    corpus = open_corpus(TextDataConfig(source=str(tmp_path / "one.txt"), test_fraction=0))
    assert "divided    the text cut in order at line ends (fewer than 20 documents)" in corpus.describe()
    assert "test " not in corpus.describe()


@pytest.mark.parametrize("length", [1, 7, 1000, 10**9])
def test_chunks_are_the_whole_split_in_order(tmp_path: Path, length: int) -> None:
    (tmp_path / "one.txt").write_text("a line\n" * 300, "utf-8")
    split = open_corpus(TextDataConfig(source=str(tmp_path / "one.txt"))).split("train")
    chunks = list(split.chunks(length))
    assert np.array_equal(np.concatenate(chunks), split.tokens)
    assert all(chunk.dtype == np.int64 for chunk in chunks)
    assert [len(chunk) for chunk in chunks[:-1]] == [length] * (len(chunks) - 1)
    assert 0 < len(chunks[-1]) <= length
    with pytest.raises(ConfigError, match="at least 1"):
        next(split.chunks(0))


def test_with_a_tokenizer_json(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level(), "utf-8")
    (tmp_path / "texts").mkdir()
    for i in range(40):
        (tmp_path / "texts" / f"{i}.txt").write_text(f"Zoë, the {i}th quick brown fox 日本\n" * (i + 1), "utf-8")
    corpus = open_corpus(
        TextDataConfig(
            source=str(tmp_path / "texts"),
            tokenizer=str(tmp_path / "tokenizer.json"),
            validation_fraction=0.2,
            test_fraction=0.2,
        )
    )
    for name in ("train", "validation", "test"):
        split = corpus.split(name)
        assert split.document_token == corpus.tokenizer.document_token
        for i, part in enumerate(split.parts):
            tokens = split.tokens[split.document_offsets[i] : split.document_offsets[i + 1]]
            text = part.document.path.read_text("utf-8")
            assert tokens.tolist() == [split.document_token, *corpus.tokenizer.encode(text)]
        assert split.n_bytes == len(split.text_bytes()) == corpus.tokenizer.token_bytes(split.tokens)
        assert split.n_tokens < split.n_bytes / 1.5
    assert "tokenizer.json of 320 tokens" in corpus.describe()


@needs_shakespeare
def test_tiny_shakespeare_is_cut_in_order() -> None:
    """The split that is used everywhere: the first nine tenths to train on, the rest for validation."""
    text = SHAKESPEARE.read_bytes()
    corpus = open_corpus(TextDataConfig(source=str(SHAKESPEARE), validation_fraction=0.1, test_fraction=0))
    train, validation = corpus.split("train").text_bytes(), corpus.split("validation").text_bytes()
    assert train + validation == text
    assert 0 <= len(train) - int(0.9 * len(text)) < 100
    assert train.endswith(b"\n")
    assert bytes(corpus.split("train").tokens[1:].astype(np.uint8)) == train
    with pytest.raises(DataError, match=r"no test split: data\.test_fraction is 0"):
        corpus.split("test")


def test_configurations_that_cannot_be_are_refused() -> None:
    cases = {
        "source='' is empty": {"source": ""},
        "tokenizer='' is empty": {"tokenizer": ""},
        "test_fraction=-0.1 is out of range": {"test_fraction": -0.1},
        "validation_fraction=1.0 is out of range": {"validation_fraction": 1.0},
        "validation_fraction=NaN is not a number": {"validation_fraction": float("nan")},
        "leave nothing to train on": {"validation_fraction": 0.5, "test_fraction": 0.5},
    }
    for message, fields in cases.items():
        with pytest.raises(ConfigError, match=message):
            TextDataConfig(**fields)  # type: ignore[arg-type]


def test_splits_have_three_names(stdlib: Corpus) -> None:
    with pytest.raises(ConfigError, match="split 'valid' is unknown"):
        stdlib.split("valid")


def test_the_data_is_reached_from_the_package() -> None:
    import statewise.data as data

    for name in ("Batch", "Batches", "LabelledBatch", "LabelledBatches", "SeriesBatch", "SeriesBatches"):
        assert getattr(data, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Batcher'"):
        data.Batcher  # noqa: B018
