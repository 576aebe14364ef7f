"""Evaluation of texts: words, splits, tokenizers, compressors."""

from __future__ import annotations

import lzma
import shutil
import subprocess
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from evaluated import build, close, nats_of
from hypothesis import given
from hypothesis import strategies as st

import statewise as sw
from statewise.data.text import TextDataConfig, open_corpus
from statewise.data.tokenizers import ByteTokenizer
from statewise.errors import InputError
from statewise.evaluate import (
    Evaluation,
    compress,
    count_words,
    evaluate_split,
    evaluate_text,
)


# Texts
@given(st.text("a \n\t.", max_size=40), st.integers(0, 3))
def test_words_are_what_split_finds(text: str, repeat: int) -> None:
    data = text.encode() * repeat
    assert count_words(data) == len(data.split())


def test_words_across_the_pieces_they_are_counted_in() -> None:
    data = b"a" * (1 << 20) + b"b c" + b" " * (1 << 20) + b"\nd"
    assert count_words(data) == 3


@pytest.fixture(scope="module")
def byte_model() -> sw.LanguageModel:
    return build(sw.AttentionConfig(n_heads=2, window=7), vocab_size=257)


def test_a_text_is_one_document(byte_model: sw.LanguageModel) -> None:
    tokenizer, text = ByteTokenizer(), "één twee\ndrie "
    data = text.encode()
    got = evaluate_text(byte_model, tokenizer, text)
    assert got.nats == close(nats_of(byte_model, torch.tensor([256, *data])))
    assert (got.n_tokens, got.n_bytes, got.n_words) == (len(data), len(data), 3)
    assert evaluate_text(byte_model, tokenizer, data).nats == got.nats
    blank = evaluate_text(byte_model, tokenizer, b"\xff ")
    assert (blank.n_bytes, blank.n_words) == (2, 1)
    assert evaluate_text(byte_model, tokenizer, " ").perplexity_per_word is None
    with pytest.raises(InputError, match="empty"):
        evaluate_text(byte_model, tokenizer, b"")


def test_a_split_is_its_documents(byte_model: sw.LanguageModel, tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.txt").write_text(f"document {i}\n" * (i % 3 + 1) + "é")
    corpus = open_corpus(TextDataConfig(source=str(folder), validation_fraction=0.3, test_fraction=0.3))
    split, tokenizer = corpus.split("validation"), corpus.tokenizer
    assert split.n_documents > 2
    texts = [bytes(row[1:].astype(np.uint8)) for row in np.split(split.tokens, split.document_offsets[1:-1])]
    got = evaluate_split(byte_model, split, tokenizer, chunk_length=64)
    assert got.n_bytes == sum(map(len, texts)) == split.n_bytes
    assert got.n_words == sum(len(text.split()) for text in texts)
    assert got.n_tokens == split.n_tokens - 1
    ends = [*([256] for _ in texts[1:]), []]
    expected = sum(nats_of(byte_model, torch.tensor([256, *text, *end])) for text, end in zip(texts, ends))
    assert got.nats == close(expected)
    # A source may have changed since it was tokenised: nothing of it is read
    shutil.rmtree(folder)
    assert evaluate_split(byte_model, split, tokenizer, across_documents=True).nats == close(
        nats_of(byte_model, torch.from_numpy(split.tokens.astype(np.int64)))
    )
    beginning = evaluate_split(byte_model, split, tokenizer, max_tokens=len(texts[0]) + 5)
    assert beginning.n_tokens == len(texts[0]) + 4
    assert beginning.n_bytes == len(texts[0]) + 3
    assert beginning.n_words == len(texts[0].split()) + 1
    with pytest.raises(InputError, match="max_tokens=1"):
        evaluate_split(byte_model, split, tokenizer, max_tokens=1)


def test_a_tokenizer_of_another_vocabulary_is_refused(model: sw.LanguageModel) -> None:
    with pytest.raises(InputError, match="the tokenizer has 257 ids and the model only 31"):
        evaluate_text(model, ByteTokenizer(), "text")


def test_a_language_model_learns_to_be_better_than_chance_and_evaluation_sees_it(byte_model: sw.LanguageModel) -> None:
    before: Evaluation = evaluate_text(byte_model, ByteTokenizer(), "ab" * 50)
    model = build(None, vocab_size=257)
    data = torch.tensor([[256, *b"ab" * 50]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(30):
        logits, _ = model(data[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits[0], data[0, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = evaluate_text(model, ByteTokenizer(), "ab" * 50)
    assert after.bits_per_byte < 1 < 8 < before.bits_per_byte


# Compressors
def test_compressors_are_the_programs(tmp_path: Path) -> None:
    data = Path(lzma.__file__).read_bytes() * 3 + np.random.default_rng(0).bytes(20_000)
    got = compress(data)
    assert got.n_bytes == len(data)
    assert got.zlib_bytes == len(zlib.compress(data, 9))
    assert got.xz_bytes == len(lzma.compress(data, preset=9))
    assert got.xz_bits_per_byte == close(8 * got.xz_bytes / len(data))
    assert got.zlib_bits_per_byte == close(8 * got.zlib_bytes / len(data))
    assert got.xz_bytes < got.zlib_bytes < len(data)
    with pytest.raises(InputError, match="no bytes"):
        compress(b"")


@pytest.mark.skipif(shutil.which("xz") is None, reason="there is no xz program here")
def test_the_xz_program_makes_as_many_bytes() -> None:
    data = Path(lzma.__file__).read_bytes()
    program = subprocess.run(["xz", "-9", "--stdout"], input=data, capture_output=True, check=True).stdout
    assert abs(len(program) - compress(data).xz_bytes) <= 64  # its header may say more about its blocks
