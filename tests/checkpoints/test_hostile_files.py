"""Files that somebody made to do harm: each is refused in one line, and nothing in it is run or believed."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from labelled import opened

import statewise as sw
from statewise.checkpoints.convert.pickles import load_pickle
from statewise.checkpoints.convert.source import find_source
from statewise.checkpoints.convert.weights import read_weights
from statewise.checkpoints.tensor_files import read_tensors, shown
from statewise.data import cifar
from statewise.data.cifar_batch import read_batch
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.data.long_range import LongRangeDataConfig, open_long_range
from statewise.data.series import SeriesDataConfig, open_series
from statewise.data.tokenizers import FileTokenizer
from statewise.errors import CheckpointError, ConfigError, DataError, StatewiseError, excerpt
from statewise.evaluate.questions import open_tasks
from statewise.files.arrays import map_npy, read_npy, read_npz
from statewise.files.limits import VARIABLE, most
from statewise.files.opening import read_file, tar_members

BOMB = 70 << 20  # bytes of zeros, more than any small file may unfold to


def refused(call: Callable[[], Any], kind: type[StatewiseError] = DataError) -> str:
    """What the refusal says: one line that can be shown, and that quotes no more than a little."""
    with pytest.raises(kind) as caught:
        call()
    text = str(caught.value)
    assert text.isprintable(), repr(text)
    assert len(text) <= 400
    return text


# ---- pickles


class Call:
    """Is pickled as a call of a function, and a state for what it gives."""

    def __init__(self, function: Any, *given: Any, state: Any = None) -> None:
        self.made = (function, given) if state is None else (function, given, state)

    def __reduce__(self) -> Any:
        return self.made


def batch(labels: Any, data: Any) -> bytes:
    return pickle.dumps({b"labels": labels, b"data": data}, 2)


def address() -> bytes:
    """A dtype of an object whose flags say that it is none, over eight bytes of the file: an address, to be hashed."""
    state = (3, "|", None, ("a",), {"a": (np.dtype("O"), 0)}, 8, 1, 0)
    dtype = Call(np.dtype, "V8", state=state)
    return batch(Call(np.ndarray, (1,), dtype, b"ABCDEFGH"), np.zeros((1, 3072), np.uint8))


def nested_key() -> bytes:
    """A tuple of two of a tuple of two ..., 60 deep: hashing it would take longer than anybody lives."""
    key: Any = ()
    for _ in range(60):
        key = (key, key)
    return b"\x80\x02}" + pickle.dumps(key, 2)[2:-1] + b"K\x01s."


HOSTILE_BATCHES = {
    "an address": (address(), "labels no list"),
    "an array without bytes": (batch([0], Call(np.ndarray, (1, 3072))), "its array was not filled"),
    "a shape": (batch([0], np.zeros((2, 9), np.uint8)).replace(b"K\x09\x86", b"K\x0a\x86"), "other bytes than"),
    "numbers": (batch([0], np.zeros((1, 3072))), "not of uint8"),
    "a label": (batch([1 << 70], np.zeros((1, 3072), np.uint8)), "none of 0 to 9"),
    "a key": (nested_key(), "keys that are no text"),
    "a memo": (b"\x80\x02Nr\xff\xff\xff\x7f.", "is no batch"),
    "a class": (b"\x80\x02cnumpy\nndarray\n)\x81.", "an operation that no such batch has"),
    "code": (batch([0], Call(eval, "1/0")), "asks for __builtin__.eval"),
    "a state of a class": (b"\x80\x02c_codecs\nencode\n}b.", "sets the state of what has none"),
}


@pytest.mark.parametrize("name", HOSTILE_BATCHES)
def test_a_pickle_of_cifar_makes_nothing_that_it_names(name: str) -> None:
    data, message = HOSTILE_BATCHES[name]
    assert message in refused(lambda: read_batch(data, "data_batch_1", 3072))


def test_an_archive_with_an_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """309 bytes that ended the process."""
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    path = tmp_path / cifar.ARCHIVES[1]
    with tarfile.open(path, "w:gz") as archive:
        member = tarfile.TarInfo("cifar-10-batches-py/data_batch_1")
        member.size = len(address())
        archive.addfile(member, io.BytesIO(address()))
    assert "is no batch of cifar-10-python" in refused(lambda: opened("cifar10", folder=str(path)))


def test_a_column_first_array_is_read_as_it_is() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3072), np.uint8)
    for order in ("C", "F"):
        found, labels = read_batch(batch([3, 4], np.array(images, order=order)), "x", 3072)  # type: ignore[call-overload]
        np.testing.assert_array_equal(found, images)
        assert labels == [3, 4]


# ---- arrays


def npz(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def npy(header: str, data: bytes = b"") -> bytes:
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(header)) + header.encode("latin1") + data


def described(dtype: str, shape: str) -> str:
    return f"{{'descr': {dtype}, 'fortran_order': False, 'shape': {shape}, }}\n"


HOSTILE_ARRAYS = {
    "no array": (b"text", "is no .npy file"),
    "too many": (npy(described("'<f8'", "(100000000000,)"), bytes(80)), "claims 100,000,000,000 values of 8 bytes"),
    "beyond 64 bits": (npy(described("'<f8'", f"({'9' * 19}, {'9' * 19})"), bytes(80)), "claims more than 2^80"),
    "of nothing": (npy(described("'<U0'", "(100000000000,)")), "no plain array"),
    "objects": (npy(described("'|O'", "(1,)"), bytes(8)), "no plain array"),
    "a structure": (npy(described("[('a', '|O')]", "(1,)"), bytes(8)), "no plain array"),
    "an expression": (npy(described("'<f8'", "(9**9**9,)"), bytes(8)), "no plain array"),
    "brackets": (npy("(" * 5000), "no plain array"),
    "a long header": (npy(" " * 20_000), "a header that is too long"),
    "no characters": (npy(described("'<U1'", "(1,)"), b"\xff\xff\xff\x7f"), "not Unicode"),
    "neither true nor false": (npy(described("'|b1'", "(1,)"), b"\x07"), "bytes that are neither"),
    "negative": (npy(described("'<f8'", "(-1,)"), bytes(8)), "no plain array"),
}


@pytest.mark.parametrize("name", HOSTILE_ARRAYS)
def test_an_npz_whose_member_is_no_plain_array(name: str, tmp_path: Path) -> None:
    data, message = HOSTILE_ARRAYS[name]
    path = npz(tmp_path / "a.npz", {"train_x.npy": data})
    assert message in refused(lambda: opened("arrays", folder=str(path)))
    (tmp_path / "a.npy").write_bytes(data)
    if name not in ("no characters", "neither true nor false"):  # which a map does not look at
        refused(lambda: map_npy(tmp_path / "a.npy"))


@pytest.mark.parametrize("dtype", ["<f8", ">f4", "<i2", "|u1", "|b1", "<U3", ">U2", "|S4", "<f2", ">u8"])
@pytest.mark.parametrize("shape", [(3, 4), (0, 2), (), (2, 3, 2)])
def test_arrays_are_what_numpy_reads(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.random.default_rng(0).integers(0, 2, shape).astype(dtype)
    for m in (array, np.asfortranarray(array)):
        np.savez(tmp_path / "a.npz", x=m)
        found = read_npz(tmp_path / "a.npz")["x"]
        assert found.dtype == m.dtype
        np.testing.assert_array_equal(found, m)
        assert found.flags.writeable
        np.save(tmp_path / "a.npy", m)
        if m.size:
            np.testing.assert_array_equal(map_npy(tmp_path / "a.npy"), m)
    for version in ((2, 0), (3, 0)):
        file = io.BytesIO()
        np.lib.format.write_array(file, array, version)
        np.testing.assert_array_equal(read_npy(file.getvalue(), "x"), array)


def test_an_npz_that_is_locked_has_a_name_twice_or_unfolds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, array = tmp_path / "a.npz", io.BytesIO()
    np.save(array, np.zeros((4, 3)))
    raw = bytearray(npz(path, {"train_x.npy": array.getvalue()}).read_bytes())
    raw[6] |= 1
    raw[raw.index(b"PK\1\2") + 8] |= 1
    path.write_bytes(raw)
    assert "'train_x.npy' is encrypted" in refused(lambda: opened("arrays", folder=str(path)))
    raw = npz(path, {"x.npy": array.getvalue(), "y.npy": array.getvalue()}).read_bytes()
    path.write_bytes(raw.replace(b"y.npy", b"x.npy"))
    assert "has the member 'x.npy' twice" in refused(lambda: read_npz(path))
    npz(path, {"train_x.npy": npy(described("'|u1'", f"({BOMB},)"), bytes(BOMB))})
    said = refused(lambda: read_npz(path))
    assert "unfolds to 73,400" in said
    assert f"set {VARIABLE} to more than 100" in said
    monkeypatch.setenv(VARIABLE, "2000")
    assert len(read_npz(path)["train_x"]) == BOMB
    monkeypatch.setenv(VARIABLE, "lots")
    assert f"{VARIABLE}='lots' is no number" in refused(lambda: read_npz(path), ConfigError)


def test_what_a_file_may_unfold_to_grows_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (most(0), most(1 << 30)) == (64 << 20, 100 << 30)
    monkeypatch.setenv(VARIABLE, "5")
    assert most(1 << 30) == 5 << 30


# ---- compressed files and archives


def test_idx_of_zeros_is_not_unfolded_to_the_end(tmp_path: Path) -> None:
    for prefix in ("train", "t10k"):
        for stem in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{prefix}-{stem}-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\1" + bytes(BOMB), 1))
    assert "unfolds to more than 67,108,864 bytes" in refused(lambda: opened("mnist", folder=str(tmp_path)))


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "w"])
def test_a_tar_however_it_is_compressed(mode: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in (("a", b"one"), ("b/c", bytes(9))):
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    assert [(member.name, member.read()) for member in tar_members(path)] == [("a", b"one"), ("b/c", bytes(9))]
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if mode != "w" else whole[:700])
    assert "cannot read" in refused(lambda: [member.read() for member in tar_members(path)])


def test_members_that_claim_more_than_they_have(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    sparse = tarfile.TarInfo("data_batch_1.bin")
    sparse.pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.size": str(1 << 40), "GNU.sparse.numblocks": "0"}
    sparse.pax_headers["GNU.sparse.map"] = "0,0"
    large = tarfile.TarInfo("1_a_1.wav")
    large.size = 1 << 40
    for member in (sparse, large):
        path.write_bytes(gzip.compress(member.tobuf(tarfile.PAX_FORMAT) + bytes(1024)))
        assert "cannot read" in refused(lambda: [member.read() for member in tar_members(path)])
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a\nb" * 90))
    assert "has no name that can be shown" in refused(lambda: [member.read() for member in tar_members(path)])


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(lambda: read_file(tmp_path / "pipe"))
    assert "No such file" in refused(lambda: read_file(tmp_path / "none"))


# ---- pictures


def png(width: int, height: int, data: bytes = b"", kind: bytes = b"IDAT") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(kind, data) + chunk(b"IEND", b"")


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 32 32\n%%EndComments\nshowpage\n"
PICTURES = {
    "a bomb": (png(12_000, 12_000, zlib.compress(bytes(1000))), "has 12000 x 12000 pixels, expected 32 x 32"),
    "a bomb beyond Pillow's limit": (png(1 << 30, 1 << 30, b""), "is no image"),
    "a broken chunk": (png(32, 32, b"", b"\xff\xff\xff\xff"), "is no image"),
    "no pixels": (png(32, 32, b""), "is no image"),
    "a program of PostScript": (EPS, "is no image"),
    "cut short": (png(32, 32, zlib.compress(bytes(32 * 97)))[:50], "is no image"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("PIL", reason="Pillow is not installed")
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    data, message = PICTURES[name]
    path = tmp_path / "train" / "airplane" / "0.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    assert message in refused(lambda: opened("cifar10", folder=str(tmp_path)))


@pytest.mark.parametrize("folder", ["/dev", "../../.."])
def test_metadata_may_not_name_an_image_elsewhere(folder: str, tmp_path: Path) -> None:
    metadata = tmp_path / "curv_contour_length_14" / "metadata"
    metadata.mkdir(parents=True)
    (metadata / "0.npy").write_text(f"{folder} zero 0 1\n" * 10)
    config = LongRangeDataConfig(task="pathfinder", folder=str(tmp_path))
    assert "does not lie in the folder" in refused(lambda: open_long_range(config))


# ---- text


def test_hostile_lines_are_not_quoted_at_length(tmp_path: Path) -> None:
    long, config = "x" * 10_000 + "\x1b[2J", LongRangeDataConfig(task="listops", folder=str(tmp_path))
    for part in ("train", "val", "test"):
        (tmp_path / f"basic_{part}.tsv").write_text(f"Source\tTarget\n{long}\t1\n")
    assert "line 2" in refused(lambda: open_long_range(config))
    for part in ("TRAIN", "TEST"):
        (tmp_path / f"S_{part}.ts").write_text(f"@classLabel true {long} b\n@data\n1,2:{long}y\n")
    assert "is not one of @classLabel" in refused(lambda: opened("ucr:S", folder=str(tmp_path)))
    for line in (f'{{"{long[:-4]}": 1}}', f'{{"question": [{"1, " * 9999} 2]}}', f'{{"choices": ["{long[:-4]}", 1]}}'):
        (tmp_path / "own.jsonl").write_text(line)
        refused(lambda: open_tasks([str(tmp_path / "own.jsonl")]))
    assert len(excerpt(long)) <= 80


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    row = '{"question": "a", "choices": ["b", "c"], "answer": 0, "answer": 1}'
    (tmp_path / "own.jsonl").write_text(row)
    assert "line 1: the key 'answer' is there twice" in refused(lambda: open_tasks([str(tmp_path / "own.jsonl")]))


def test_few_bytes_do_not_become_many_choices(tmp_path: Path) -> None:
    passage = {"text": "a" * 100_000, "entities": [{"start": 0, "end": i} for i in range(5_000)]}
    query = {"query": "@placeholder " * 5_000, "answers": [{"text": "a"}]}
    (tmp_path / "ReCoRD").mkdir()
    for rows in (
        {"passage": passage, "qas": [query]},
        {
            "passage": "a",
            "entities": ["a" * i for i in range(2_000)],
            "answers": ["a"],
            "query": "@placeholder" * 9000,
        },
    ):
        (tmp_path / "ReCoRD" / "val.jsonl").write_text(json.dumps(rows))
        assert "unfolds to" in refused(lambda: open_tasks(["record"], tmp_path))


# ---- tokenizers


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


# ---- checkpoints


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
    assert "unfolds to 4,398,046,511,104 bytes of tensors" in said
    path = of_torch(path, {"a": torch.ones(1).expand(64, 64)})  # as einops' repeat leaves them
    assert read_weights(find_source(path))[1]["a"].shape == (64, 64)


def test_a_pickle_of_torch_that_is_a_bomb(tmp_path: Path) -> None:
    path = of_torch(tmp_path / "model.pt", {"a": torch.ones(1)})
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, bytes(BOMB) if name.endswith("data.pkl") else data)
    assert "unfolds to" in refused(lambda: read_weights(find_source(path)), CheckpointError)


def test_plain_data_that_hold_themselves_twice_and_twice(tmp_path: Path) -> None:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    content = {"pytorch-lightning_version": "1", "hyper_parameters": value, "state_dict": {"a": torch.ones(1)}}
    path = of_torch(tmp_path / "model.ckpt", content)
    assert "more than 1,000,000 values" in refused(lambda: read_weights(find_source(path)), CheckpointError)


def test_a_target_that_float32_does_not_hold(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_x=np.ones((4, 3)), train_y=np.array([1.0, 2.0, 3.0, 1e300]))
    config = LabelledDataConfig(source="arrays", folder=str(tmp_path / "a.npz"))
    assert "not finite in float32" in refused(lambda: open_labelled(config))


@pytest.mark.parametrize("time", ["0001-01-01", "9999-12-31", "0002-01-01T00:00+23:59", "9999-12-31T23:59-23:59"])
def test_times_at_the_ends_of_the_calendar(time: str, tmp_path: Path) -> None:
    rows = [f"{2020 + i}-01-01,{i}" for i in range(20)]
    (tmp_path / "s.csv").write_text("\n".join(["time,y", f"{time},1", *rows]))
    config = SeriesDataConfig(source=str(tmp_path / "s.csv"), horizon=2, history=4)
    assert "line 2: the time" in refused(lambda: open_series(config))


def test_a_store_of_rows_that_point_elsewhere_is_made_anew(tmp_path: Path) -> None:
    """Rows that were drawn into a folder may come with it, from somebody else."""
    config = LongRangeDataConfig(task="listops-gen", folder=str(tmp_path), n_train=9, n_validation=3, n_test=3)
    good = open_long_range(config).fingerprint
    (path,) = tmp_path.rglob("rows.npz")
    arrays = dict(np.load(path))
    for name, value in (("lengths", -1), ("lengths", 1 << 40), ("targets", None), ("rows", 99)):
        changed = {k: v.copy() for k, v in arrays.items()}
        if value is None:
            del changed[name]
        elif name in changed:
            changed[name][:2] = value, arrays[name][:2].sum() - value
        else:
            changed[name] = np.full(15, value)
        np.savez(path, **changed)
        assert open_long_range(config).fingerprint == good
    assert dict(np.load(path)).keys() == arrays.keys()


def test_one_row_is_not_held_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", train_x=np.ones((1, 3)), train_y=np.array([1]))
    data = opened("arrays", folder=str(tmp_path / "a.npz"))
    assert list(data.splits) == ["train"]
    assert "1 sequences of 3 steps" in data.describe()


def test_a_name_that_is_escaped_stays_short() -> None:
    for name in ("é" * 300, "\U0001f600" * 200, "a\n" * 90):
        assert len(shown(name)) <= 203
        assert shown(name).isascii()
        assert shown(name).isprintable()
    assert shown("a" * 200) == "a" * 200


# ---- what unfolds


def torch_file(path: Path, pickled: bytes) -> Path:
    """A file of torch.save with this pickle in the place of its own."""
    good = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in source.infolist():
            archive.writestr(member.filename, pickled if member.filename.endswith("data.pkl") else source.read(member))
    return path


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()


LONG = text("a" * (1 << 20))
ENCODED_OFTEN = b"c_codecs\nencode\nq\x00" + LONG + text("latin1") + b"\x86q\x01R" + b"h\x00h\x01R" * 3000


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


def test_a_batch_of_cifar_that_names_one_text_often() -> None:
    data = b"\x80\x02}(" + text("data") + b"](" + ENCODED_OFTEN + b"eu."
    assert "unfolds to many times its size" in refused(lambda: read_batch(data, "data_batch_1", 4))


def test_a_member_of_a_zip_that_says_less_than_it_is(tmp_path: Path) -> None:
    """A deflated stream of an array and then of zeros, under a header of the array's size and checksum."""
    array = io.BytesIO()
    np.save(array, np.zeros(3))
    honest, path = array.getvalue(), tmp_path / "data.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", honest + bytes(1 << 22))
    data = bytearray(path.read_bytes())
    claims = struct.pack("<I", zlib.crc32(honest)), struct.pack("<I", len(honest))
    central = data.rfind(b"PK\x01\x02")
    for crc, size in ((14, 22), (central + 16, central + 24)):
        data[crc : crc + 4], data[size : size + 4] = claims
    path.write_bytes(data)
    assert f"other bytes than the {len(honest)} that it claims" in refused(lambda: read_npz(path))


def test_the_two_files_of_a_tokenizer_with_an_id_in_the_billions(tmp_path: Path) -> None:
    """The library would write a line for every gap below it."""
    torch_file(tmp_path / "model.pt", b"")
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 3000000000}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    source = find_source(tmp_path / "model.pt")
    assert "has the id 3,000,000,000 for 2 tokens" in refused(lambda: source.tokenizer, CheckpointError)
