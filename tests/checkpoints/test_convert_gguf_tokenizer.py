"""The tokenizer in a GGUF file: the same tokens here, in the file that is written, and in llama.cpp."""

from __future__ import annotations

import ctypes
import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from gguf_examples import build, read, write
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

import statewise as sw
from statewise.checkpoints.convert.gguf import gguf_tokenizer
from statewise.checkpoints.convert.gguf_file import read_file, write_file
from statewise.checkpoints.convert.gguf_tokenizer import SPLITTINGS, byte_letters
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer
from statewise.errors import CheckpointError

TEXTS = (
    Path(sw.__file__).parent.joinpath("errors.py").read_text("utf-8"),
    "héllo wörld 你好 123456 3.14 \n\n\n  x  \t y   'll 'LL don't DON'T Ⅷ 🚀 $+<=>^~|` a=b+c ~~~ ## \r\n  \r\n end   ",
    "  leading  spaces    many      x         y",
    "<|endoftext|> is text here",
)


def trained(name: str) -> FileTokenizer:
    """A small byte-level BPE that cuts as llama.cpp's ``name`` does, with a run of spaces as an added token."""
    splitting = next(s for s in SPLITTINGS if name in s.names)
    tokenizer = Tokenizer(models.BPE())
    known = json.loads(tokenizer.to_str())
    known["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": list(splitting.steps)}
    known["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    known["model"]["ignore_merges"] = splitting.ignore_merges
    tokenizer = Tokenizer.from_str(json.dumps(known))
    if splitting.normalizer:
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TEXTS, Path(__file__).read_text("utf-8")], trainer)
    tokenizer.add_tokens([tokenizers.AddedToken("    ", normalized=False)])
    return FileTokenizer(tokenizer.to_str())


@pytest.mark.parametrize("name", [splitting.names[0] for splitting in SPLITTINGS])
def test_a_tokenizer_goes_into_the_file_and_comes_out(name: str, tmp_path: Path) -> None:
    tokenizer = trained(name)
    model = build("mamba", vocab_size=408, d_model=8)
    path = write(model, tmp_path / "model.gguf", tokenizer=tokenizer)
    metadata = read_file(path).metadata
    assert metadata["tokenizer.ggml.pre"] == name
    assert len(metadata["tokenizer.ggml.tokens"]) == 408  # as many as llama.cpp takes the embedding to have
    assert metadata["tokenizer.ggml.eos_token_id"] == tokenizer.document_token
    text = gguf_tokenizer(path)
    assert text is not None
    found = FileTokenizer(text)
    assert (found.vocab_size, found.document_token) == (tokenizer.vocab_size, tokenizer.document_token)
    for each in TEXTS:
        assert found.encode(each) == tokenizer.encode(each)
        assert found.decode(found.encode(each)) == tokenizer.decode(tokenizer.encode(each))
    again = write(model, tmp_path / "again.gguf", tokenizer=found)
    assert read_file(again).metadata == metadata


@pytest.mark.parametrize("name", ["bytes", *(splitting.names[0] for splitting in SPLITTINGS)])
def test_llama_cpp_cuts_text_as_we_do(name: str, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    from statewise.benchmark.peers.llama_cpp import LlamaCpp

    tokenizer = ByteTokenizer() if name == "bytes" else trained(name)
    model = build("mamba2", vocab_size=408)
    path = write(model, tmp_path / "model.gguf", tokenizer=tokenizer)
    llama = LlamaCpp.of_file(path, 1, 64)
    vocabulary = llama.api.llama_model_get_vocab(llama._model)
    assert llama.api.llama_vocab_bos(vocabulary) == llama.api.llama_vocab_eos(vocabulary) == tokenizer.document_token
    for text in TEXTS:
        encoded = text.encode()
        ids = (ctypes.c_int32 * (len(encoded) + 8))()
        n = llama.api.llama_tokenize(vocabulary, encoded, len(encoded), ids, len(ids), True, False)
        assert list(ids[:n]) == tokenizer.encode(text)
    prompt = [tokenizer.document_token, *tokenizer.encode("def f(x):")]
    logits = read(path)(torch.tensor([prompt]))[0][0, -1]
    assert int(llama.read(prompt).argmax()) == int(logits.argmax())


def test_bytes_are_a_vocabulary_without_merges(tmp_path: Path) -> None:
    known = pre_tokenizers.ByteLevel.alphabet()
    assert sorted(byte_letters()) == sorted(known)
    path = write(build("mamba"), tmp_path / "model.gguf", tokenizer=ByteTokenizer())
    found = FileTokenizer(gguf_tokenizer(path) or "")
    assert (found.vocab_size, found.document_token) == (257, 256)
    for text in (*TEXTS, "".join(map(chr, range(1, 1000)))):
        assert found.encode(text) == ByteTokenizer().encode(text)
        assert found.decode(found.encode(text)) == text


CHANGES: dict[str, Any] = {
    "another kind": {"tokenizer.ggml.model": "llama"},
    "another splitting": {"tokenizer.ggml.pre": "bloom"},
    "two tokens of one text": {"tokenizer.ggml.tokens": ["a", "a"], "tokenizer.ggml.token_type": [1, 1]},
    "types of others": {"tokenizer.ggml.token_type": [1]},
    "merges of three": {"tokenizer.ggml.merges": ["a b c"]},
    "no tokenizer": {"tokenizer.ggml.model": "no_vocab"},
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_turned_is_none(name: str, tmp_path: Path) -> None:
    file = read_file(write(build("mamba"), tmp_path / "model.gguf", tokenizer=ByteTokenizer()))
    write_file(tmp_path / "changed.gguf", file.metadata | CHANGES[name], {})
    assert gguf_tokenizer(tmp_path / "changed.gguf") is None


def test_a_file_that_names_no_splitting_has_that_of_gpt2_and_its_end_is_special(tmp_path: Path) -> None:
    file = read_file(write(build("mamba"), tmp_path / "model.gguf", tokenizer=ByteTokenizer()))
    old = {key: value for key, value in file.metadata.items() if key not in ("tokenizer.ggml.pre",)}
    old["tokenizer.ggml.token_type"] = [1] * 257 + [5] * 3
    write_file(tmp_path / "old.gguf", old, {})
    assert gguf_tokenizer(tmp_path / "old.gguf") == gguf_tokenizer(tmp_path / "model.gguf")


def changed(path: tuple[str, ...], value: Any) -> str:
    known = json.loads(trained("gpt-2").json)
    inner = known
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return json.dumps(known)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("pre_tokenizer",), {"type": "Whitespace"}, "splits text in a way"),
        (
            ("pre_tokenizer",),
            {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True},
            "splits text in a way",
        ),
        (("pre_tokenizer",), None, "splits text in a way"),
        (("normalizer",), {"type": "Lowercase"}, "splits text in a way"),
        (("model", "ignore_merges"), True, "splits text in a way"),
        (("model", "byte_fallback"), True, "is not a byte-level BPE"),
        (("model", "end_of_word_suffix"), "</w>", "is not a byte-level BPE"),
    ],
)
def test_a_tokenizer_that_llama_cpp_does_not_have_is_refused(
    path: tuple[str, ...], value: Any, message: str, tmp_path: Path
) -> None:
    tokenizer = FileTokenizer(changed(path, value))
    with pytest.raises(CheckpointError, match=f"GGUF: the tokenizer {message}.*; write the file without it"):
        write(build("mamba", vocab_size=408), tmp_path / "model.gguf", tokenizer=tokenizer)
    assert not (tmp_path / "model.gguf").exists()


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the tokenizer has 257 tokens, the model only 256"):
        write(build("mamba", vocab_size=256), tmp_path / "model.gguf", tokenizer=ByteTokenizer())
