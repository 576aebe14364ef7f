"""Plain and compressed files and archives, opened with limits: whatever is wrong with one is a DataError."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple

from statewise.errors import DataError, StatewiseError, excerpt, importing, reason
from statewise.files.limits import most, require_within, too_much

Compressed = Callable[[IO[bytes]], io.BufferedIOBase]
COMPRESSED: dict[bytes, Compressed] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": lambda file: bz2.BZ2File(file),
    b"\xfd7zXZ\0": lambda file: lzma.LZMAFile(file),  # noqa: SIM115 (closed with the file)
    b"\x28\xb5\x2f\xfd": lambda file: _zstd(file),
}
PACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # what numpy, PyTorch and zip itself write
BUFFER = 1 << 20
LONGEST_NAME = 200  # of a member of a tar; messages show it


@contextmanager
def refusing(what: str) -> Iterator[None]:
    """Whatever is raised within, as one DataError; a damaged file may make a library raise anything."""
    try:
        yield
    except StatewiseError:
        raise
    except Exception as error:
        raise DataError(f"{what}: {reason(error)}") from error


def read_file(path: Path) -> bytes:
    """All bytes of a regular file: a pipe would be waited for, and a device never ends.

    Errors:  DataError.
    """
    with refusing(f"cannot read {path}"), open_file(path) as file:
        return file.read()


@contextmanager
def unfolded(
    path: Path, *, gzipped: bool | None = None, told: Callable[[int], None] | None = None
) -> Iterator[IO[bytes]]:
    """The bytes of a file, decompressed if it begins as gzip, bz2, xz or zstd do; read once, from beginning to end.

    gzipped: True: it has to be gzip; False: bytes are taken as they are; None: by its first bytes
    told:    is called with how many bytes of the file itself were read so far
    Errors:  DataError where it cannot be read, expands to more than its size allows, or needs pyarrow, which is not
             installed.
    """
    with refusing(f"cannot read {path}"), open_file(path, told) as file:
        head = file.peek(8)
        make = None
        if gzipped is not False:
            make = next((make for magic, make in COMPRESSED.items() if head.startswith(magic)), None)
        if gzipped and not head.startswith(b"\x1f\x8b"):
            raise DataError(f"cannot read {path}: it is not a gzip file")
        n_bytes = os.fstat(file.fileno()).st_size
        yield file if make is None else io.BufferedReader(_Bounded(make(file), path, n_bytes), BUFFER)


def _zstd(file: IO[bytes]) -> Any:
    """pyarrow's reader: it says where a file is cut short, which zstandard's takes for the end."""
    with importing("pyarrow", "files", "a .zst file needs", DataError):
        import pyarrow
    return pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd")


class Member(NamedTuple):
    """name: as the archive has it; read: its bytes, once, before the next member."""

    name: str
    read: Callable[[], bytes]


def tar_members(path: Path) -> Iterator[Member]:
    """The regular files of a tar, compressed or not, one after the other. Nothing is written to the disk.

    Errors:  DataError, also for a sparse member, whose size says nothing.
    """
    with unfolded(path) as file, tarfile.open(fileobj=file, mode="r|", bufsize=BUFFER) as archive:
        while (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]  # it would keep them all
            if member.issparse():
                raise DataError(
                    f"cannot read {path}: its member {excerpt(member.name)} is sparse; store it as an ordinary file"
                )
            if member.isreg():
                yield Member(member.name, lambda member=member: _read(archive, member, path))  # type: ignore[misc]


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    if len(member.name) > LONGEST_NAME or not member.name.isprintable():
        raise DataError(f"cannot read {path}: its member {excerpt(member.name)} has a name that cannot be printed")
    with refusing(f"cannot read {path}"):
        file = archive.extractfile(member)
        assert file is not None
        return file.read()


@contextmanager
def zip_members(path: Path) -> Iterator[dict[str, Callable[[], bytes]]]:
    """What reads each file of a zip, by its name.

    Errors:  DataError for a file that is not a zip, or is damaged; for names that are there twice, and members that are
             encrypted or packed in an unusual way; for more bytes in all than the archive's size allows.
    """
    with refusing(f"cannot read {path}"), open_file(path) as file, zipfile.ZipFile(file) as archive:
        members: dict[str, zipfile.ZipInfo] = {}
        for member in check_zip(archive, path, os.fstat(file.fileno()).st_size):
            if member.filename in members:
                raise DataError(f"cannot read {path}: it has the member {excerpt(member.filename)} twice")
            members[member.filename] = member
        yield {name: lambda member=member: read_member(archive, member, path) for name, member in members.items()}  # type: ignore[misc]


def read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, path: Path) -> bytes:
    """The bytes of a member of a zip, never more than its header says: reading "all" unfolds whatever there is.

    Errors:  DataError for one that expands to more or less than its header says.
    """
    with refusing(f"cannot read {path}"), archive.open(member) as file:
        data = file.read(member.file_size)
        more = getattr(file, "_decompressor", None)
        goes_on = more is not None and (more.unconsumed_tail and more.decompress(more.unconsumed_tail, 1))
        if len(data) != member.file_size or goes_on or getattr(file, "_compress_left", 0) > 0:
            raise DataError(
                f"cannot read {path}: its member {excerpt(member.filename)} does not have the {member.file_size:,} "
                "bytes that it claims"
            )
        return data


def check_zip(archive: zipfile.ZipFile, path: Path, n_bytes: int) -> list[zipfile.ZipInfo]:
    """The members of a zip of ``n_bytes``, if they are such as can be read.

    Errors:  DataError, as :func:`zip_members`. Members are not read: no more comes of one than its header says.
    """
    members = archive.infolist()
    for member in members:
        if member.flag_bits & 1:
            raise DataError(f"cannot read {path}: its member {excerpt(member.filename)} is encrypted; decrypt it first")
        if member.compress_type not in PACKED:
            raise DataError(
                f"cannot read {path}: its member {excerpt(member.filename)} is compressed by an unknown method"
            )
    require_within(str(path), sum(member.file_size for member in members), n_bytes)
    return members


def open_file(path: Path, told: Callable[[int], None] | None = None) -> io.BufferedReader:
    """Opens a file for reading; DataError if it is not a regular file, such as a pipe, which would be waited for."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise DataError(f"cannot read {path}: it is not a regular file")
    return io.BufferedReader(io.FileIO(path) if told is None else _Told(path, told), BUFFER)


class _Told(io.FileIO):
    """A file that tells how far it is read."""

    def __init__(self, path: Path, told: Callable[[int], None]) -> None:
        super().__init__(path)
        self._told = told

    def readinto(self, buffer: Any) -> int:
        n = super().readinto(buffer)
        self._told(self.tell())
        return n


class _Bounded(io.RawIOBase):
    """A decompressed file that ends in a DataError where there is too much of it."""

    def __init__(self, file: Any, path: Path, n_bytes: int) -> None:
        self._file, self._path, self._n_bytes = file, path, n_bytes
        self._left = most(n_bytes)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        n: int = self._file.readinto(buffer)
        self._left -= n
        if self._left < 0:
            raise DataError(too_much(str(self._path), f"more than {most(self._n_bytes):,} bytes", self._n_bytes))
        return n
