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

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from statewise.data.made_once import cache_folder, made_once
from statewise.data.progress import Progress
from statewise.data.splits import Part, WholeParts
from statewise.data.summed_files import SummedWriter, map_summed
from statewise.data.tokenizers import Tokenizer, token_dtype
from statewise.errors import DataError, reading

FORMAT = 1
PIECE_BYTES = 4 << 20  # text in memory at once; a longer document is tokenised in pieces


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


def open_store(parts: Sequence[Part], tokenizer: Tokenizer, progress: Progress | None = None) -> TokenStore:
    """The tokens of these parts of documents, in order; tokenised now if no good store of them is in the cache.

    ``progress(done_bytes, total_bytes)`` is called while text is tokenised, and not at all if none has to be.

    Cost:    opening reads every token once to check it (about a second for a gigabyte); making also O(1) memory,
             beyond one piece of a document and 16 bytes for each document.
    Errors:  DataError if a document cannot be read, changes while it is read, or is not text that the tokenizer
             takes; if the cache cannot be written.
    """
    return made_once(
        cache_folder() / "tokens" / _key(parts, tokenizer),
        load=_open,
        build=lambda folder: _build(folder, parts, tokenizer, progress),
        noun="token cache",
    )


def read_part(part: Part, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """The bytes of a part, in pieces that end where tokenising them apart does least harm: at a line end before a
    line that is not indented; failing that at any line end; failing that between two UTF-8 characters.

    Errors:  DataError if the file cannot be read or is not as it was when it was found.
    """
    with reading(part.document.path):
        file = open(part.document.path, "rb")  # noqa: SIM115 (closed below)
    with file:
        yield from _read_part(part, file, piece_bytes)


def read_parts(parts: Iterable[Part]) -> Iterator[tuple[Part, Iterator[bytes]]]:
    """Each part and its pieces, to be read before the next part. A file with many of them is opened once.

    Errors:  as :func:`read_part`.
    """
    file: IO[bytes] | None = None
    try:
        for part in parts:
            path = part.document.path
            if file is None or file.name != path:
                if file is not None:
                    file.close()
                with reading(path):
                    file = open(path, "rb")  # noqa: SIM115 (closed below)
            yield part, _read_part(part, file, PIECE_BYTES)
    finally:
        if file is not None:
            file.close()


def _read_part(part: Part, file: IO[bytes], piece_bytes: int) -> Iterator[bytes]:
    document = part.document
    size = document.size if document.of is None else document.of
    with reading(document.path):
        status = os.fstat(file.fileno())
        changed = (status.st_size, status.st_mtime_ns) != (size, document.mtime_ns)
        file.seek(document.begin + part.begin)
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
    if changed:
        raise DataError(
            f"{document.path} changed while it was being read; run the command again when the file is complete"
        )


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


def identify_parts(parts: Sequence[Part]) -> list[list[Any]]:
    """What the text of these parts is known by. Paths in full: archives give unlike files like times and sizes."""
    found: list[list[Any]] = []
    if isinstance(parts, WholeParts) and (checksum := getattr(parts.documents, "checksum", None)) is not None:
        return [["stored", checksum, hashlib.sha256(np.ascontiguousarray(parts.chosen, "<i8").data).hexdigest()]]
    for part in parts:
        name, path, size, mtime_ns = part.document[:4]  # the name of a record has its number
        found.append([name, os.fspath(path), size, mtime_ns, part.begin, part.end])
    return found


def count_bytes(parts: Sequence[Part]) -> int:
    """The bytes of their texts, without reading them."""
    if isinstance(parts, WholeParts) and (sizes := getattr(parts.documents, "sizes", None)) is not None:
        return int(sizes[parts.chosen].sum())
    return sum(part.n_bytes for part in parts)


def _key(parts: Sequence[Part], tokenizer: Tokenizer) -> str:
    """Names what the tokens are made from."""
    digest = hashlib.sha256(json.dumps([FORMAT, tokenizer.fingerprint]).encode())
    for record in identify_parts(parts):
        digest.update(json.dumps(record).encode())
    return digest.hexdigest()[:32]


def _open(folder: Path) -> TokenStore | None:
    """The store in this folder, or None if there is none or it is damaged in any way."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        if meta["format"] != FORMAT:
            return None
        files = meta["files"]
        tokens = map_summed(folder / "tokens.bin", files["tokens.bin"], np.dtype(meta["dtype"]))
        table = np.array(map_summed(folder / "documents.bin", files["documents.bin"], np.dtype("<i8"))).reshape(-1, 2)
        offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(table[:, 0], dtype=np.int64)])
        if offsets[-1] != len(tokens):
            return None
        content = json.dumps([meta["dtype"], files], sort_keys=True).encode()
        return TokenStore(folder, tokens, offsets, table[:, 1].copy(), hashlib.sha256(content).hexdigest())
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(folder: Path, parts: Sequence[Part], tokenizer: Tokenizer, progress: Progress | None) -> None:
    dtype = token_dtype(tokenizer.vocab_size)
    document_token = np.array([tokenizer.document_token], dtype).tobytes()
    total, done = count_bytes(parts), 0
    files: dict[str, dict[str, Any]] = {}
    table = np.zeros((len(parts), 2), "<i8")
    with open(folder / "tokens.bin", "wb") as file:
        writer = SummedWriter(file)
        for row, (part, pieces) in zip(table, read_parts(parts), strict=True):
            before = writer.n_bytes
            writer.write(document_token)
            for data in pieces:
                writer.write(_tokenize(tokenizer, data, part, part.begin + int(row[1])).astype(dtype, copy=False).data)
                row[1] += len(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
            row[0] = (writer.n_bytes - before) // dtype.itemsize
        files["tokens.bin"] = writer.record()
    with open(folder / "documents.bin", "wb") as file:
        writer = SummedWriter(file)
        writer.write(table.tobytes())
        files["documents.bin"] = writer.record()
    meta = {"format": FORMAT, "dtype": dtype.str, "tokenizer": tokenizer.fingerprint, "files": files}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), "utf-8")


def _tokenize(tokenizer: Tokenizer, data: bytes, part: Part, position: int) -> np.ndarray:
    try:
        return tokenizer.encode_bytes(data)
    except DataError as error:
        where = part.document.path if part.document.of is None else part.document.name
        cause = error.__cause__
        if isinstance(cause, UnicodeDecodeError):  # its position counts from the piece, a reader's from the file
            raise DataError(
                f"{where} is not UTF-8 at byte {position + cause.start}; "
                'convert or remove it, or use the "bytes" tokenizer, which takes any bytes'
            ) from error
        raise DataError(f"{where}: {error}") from error
