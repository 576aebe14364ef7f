"""Texts that do not lie in files of their own, records and what is compressed, one after the other in the cache.

A store is a folder named by what it was made from::

    <cache>/texts/<key>/text.bin      the texts in UTF-8 (of compressed text: its bytes), with nothing between
                        records.bin   four unsigned 64-bit numbers for each text: its bytes, a hash of them, which
                                      shelf it is from, and its number there
                        labels.jsonl  the label of each, where they have labels
                        meta.json     what was skipped, sizes and checksums; written last

So a text can be read again from any place, whatever it was unfolded from: the tokens, a tokenizer that is learned, and
bits per byte need no more than for files of plain text. It takes the disk as much room as the text has.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, overload

import numpy as np

from statewise.data.made_once import cache_folder, made_once
from statewise.data.progress import Progress
from statewise.data.sources import Document
from statewise.data.summed_files import SummedWriter, map_summed
from statewise.errors import DataError, excerpt
from statewise.files.records import Told

FORMAT = 1
HASH_BYTES = 8


class Entry(NamedTuple):
    """A text of a shelf. text: a string, or pieces of bytes; None where there is none.  label: JSON data."""

    number: int
    text: Any
    label: Any = None


class Shelf(Protocol):
    """A file, or a split of a data set, with texts in it."""

    @property
    def name(self) -> str:
        """Within the source; a document's name is this and its number."""

    @property
    def n_bytes(self) -> int:
        """The bytes of the file."""

    @property
    def identity(self) -> list[Any]:
        """JSON data: another one for other texts."""

    def entries(self, told: Told | None) -> Iterator[Entry]:
        """Its texts. Errors: DataError."""

    def place(self, number: int) -> str:
        """For messages: "corpus.jsonl, line 7"."""


class StoredDocuments(Sequence[Document]):
    """The documents of a store: made when they are asked for, since there may be a hundred million.

    sizes:       (n,) int64, bytes of each  begins: where each begins in the file of texts
    hashes:      (n,) float64 in [0, 1), of the bytes of each
    shelves:     (n,) int64, which shelf each is from  numbers: (n,) int64, its number there
    labels:      of each; () where none were asked for
    passed_over: how many texts, by reason
    checksum:    equal only for the same texts, labels among them
    """

    def __init__(
        self, path: Path, table: np.ndarray, names: Sequence[str], labels: Sequence[Any], meta: dict[str, Any]
    ) -> None:
        status = path.stat()
        self.path, self.names, self.labels = path, names, labels
        self._of, self._mtime_ns = status.st_size, status.st_mtime_ns
        self.sizes = table[:, 0].astype(np.int64)
        self.begins = np.cumsum(self.sizes) - self.sizes
        self.hashes = (table[:, 1] >> np.uint64(11)) / 2.0**53  # what float64 holds of 64 bits, so that none is 1
        self.shelves, self.numbers = table[:, 2].astype(np.int64), table[:, 3].astype(np.int64)
        self.passed_over: dict[str, int] = meta["passed_over"]
        content = [meta["files"]["text.bin"], meta["files"].get("labels.jsonl")]
        digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode())
        digest.update(np.ascontiguousarray(table[:, 0]).data)
        self.checksum = digest.hexdigest()

    @property
    def n_bytes(self) -> int:
        return int(self.sizes.sum())

    def __len__(self) -> int:
        return len(self.sizes)

    @overload
    def __getitem__(self, i: int) -> Document: ...
    @overload
    def __getitem__(self, i: slice) -> list[Document]: ...
    def __getitem__(self, i: int | slice) -> Document | list[Document]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        name, number = self.names[self.shelves[i]], self.numbers[i]
        name = f"{name}:{number}" if number else name
        return Document(name, self.path, int(self.sizes[i]), self._mtime_ns, int(self.begins[i]), self._of)


def store_documents(
    shelves: Sequence[Shelf], *, labelled: bool = False, progress: Progress | None = None
) -> StoredDocuments:
    """The texts of some shelves, one after the other; unfolded now if no good store of them is in the cache.

    ``progress(done_bytes, total_bytes)`` counts the bytes of the files, and is not called if nothing has to be done.

    Cost:    a pass over the files; memory for one text, and 32 bytes for each.
    Errors:  DataError if a file cannot be read, for a text that is none, and if there is nothing but empty ones; if the
             cache cannot be written.
    """
    content = [FORMAT, labelled, [shelf.identity for shelf in shelves]]
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]
    names = [shelf.name for shelf in shelves]
    return made_once(
        cache_folder() / "texts" / key,
        load=lambda folder: _load(folder, names),
        build=lambda folder: _build(folder, shelves, labelled, progress),
        noun="cache of texts",
    )


def _load(folder: Path, names: Sequence[str]) -> StoredDocuments | None:
    """None if it is not there, or not whole. The texts are not read: their size has to be right."""
    try:
        meta = json.loads((folder / "meta.json").read_text("utf-8"))
        files = meta["files"]
        table = np.array(map_summed(folder / "records.bin", files["records.bin"], np.dtype("<u8"))).reshape(-1, 4)
        labels: list[Any] = []
        if "labels.jsonl" in files:
            data = (folder / "labels.jsonl").read_bytes()
            if hashlib.blake2b(data, digest_size=32).hexdigest() != files["labels.jsonl"]["blake2b"]:
                return None
            labels = [json.loads(line) for line in data.splitlines()]
        n_bytes = (folder / "text.bin").stat().st_size
        whole = meta["format"] == FORMAT and n_bytes == files["text.bin"]["bytes"] == int(table[:, 0].sum())
        return StoredDocuments(folder / "text.bin", table, names, labels, meta) if whole else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _build(folder: Path, shelves: Sequence[Shelf], labelled: bool, progress: Progress | None) -> None:
    table, passed_over = array("Q"), Counter[str]()
    total, done = sum(shelf.n_bytes for shelf in shelves), 0
    with open(folder / "text.bin", "wb") as texts, open(folder / "labels.jsonl", "wb") as labels:
        text_file, label_file = SummedWriter(texts), SummedWriter(labels)
        for i, shelf in enumerate(shelves):

            def told(n_bytes: int, before: int = done) -> None:
                if progress is not None:
                    progress(min(before + n_bytes, total), total)

            for entry in shelf.entries(told):
                if entry.text is None or entry.text == "":
                    passed_over["null" if entry.text is None else "empty"] += 1
                    continue
                digest, before = hashlib.blake2b(digest_size=HASH_BYTES), text_file.n_bytes
                for piece in _pieces(entry, shelf):
                    digest.update(piece)
                    text_file.write(piece)
                n_bytes = text_file.n_bytes - before
                if not n_bytes:
                    passed_over["empty"] += 1
                    continue
                table.extend((n_bytes, int.from_bytes(digest.digest(), "big"), i, entry.number))
                if labelled:
                    label_file.write(json.dumps(entry.label).encode() + b"\n")
            done += shelf.n_bytes
            told(0, done)
    if not table:
        why = ", ".join(f"{count:,} {reason}" for reason, count in passed_over.items())
        raise DataError(f"{_few_names(shelves)}: no text is left, skipped {why or 'nothing'}; expected some text")
    with open(folder / "records.bin", "wb") as file:
        record_file = SummedWriter(file)
        record_file.write(np.frombuffer(table, np.uint64).astype("<u8").data)
    files = {"text.bin": text_file.record(), "records.bin": record_file.record()}
    if labelled:
        files["labels.jsonl"] = label_file.record()
    else:
        (folder / "labels.jsonl").unlink()
    meta = {"format": FORMAT, "passed_over": dict(sorted(passed_over.items())), "files": files}
    (folder / "meta.json").write_text(json.dumps(meta, indent=1), "utf-8")


def _pieces(entry: Entry, shelf: Shelf) -> Iterable[bytes]:
    if not isinstance(entry.text, str):
        pieces: Iterable[bytes] = entry.text
        return pieces
    try:
        return (entry.text.encode("utf-8"),)
    except UnicodeEncodeError as error:
        raise DataError(
            f"{shelf.place(entry.number)}: its text has half of a surrogate pair at character {error.start}, which is "
            "not Unicode; repair or remove it"
        ) from error


def _few_names(shelves: Sequence[Shelf]) -> str:
    return shelves[0].place(0) if len(shelves) == 1 else f"{excerpt(shelves[0].name)} and {len(shelves) - 1} others"
