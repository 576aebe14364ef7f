"""Tokens on disk: made once, checked whenever opened, read through a memory map.

A store is a folder named by what it was made from::

    <cache>/tokens/<key>/tokens.bin      the tokens of all documents, unsigned 16 or 32 bit, each document after its
                                         document token
                         documents.bin   one row of two int64 for each document: tokens, bytes of text
                         meta.json       sizes and checksums of both; written last

It is written in a hidden folder beside, flushed to the disk and renamed into place. A run that is killed leaves the
hidden folder, which nobody reads and a later build removes; two runs at once build twice and one wins; whatever does
not agree with its checksums is built again.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from statewise.data.splits import Part
from statewise.data.tokenizers import Tokenizer, token_dtype
from statewise.errors import DataError

FORMAT = 1
PIECE_BYTES = 4 << 20  # text in memory at once; a longer document is tokenised in pieces
ABANDONED_SECONDS = 3600  # a build that wrote nothing for so long has died
ATTEMPTS = 5

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class TokenStore:
    """tokens: (n_tokens,) memory map.  offsets: (n_documents + 1,) int64, where each document begins in ``tokens``.
    n_bytes: (n_documents,) int64, the bytes of text of each.  fingerprint: a checksum of all of it.
    """

    folder: Path
    tokens: np.ndarray
    offsets: np.ndarray
    n_bytes: np.ndarray
    fingerprint: str


def cache_folder() -> Path:
    """``$STATEWISE_CACHE``, else ``$XDG_CACHE_HOME/statewise``, else ``~/.cache/statewise``. Safe to delete."""
    if chosen := os.environ.get("STATEWISE_CACHE"):
        return Path(chosen).expanduser().absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base, "statewise").absolute()
    try:
        return Path.home() / ".cache" / "statewise"
    except RuntimeError as error:
        raise DataError("no home folder to keep the token cache in; set STATEWISE_CACHE to a folder") from error


def open_store(parts: Sequence[Part], tokenizer: Tokenizer, progress: Progress | None = None) -> TokenStore:
    """The tokens of these parts of documents, in order; tokenised now if no good store of them is in the cache.

    ``progress(done_bytes, total_bytes)`` is called while text is tokenised, and not at all if none has to be.

    Cost:    opening reads every token once to check it (about a second for a gigabyte); making also O(1) memory,
             beyond one piece of a document and 16 bytes for each document.
    Errors:  DataError if a document cannot be read, changes while it is read, or is not text that the tokenizer
             takes; if the cache cannot be written.
    """
    root = cache_folder() / "tokens"
    final = root / _key(parts, tokenizer)
    temporary: Path | None = None
    try:
        for _ in range(ATTEMPTS):
            if (store := _open(final)) is not None:
                return store
            try:
                if temporary is None:
                    temporary = _make_temporary(root, final.name)
                    _build(temporary, parts, tokenizer, progress)
                if _publish(temporary, final):
                    temporary = None
            except OSError as error:
                raise DataError(
                    f"cannot write the token cache in {root}: {error.strerror or error}; "
                    "set STATEWISE_CACHE to a folder with room that you may write to"
                ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    raise DataError(
        f"the token cache in {root} does not keep what is written to it: {final.name} was damaged {ATTEMPTS} times "
        "over; set STATEWISE_CACHE to a folder on another disk"
    )


def read_part(part: Part, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The bytes of a part, in pieces that end where tokenising them apart does least harm: at a line end before a
    line that is not indented; failing that at any line end; failing that between two UTF-8 characters.

    Errors:  DataError if the file cannot be read or is not as it was when it was found.
    """
    document = part.document
    try:
        with open(document.path, "rb") as file:
            status = os.fstat(file.fileno())
            changed = (status.st_size, status.st_mtime_ns) != (document.size, document.mtime_ns)
            file.seek(part.begin)
            left, rest = part.n_bytes, b""
            while left and not changed:
                data = file.read(min(piece_bytes, left))
                left -= len(data)
                changed = not data
                data = rest + data
                end = len(data) if not left else _piece_end(data)
                rest = data[end:]
                if end:
                    yield data[:end]
    except OSError as error:
        raise DataError(f"cannot read {document.path}: {error.strerror or error}") from error
    if changed:
        raise DataError(f"{document.path} changed while it was being read; run again when it is complete")


def _piece_end(data: bytes) -> int:
    tail = max(0, len(data) - (1 << 16))
    ends = [match.end() for match in re.finditer(rb"\n(?=\S)", data[tail:])]
    if ends:
        return tail + ends[-1]
    if newline := data.rfind(b"\n") + 1:
        return newline
    end = len(data) - 1
    while end > len(data) - 4 and 0x80 <= data[end] < 0xC0:  # a character's bytes after its first
        end -= 1
    return max(end, 1)


def _key(parts: Sequence[Part], tokenizer: Tokenizer) -> str:
    """Names what the tokens are made from. Paths are in it in full: archives give unlike files like times and sizes."""
    digest = hashlib.sha256(json.dumps([FORMAT, tokenizer.fingerprint]).encode())
    for part in parts:
        name, path, size, mtime_ns = part.document
        digest.update(json.dumps([name, os.fspath(path), size, mtime_ns, part.begin, part.end]).encode())
    return digest.hexdigest()[:32]


def _open(folder: Path) -> TokenStore | None:
    """The store in this folder, or None if there is none or it is damaged in any way."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        if meta["format"] != FORMAT:
            return None
        tokens = _open_checked(folder, "tokens.bin", meta, np.dtype(meta["dtype"]))
        table = np.array(_open_checked(folder, "documents.bin", meta, np.dtype("<i8"))).reshape(-1, 2)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(table[:, 0], dtype=np.int64)])
        if offsets[-1] != len(tokens):
            return None
        content = json.dumps([meta["dtype"], meta["files"]], sort_keys=True).encode()
        return TokenStore(folder, tokens, offsets, table[:, 1].copy(), hashlib.sha256(content).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _open_checked(folder: Path, name: str, meta: dict[str, Any], dtype: np.dtype) -> np.ndarray:
    array: np.ndarray = np.memmap(folder / name, dtype, mode="r")
    data = array.view(np.uint8).data
    expected = meta["files"][name]
    if len(data) != expected["bytes"] or hashlib.blake2b(data, digest_size=32).hexdigest() != expected["blake2b"]:
        raise ValueError(name)
    return array


def _make_temporary(root: Path, name: str) -> Path:
    """A new hidden folder beside the final one; those of builds that have died are removed."""
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob(".*"):
        try:
            latest = max(path.stat().st_mtime for path in [old, *old.iterdir()])
        except OSError:  # its owner has just renamed or removed it
            continue
        if time.time() - latest > ABANDONED_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    temporary = root / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    temporary.mkdir()
    return temporary


def _build(folder: Path, parts: Sequence[Part], tokenizer: Tokenizer, progress: Progress | None) -> None:
    dtype = token_dtype(tokenizer.vocab_size)
    document_token = np.array([tokenizer.document_token], dtype).tobytes()
    total, done = sum(part.n_bytes for part in parts), 0
    files: dict[str, dict[str, Any]] = {}
    table = np.zeros((len(parts), 2), "<i8")
    with open(folder / "tokens.bin", "wb") as file:
        writer = _Writer(file)
        for row, part in zip(table, parts, strict=True):
            before = writer.n_bytes
            writer.write(document_token)
            for data in read_part(part):
                writer.write(_tokenize(tokenizer, data, part, part.begin + int(row[1])).astype(dtype, copy=False).data)
                row[1] += len(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
            row[0] = (writer.n_bytes - before) // dtype.itemsize
        files["tokens.bin"] = writer.close()
    with open(folder / "documents.bin", "wb") as file:
        writer = _Writer(file)
        writer.write(table.tobytes())
        files["documents.bin"] = writer.close()
    meta = {"format": FORMAT, "dtype": dtype.str, "tokenizer": tokenizer.fingerprint, "files": files}
    with open(folder / "meta.json", "wb") as file:
        writer = _Writer(file)
        writer.write(json.dumps(meta, indent=1).encode())
        writer.close()
    _sync_folder(folder)


def _tokenize(tokenizer: Tokenizer, data: bytes, part: Part, position: int) -> np.ndarray:
    try:
        return tokenizer.encode_bytes(data)
    except DataError as error:
        cause = error.__cause__
        if isinstance(cause, UnicodeDecodeError):  # its position counts from the piece, a reader's from the file
            raise DataError(
                f"{part.document.path} is not UTF-8 at byte {position + cause.start}; "
                'convert or remove it, or use the "bytes" tokenizer, which takes any bytes'
            ) from error
        raise DataError(f"{part.document.path}: {error}") from error


class _Writer:
    """Counts and sums what goes into a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._digest = file, hashlib.blake2b(digest_size=32)
        self.n_bytes = 0

    def write(self, data: bytes | memoryview) -> None:
        data = memoryview(data).cast("B")
        self._file.write(data)
        self._digest.update(data)
        self.n_bytes += len(data)

    def close(self) -> dict[str, Any]:
        self._file.flush()
        os.fsync(self._file.fileno())
        return {"bytes": self.n_bytes, "blake2b": self._digest.hexdigest()}


def _publish(temporary: Path, final: Path) -> bool:
    """Rename the finished folder into place; False if another process was first, or if what was there is damaged.

    A damaged folder is moved aside under a hidden name, so that the next attempt finds the place free. Processes that
    have it mapped keep their pages.
    """
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        if _open(final) is None:
            aside = temporary.with_name(f"{temporary.name}.damaged")
            try:
                os.rename(final, aside)
            except FileNotFoundError:  # another process has moved it
                return False
            if aside.is_dir():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.unlink(missing_ok=True)
        return False
    _sync_folder(final.parent)
    return True


def _sync_folder(folder: Path) -> None:
    if os.name == "nt":  # Windows cannot open a folder to flush it
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
