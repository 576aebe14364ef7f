"""Byte-pair encoding learned from the training split."""

from __future__ import annotations

from pathlib import Path

import pytest

from statewise.data import learned_tokenizer
from statewise.data.learned_tokenizer import learn_tokenizer, learned_size
from statewise.data.splits import Part
from statewise.data.text import TextDataConfig, open_corpus, open_tokenizer
from statewise.errors import ConfigError, DataError


@pytest.fixture
def words(tmp_path: Path, cache: Path) -> Path:
    root = tmp_path / "words"
    root.mkdir()
    for i in range(30):
        (root / f"{i:02}.txt").write_text(f"the café of the cat {i}\n" * 40, "utf-8")
    return root


def test_text_comes_back_and_any_byte_has_a_token(words: Path) -> None:
    corpus = open_corpus(TextDataConfig(source=str(words), tokenizer="bpe:300"))
    tokenizer = corpus.tokenizer
    split = corpus.split("train")
    assert split.n_tokens < 0.5 * split.n_bytes
    assert tokenizer.decode(split.tokens) == split.text_bytes().decode()
    strange = "\x00\x7fé\U0001f600 \t\n  x <|endoftext|>"
    assert tokenizer.decode(tokenizer.encode(strange)) == strange
    assert tokenizer.document_token not in tokenizer.encode(strange)
    assert "tokenizer.json of " in corpus.describe()


def test_no_more_tokens_than_the_text_has_pairs_for(words: Path) -> None:
    few = open_tokenizer(TextDataConfig(source=str(words), tokenizer="bpe:257"))
    assert few.vocab_size == 257
    assert len(few.encode("the")) == 3
    many = open_tokenizer(TextDataConfig(source=str(words), tokenizer="bpe:60000"))
    assert 257 < many.vocab_size < 1000


def test_it_is_learned_from_the_training_split_alone(words: Path) -> None:
    config = TextDataConfig(source=str(words), tokenizer="bpe:400")
    corpus = open_corpus(config)
    held_out = corpus.parts["test"][0].document.path
    secret = "zyzzyva " * 1000
    before = corpus.tokenizer.fingerprint
    Path(held_out).write_text(secret, "utf-8")
    assert open_tokenizer(config).fingerprint == before


def test_it_is_learned_once_and_again_alike(words: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = TextDataConfig(source=str(words), tokenizer="bpe:350")
    first = open_tokenizer(config).fingerprint
    (kept,) = (cache.parent / "tokenizers").iterdir()
    monkeypatch.setattr(learned_tokenizer, "_learn", lambda *_: pytest.fail("learned anew"))
    assert open_tokenizer(config).fingerprint == first
    monkeypatch.undo()
    (kept / "tokenizer.json").write_text("{", "utf-8")  # damaged: learned again
    assert open_tokenizer(config).fingerprint == first


def test_of_much_text_it_reads_a_part(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = open_corpus(TextDataConfig(source=str(words))).parts["train"]
    seen: list[Part] = []
    read = learned_tokenizer.read_part
    monkeypatch.setattr(learned_tokenizer, "read_part", lambda part: (seen.append(part), read(part))[1])
    monkeypatch.setattr(learned_tokenizer, "LEARNED_BYTES", 5000)
    learn_tokenizer(parts, 300)
    assert 4 <= len(seen) <= 7
    assert [parts.index(part) for part in seen] != sorted(parts.index(part) for part in seen)


def test_text_that_is_not_utf8_is_refused_by_its_place(folder: Path, cache: Path) -> None:
    with pytest.raises(DataError, match=r'\.txt is not UTF-8 at byte \d+; .* use the "bytes" tokenizer'):
        open_corpus(TextDataConfig(source=str(folder), tokenizer="bpe:300"))


@pytest.mark.parametrize("spec", ["bpe:", "bpe:256", "bpe:70000", "bpe:-1", "bpe:2e3", "bpe:²000", "bpe:" + "9" * 5000])
def test_a_size_that_is_none_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="give a number from 257 to 65,536"):
        TextDataConfig(tokenizer=spec)


def test_other_tokenizers_are_not_learned(words: Path) -> None:
    assert learned_size("bytes") is None
    assert learned_size("folder/tokenizer.json") is None
    assert TextDataConfig(tokenizer="bpe:2048").with_absolute_paths().tokenizer == "bpe:2048"
