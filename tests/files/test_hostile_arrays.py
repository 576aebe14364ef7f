"""Arrays and archives that somebody made to do harm: refused in one line, and not unfolded to the end."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hostile import BOMB, batch, refused
from labelled import opened

from statewise.data.cifar_batch import read_batch
from statewise.errors import ConfigError
from statewise.files.arrays import map_npy, read_npy, read_npz
from statewise.files.limits import VARIABLE, most
from statewise.files.opening import read_file, tar_members


def test_a_column_first_array_is_read_as_it_is() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3072), np.uint8)
    for order in ("C", "F"):
        found, labels = read_batch(batch([3, 4], np.array(images, order=order)), "x", 3072)  # type: ignore[call-overload]
        np.testing.assert_array_equal(found, images)
        assert labels == [3, 4]


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
    "no array": (b"text", "is not a .npy file"),
    "too many": (npy(described("'<f8'", "(100000000000,)"), bytes(80)), "claims 100,000,000,000 values of 8 bytes"),
    "beyond 64 bits": (npy(described("'<f8'", f"({'9' * 19}, {'9' * 19})"), bytes(80)), "claims more than 2^80"),
    "of nothing": (npy(described("'<U0'", "(100000000000,)")), "is not a plain array"),
    "objects": (npy(described("'|O'", "(1,)"), bytes(8)), "is not a plain array"),
    "a structure": (npy(described("[('a', '|O')]", "(1,)"), bytes(8)), "is not a plain array"),
    "an expression": (npy(described("'<f8'", "(9**9**9,)"), bytes(8)), "is not a plain array"),
    "brackets": (npy("(" * 5000), "is not a plain array"),
    "a long header": (npy(" " * 20_000), "a header that is too long"),
    "no characters": (npy(described("'<U1'", "(1,)"), b"\xff\xff\xff\x7f"), "not Unicode"),
    "neither true nor false": (npy(described("'|b1'", "(1,)"), b"\x07"), "bytes that are neither"),
    "negative": (npy(described("'<f8'", "(-1,)"), bytes(8)), "is not a plain array"),
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
    assert "expands to 73,400" in said
    assert f"set {VARIABLE} to more than 100" in said
    monkeypatch.setenv(VARIABLE, "2000")
    assert len(read_npz(path)["train_x"]) == BOMB
    monkeypatch.setenv(VARIABLE, "lots")
    assert f"{VARIABLE}='lots' is not a number" in refused(lambda: read_npz(path), ConfigError)


def test_what_a_file_may_unfold_to_grows_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert (most(0), most(1 << 30)) == (64 << 20, 100 << 30)
    monkeypatch.setenv(VARIABLE, "5")
    assert most(1 << 30) == 5 << 30


def test_idx_of_zeros_is_not_unfolded_to_the_end(tmp_path: Path) -> None:
    for prefix in ("train", "t10k"):
        for stem in ("images-idx3", "labels-idx1"):
            (tmp_path / f"{prefix}-{stem}-ubyte.gz").write_bytes(gzip.compress(b"\0\0\x08\1" + bytes(BOMB), 1))
    assert "expands to more than 67,108,864 bytes" in refused(lambda: opened("mnist", folder=str(tmp_path)))


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
    assert "has a name that cannot be printed" in refused(lambda: [member.read() for member in tar_members(path)])


def test_what_is_no_regular_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refused(lambda: read_file(tmp_path / "pipe"))
    assert "No such file" in refused(lambda: read_file(tmp_path / "none"))
