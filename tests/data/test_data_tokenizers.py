"""Tokenizers: round trips, streaming, and what they refuse."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statewise.data.stream_decoders import MAX_HELD_TOKENS, StreamDecoder
from statewise.data.tokenizers import (
    ByteTokenizer,
    FileTokenizer,
    load_tokenizer,
    require_same_tokenizer,
    token_dtype,
)
from statewise.errors import DataError

TEXT = "Zoë naïvely sang 'Ελλάδα' — 日本語 🙂 twice.\n\n    def f(x):  return x  # \ttabs\n" * 5
TRAINING = [TEXT, "the quick brown fox jumps over the lazy dog " * 20]


def byte_level(special: list[str] | None = None) -> str:
    """A small byte-level BPE as GPT-2 has it, as JSON."""
    import tokenizers as library

    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<pad>"] if special is None else special,
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer.to_str()


def byte_fallback() -> str:
    """A small BPE as Llama has it: spaces as "▁", unknown characters as bytes "<0xE6>"."""
    import tokenizers as library

    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{i:02X}>": 3 + i for i in range(256)}
    for piece in ["▁", *"abcdefghijklmnopqrstuvwxyz", "▁t", "h", "▁th", "e", "▁the"]:
        vocabulary.setdefault(piece, len(vocabulary))
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e")]
    tokenizer = library.Tokenizer(
        library.models.BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    decoders = library.decoders
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer.to_str()


@pytest.fixture(scope="module")
def gpt() -> FileTokenizer:
    return FileTokenizer(byte_level())


@pytest.fixture(scope="module")
def llama() -> FileTokenizer:
    return FileTokenizer(byte_fallback())


def stream(decoder: StreamDecoder, ids: list[int]) -> str:
    return "".join(decoder.feed(token) for token in ids) + decoder.finish()


@given(st.text())
def test_bytes_round_trip(text: str) -> None:
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids == list(text.encode())
    assert tokenizer.decode([256, *ids, 256]) == text
    assert tokenizer.token_bytes([256, *ids]) == len(text.encode())
    assert tokenizer.encode_bytes(text.encode()).tolist() == ids


@given(st.lists(st.integers(0, 257)))
def test_streamed_bytes_equal_the_whole(ids: list[int]) -> None:
    """Any bytes: also ill-formed ones, document tokens amid a character, and the ids of a padded head."""
    tokenizer = ByteTokenizer()
    decoder = tokenizer.stream_decoder()
    assert stream(decoder, ids) == tokenizer.decode(ids)
    assert stream(decoder, ids) == tokenizer.decode(ids)  # finish() left it as new


def test_a_character_comes_when_its_last_byte_does() -> None:
    decoder = ByteTokenizer().stream_decoder()
    assert [decoder.feed(byte) for byte in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert decoder.finish() == ""
    assert decoder.feed(0xE2) == ""
    assert decoder.finish() == "\ufffd"


def test_bytes_smuggled_by_surrogateescape_come_out_as_they_were() -> None:
    raw = b"caf\xe9 \xff"
    tokenizer = ByteTokenizer()
    assert bytes(tokenizer.encode(raw.decode("utf-8", "surrogateescape"))) == raw
    with pytest.raises(DataError, match=r"not valid Unicode.*character 1"):
        tokenizer.encode("a\ud800")


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_file_tokenizer_round_trips(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: FileTokenizer = request.getfixturevalue(name)
    ids = tokenizer.encode(TEXT)
    assert tokenizer.decode(ids) == TEXT
    assert tokenizer.decode([tokenizer.document_token, *ids]) == TEXT
    assert tokenizer.token_bytes([tokenizer.document_token, *ids]) == len(TEXT.encode())
    array = tokenizer.encode_bytes(TEXT.encode())
    assert array.tolist() == ids
    assert array.dtype == np.uint16
    assert max(ids) < tokenizer.vocab_size


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_streamed_text_equals_the_whole(name: str, request: pytest.FixtureRequest) -> None:
    tokenizer: FileTokenizer = request.getfixturevalue(name)
    generator = random.Random(0)
    alphabet = "aethe  \n▁é日🙂\ufffd'.,"
    decoder = tokenizer.stream_decoder()
    for _ in range(100):
        text = "".join(generator.choices(alphabet, k=generator.randrange(30)))
        ids = tokenizer.encode(text)
        for _ in range(2):
            ids.insert(generator.randrange(len(ids) + 1), tokenizer.document_token)
        if name == "llama":
            ids = [token for token in ids if token != tokenizer.document_token]
        assert stream(decoder, ids) == tokenizer.decode(ids)


def test_text_is_held_back_only_while_a_character_is_incomplete(gpt: FileTokenizer) -> None:
    decoder = gpt.stream_decoder()
    pieces = [decoder.feed(token) for token in gpt.encode("fox ጃ dog")]
    assert "".join(pieces) + decoder.finish() == "fox ጃ dog"
    assert pieces[0].startswith("f")
    assert not any("\ufffd" in piece for piece in pieces)


def test_any_tokens_stream_to_the_whole_where_byte_level_decoding_is_local(gpt: FileTokenizer) -> None:
    """Random tokens, so mostly ill-formed UTF-8, as an untrained model writes it."""
    generator = random.Random(1)
    for _ in range(50):
        ids = [generator.randrange(gpt.vocab_size + 3) for _ in range(40)]
        assert stream(gpt.stream_decoder(), ids) == gpt.decode(ids)


def test_endless_ill_formed_text_is_not_held_for_ever(gpt: FileTokenizer) -> None:
    stray = gpt._tokenizer.token_to_id("ĩ")  # 0x87, which no character begins with
    assert gpt.decode([stray]) == "\ufffd"
    decoder = gpt.stream_decoder()
    pieces = [decoder.feed(stray) for _ in range(5 * MAX_HELD_TOKENS)]
    assert "".join(pieces).count("\ufffd") >= 4 * MAX_HELD_TOKENS
    assert len(decoder._tokens) <= 3 * MAX_HELD_TOKENS  # type: ignore[attr-defined]


def test_a_document_cannot_forge_a_document_token(gpt: FileTokenizer) -> None:
    ids = gpt.encode("a <|endoftext|> b")
    assert gpt.document_token not in ids
    assert gpt.decode(ids) == "a <|endoftext|> b"


def test_truncation_and_padding_of_the_file_are_off() -> None:
    import tokenizers as library

    tokenizer = library.Tokenizer.from_str(byte_level())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4000)
    loaded = FileTokenizer(tokenizer.to_str())
    assert loaded.decode(loaded.encode(TEXT)) == TEXT
    assert len(loaded.encode("a")) == 1


def test_what_a_tokenizer_puts_before_a_text_itself(gpt: FileTokenizer) -> None:
    import tokenizers as library

    assert [*gpt.prefix] == [*ByteTokenizer().prefix] == []
    tokenizer = library.Tokenizer.from_str(byte_level(["<s>", "</s>"]))
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    loaded = FileTokenizer(tokenizer.to_str())
    assert ([*loaded.prefix], loaded.document_token) == ([0], 1)
    assert 0 not in loaded.encode(TEXT)
    closed = library.Tokenizer(library.models.WordLevel({"x": 0, "y": 1}))  # which has no id for another text
    closed.pre_tokenizer = library.pre_tokenizers.Whitespace()
    closed.add_special_tokens(["<s>", "</s>"])
    assert [*FileTokenizer(closed.to_str()).prefix] == []
    before = library.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 2)])
    both = library.processors.Sequence([library.processors.ByteLevel(), before])
    for processor in (before, both, library.processors.BertProcessing(("</s>", 3), ("<s>", 2))):
        closed.post_processor = processor
        loaded = FileTokenizer(closed.to_str())
        assert [*loaded.prefix, 0, 1] == closed.encode("x y").ids[:3]
        assert loaded.encode("x y") == [0, 1]


def test_the_document_token_is_the_first_known_special_token() -> None:
    assert FileTokenizer(byte_level(["[CLS]", "[SEP]", "</s>"])).document_token == 2
    assert FileTokenizer(byte_level(["[CLS]", "[SEP]"])).document_token == 1
    with pytest.raises(DataError, match=r"no special token to begin documents.*add_special_tokens"):
        FileTokenizer(byte_level(["<pad>"]))


def test_the_fingerprint_is_of_the_content_not_of_the_layout(gpt: FileTokenizer, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(json.dumps(json.loads(gpt.json), indent=7), "utf-8")
    from_folder, from_file = load_tokenizer(str(tmp_path)), load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert from_folder.fingerprint == from_file.fingerprint == gpt.fingerprint == FileTokenizer(gpt.json).fingerprint
    other = FileTokenizer(byte_level(["<|endoftext|>"]))
    assert len({gpt.fingerprint, other.fingerprint, ByteTokenizer().fingerprint}) == 3
    require_same_tokenizer(gpt, gpt.fingerprint, "this run")
    with pytest.raises(DataError, match=r"does not match: the checkpoint x was made with"):
        require_same_tokenizer(ByteTokenizer(), gpt.fingerprint, "the checkpoint x")


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    cases = {
        "[]": "is not a tokenizer.json",
        '{"a": 1}': "is not a tokenizer.json",
        '{"version": "1.0"': "is not a tokenizer.json",
        "": "is not a tokenizer.json: it is empty",
        "\x00\x01": "is not a tokenizer.json",
    }
    for i, (content, message) in enumerate(cases.items()):
        path = tmp_path / f"{i}.json"
        path.write_text(content, "utf-8")
        with pytest.raises(DataError, match=message) as caught:
            load_tokenizer(str(path))
        assert "\n" not in str(caught.value)
    for text in ("", "[]", '{"a": 1}'):
        with pytest.raises(DataError, match=r"^beside/tokenizer.json is not a tokenizer.json"):
            FileTokenizer(text, name="beside/tokenizer.json")
    (tmp_path / "latin.json").write_bytes(b"\xe9\xe8")
    with pytest.raises(DataError, match=r"latin.json is not a tokenizer.json: it is not UTF-8"):
        load_tokenizer(str(tmp_path / "latin.json"))
    with pytest.raises(DataError, match=r'no tokenizer at .*missing.*; give "bytes" or'):
        load_tokenizer(str(tmp_path / "missing"))
    with pytest.raises(DataError, match=r"cannot read the tokenizer .*below-a-file: Not a directory"):
        load_tokenizer(str(tmp_path / "0.json" / "below-a-file"))


def test_what_is_no_token_or_no_text_is_refused(gpt: FileTokenizer) -> None:
    for tokenizer in (gpt, ByteTokenizer()):
        with pytest.raises(DataError, match="-1 is not a token"):
            tokenizer.decode([1, -1])
        with pytest.raises(DataError, match="-1 is not a token"):
            tokenizer.stream_decoder().feed(-1)
        assert tokenizer.decode([tokenizer.vocab_size, 10**9]) == ""  # heads are often padded
    with pytest.raises(DataError, match=r"not UTF-8 at byte 3 .0xe9.*bytes"):
        gpt.encode_bytes(b"caf\xe9!")
    with pytest.raises(DataError, match="not valid Unicode"):
        gpt.encode("a\ud800")


def test_two_bytes_a_token_as_long_as_they_do() -> None:
    assert token_dtype(257) == token_dtype(65536) == np.uint16
    assert token_dtype(65537) == np.uint32


def test_importing_the_data_needs_neither_torch_nor_tokenizers() -> None:
    code = (
        "import sys, statewise.data as d; d.ByteTokenizer(), d.TextDataConfig; "
        "bad = {'torch', 'tokenizers'} & set(sys.modules); assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
