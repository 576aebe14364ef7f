"""Batches of CIFAR that somebody made to do harm: a pickle makes nothing that it names, and takes no memory."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile import ENCODED_OFTEN, batch, refused, text
from labelled import opened

from statewise.data import cifar
from statewise.data.cifar_batch import read_batch
from statewise.files.arrays import read_npz


class Call:
    """Is pickled as a call of a function, and a state for what it gives."""

    def __init__(self, function: Any, *given: Any, state: Any = None) -> None:
        self.made = (function, given) if state is None else (function, given, state)

    def __reduce__(self) -> Any:
        return self.made


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
    "an address": (address(), "labels not a list"),
    "an array without bytes": (batch([0], Call(np.ndarray, (1, 3072))), "its array was not filled"),
    "a shape": (batch([0], np.zeros((2, 9), np.uint8)).replace(b"K\x09\x86", b"K\x0a\x86"), "as many bytes as"),
    "numbers": (batch([0], np.zeros((1, 3072))), "not uint8"),
    "a label": (batch([1 << 70], np.zeros((1, 3072), np.uint8)), "not one of 0 to 9"),
    "a key": (nested_key(), "keys that are not text"),
    "a memo": (b"\x80\x02Nr\xff\xff\xff\x7f.", "is not a batch"),
    "a class": (b"\x80\x02cnumpy\nndarray\n)\x81.", "an operation that these batches do not use"),
    "code": (batch([0], Call(eval, "1/0")), "asks for __builtin__.eval"),
    "a state of a class": (b"\x80\x02c_codecs\nencode\n}b.", "sets the state of an object without one"),
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
    assert "is not a batch of cifar-10-python" in refused(lambda: opened("cifar10", folder=str(path)))


def test_a_batch_of_cifar_that_names_one_text_often() -> None:
    data = b"\x80\x02}(" + text("data") + b"](" + ENCODED_OFTEN + b"eu."
    assert "grows to many times its size" in refused(lambda: read_batch(data, "data_batch_1", 4))


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
    assert f"does not have the {len(honest)} bytes that it claims" in refused(lambda: read_npz(path))
