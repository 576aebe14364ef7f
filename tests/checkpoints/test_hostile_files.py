"""Checkpoints and tokenizers that somebody made to do harm: refused in one line, nothing is run or believed."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile import BOMB, ENCODED_OFTEN, refused, text

import statewise as sw
from statewise.checkpoints.convert.pickles import load_pickle
from statewise.checkpoints.convert.source import find_source
from statewise.checkpoints.convert.weights import read_weights
from statewise.checkpoints.tensor_files import read_tensors
from statewise.data.tokenizers import FileTokenizer
from statewise.errors import CheckpointError


def tokenizer(**changes: Any) -> str:
    added = {"id": 0, "content": "<|endoftext|>", "special": True}
    added |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    vocab = {"<|endoftext|>": 0, "a": 1}
    model = {"type": "WordLevel", "vocab": vocab | changes.pop("vocab", {}), "unk_token": "a"}
    return json.dumps({"version": "1.0", "added_tokens": [added], "model": model, **changes})


TEMPLATE = {"type": "TemplateProcessing", "pair": [], "single": [{"SpecialToken": {"id": "x", "type_id": 0}}]}


TEMPLATE["single"] += [{"Sequence": {"id": "A", "type_id": 0}}]  # type: ignore[operator]


def special(token: Any) -> dict[str, Any]:
    return {**TEMPLATE, "special_tokens": {"x": {"id": "x", "ids": [token], "tokens": ["x"]}}}


HOSTILE_TOKENIZERS = {
    "a large id": (
        tokenizer(vocab={"b": 4_000_000_000}),
        "has the id 4,000,000,000 for 3 tokens; expected ids",
    ),
    "a prefix beyond the vocabulary": (tokenizer(post_processor=special(7)), "puts 7 before a text"),
    "a missing token": (
        tokenizer(post_processor={**TEMPLATE, "special_tokens": {}}),
        "has a post_processor that cannot be read",
    ),
    "no type": (tokenizer(post_processor={"single": []}), "tokenizer"),
    "no type but all else": (tokenizer(post_processor={"sep": ["a", 1], "cls": ["a", 1]}), "tokenizer"),
    "a key twice": (tokenizer().replace('"a": 1', '"a": 1, "a": 0'), "the key 'a' is there twice"),
    "deep": (tokenizer(post_processor=0).replace("0}", "[" * 100_000 + "}"), "is not a tokenizer.json"),
}


@pytest.mark.parametrize("name", HOSTILE_TOKENIZERS)
def test_tokenizers(name: str) -> None:
    text, message = HOSTILE_TOKENIZERS[name]
    assert message in refused(lambda: FileTokenizer(text))


def test_gaps_in_a_vocabulary_are_still_listed() -> None:
    found = FileTokenizer(tokenizer(vocab={"b": 5, "c": 3}))
    assert (found.vocab_size, list(found.gaps)) == (6, [2, 4])


def test_a_tokenizer_that_cannot_encode_a_text() -> None:
    text = tokenizer().replace('"unk_token": "a"', '"unk_token": "none"')
    assert "cannot encode the text" in refused(lambda: FileTokenizer(text).encode("zz"))


def safetensors(path: Path, header: str, data: bytes = bytes(8)) -> Path:
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + data)
    return path


def test_a_tensor_whose_name_is_there_twice(tmp_path: Path) -> None:
    one, two = (f'{{"dtype": "F32", "shape": [1], "data_offsets": [{i}, {i + 4}]}}' for i in (0, 4))
    path = safetensors(tmp_path / "model.safetensors", f'{{"a": {one}, "a": {two}}}')
    said = refused(lambda: read_tensors(path), CheckpointError)
    assert said.startswith(f"{path} is not a safetensors file that can be read: its header is not JSON: the key 'a' is")
    safetensors(path, f'{{"__metadata__": {{"a": "1", "a": "2"}}, "a": {one}, "b": {two}}}')
    assert "the key 'a' is there twice" in refused(lambda: read_tensors(path), CheckpointError)
    safetensors(path, f'{{"{"a" * 5000}": {one}, "{"a" * 5000}": {two}}}')
    assert "is there twice" in refused(lambda: read_tensors(path), CheckpointError)
    safetensors(path, "[" * 100_000)
    refused(lambda: read_tensors(path), CheckpointError)
    safetensors(path, f'{{"a": {one}, "b": {two}}}  ')
    assert read_tensors(path).keys() == {"a", "b"}


def test_a_config_with_a_long_value(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = sw.LanguageModelConfig(vocab_size=16, d_model=16, layers=(sw.MambaConfig(d_state=4),)).build()
    from statewise.checkpoints.convert import save_as

    folder = save_as(model, tmp_path / "m", "transformers")
    good = json.loads((folder / "config.json").read_text())
    for value in (["mamba"] * 1000, "x" * 5000, 10**4000, {"a": {"b": [1] * 1000}}):
        for field in ("hidden_act", "state_size", "model_type", "use_bias"):
            (folder / "config.json").write_text(json.dumps({**good, field: value}))
            refused(lambda: sw.load(folder), CheckpointError)


def of_torch(path: Path, content: Any) -> Path:
    torch.save(content, path)
    return path


def test_one_number_that_stands_for_all_of_the_memory(tmp_path: Path) -> None:
    path = of_torch(tmp_path / "model.pt", {"a": torch.ones(1).expand(1 << 20, 1 << 20)})
    said = refused(lambda: read_weights(find_source(path)), CheckpointError)
    assert "expands to 4,398,046,511,104 bytes of tensors" in said
    path = of_torch(path, {"a": torch.ones(1).expand(64, 64)})  # as einops' repeat leaves them
    assert read_weights(find_source(path))[1]["a"].shape == (64, 64)


def test_a_pickle_of_torch_that_is_a_bomb(tmp_path: Path) -> None:
    path = of_torch(tmp_path / "model.pt", {"a": torch.ones(1)})
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, bytes(BOMB) if name.endswith("data.pkl") else data)
    assert "expands to" in refused(lambda: read_weights(find_source(path)), CheckpointError)


def test_plain_data_that_hold_themselves_twice_and_twice(tmp_path: Path) -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    content = {"pytorch-lightning_version": "1", "hyper_parameters": value, "state_dict": {"a": torch.ones(1)}}
    path = of_torch(tmp_path / "model.ckpt", content)
    assert "more than 1,000,000 values" in refused(lambda: read_weights(find_source(path)), CheckpointError)


def torch_file(path: Path, pickled: bytes) -> Path:
    """A file of torch.save with this pickle in the place of its own."""
    good = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in source.infolist():
            archive.writestr(member.filename, pickled if member.filename.endswith("data.pkl") else source.read(member))
    return path


@pytest.mark.parametrize(
    ("pickled", "said"),
    [
        (b"\x80\x02}" + text("a") + b"cbuiltins\nbytearray\n\x8a\x05\x00\xf9\x02\x95\x00\x85Rs.", "builtins.bytearray"),
        (b"\x80\x02}" + text("a") + b"](" + ENCODED_OFTEN + b"es.", "attack on the memory"),
    ],
)
def test_calls_that_pytorch_lets_pass_take_no_memory(pickled: bytes, said: str, tmp_path: Path) -> None:
    path = torch_file(tmp_path / "model.pt", pickled)
    assert said in refused(lambda: load_pickle(path), CheckpointError)


def test_a_pickle_that_cannot_be_checked_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch would read is refused where its operations could not be followed first."""
    path = tmp_path / "model.pt"
    torch.save({"a": 5}, path, _use_new_zipfile_serialization=False)
    assert load_pickle(path) == {"a": 5}

    def unable(data: object) -> Iterator[Any]:
        raise ValueError("at position 2, opcode b'}' unknown")
        yield

    monkeypatch.setattr("pickletools.genops", unable)
    assert "damaged, cut short" in refused(lambda: load_pickle(path), CheckpointError)


def test_the_two_files_of_a_tokenizer_with_an_id_in_the_billions(tmp_path: Path) -> None:
    """The library would write a line for every gap below it."""
    torch_file(tmp_path / "model.pt", b"")
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 3000000000}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    source = find_source(tmp_path / "model.pt")
    assert "has the id 3,000,000,000 for 2 tokens" in refused(lambda: source.tokenizer, CheckpointError)
