"""The names and the bytes of tokens in log-probabilities."""

from __future__ import annotations

import json

import pytest
import tokenizers

import statewise as sw
from statewise.errors import InputError
from statewise.serve.model import ServedModel
from statewise.serve.token_names import TokenNames


def byte_level() -> sw.FileTokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=264, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator(["the the the cat"], trainer)
    return sw.FileTokenizer(made.to_str())


def test_every_token_of_byte_level_bpe_has_its_bytes() -> None:
    tokenizer = byte_level()
    names = TokenNames(tokenizer)
    text = "the caté … 日本"
    ids = tokenizer.encode(text)
    parts = [names.bytes(token) for token in ids]
    assert b"".join(bytes(part or []) for part in parts) == text.encode()
    fragment = ids[parts.index([0xE2])]
    assert names.text(fragment) == "bytes:\\xe2"
    assert names.text(ids[0]) == text[: len(names.text(ids[0]))]
    assert len({names.text(token) for token in range(tokenizer.vocab_size)}) == tokenizer.vocab_size
    assert names.text(tokenizer.document_token) == "<|endoftext|>"
    assert (names.text(9999), names.bytes(9999)) == ("token_id:9999", None)


def test_bytes_beside_a_vocabulary_of_letters() -> None:
    made = json.loads(byte_level().json)
    made["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}
    made["model"]["vocab"] = {"<|endoftext|>": 0, "a": 1, "<0xE2>": 2, "<0x41>": 3}
    made["model"]["merges"] = []
    names = TokenNames(sw.FileTokenizer(json.dumps(made)))
    assert [(names.text(i), names.bytes(i)) for i in (1, 2, 3)] == [
        ("a", [97]),
        ("bytes:\\xe2", [0xE2]),
        ("A", [65]),
    ]


def test_bytes() -> None:
    names = TokenNames(sw.ByteTokenizer())
    assert [(names.text(i), names.bytes(i)) for i in (65, 0xE2, 256)] == [
        ("A", [65]),
        ("bytes:\\xe2", [0xE2]),
        ("token_id:256", []),
    ]


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\ud800"])
def test_a_model_needs_a_name_that_can_be_asked_for(name: str) -> None:
    model = sw.LanguageModelConfig(vocab_size=257, d_model=8, layers=(sw.S4DConfig(d_state=4),)).build()
    with pytest.raises(InputError, match="clients could ask for"):
        ServedModel(model, sw.ByteTokenizer(), name=name)
