"""Which text is for training, which for validation, which for the test.

With 20 documents or more, a document's split depends only on its name, and a record's on its text. Documents may come
and go, and all others stay where they are. If the hash leaves a split empty that you asked for, the document whose hash
is nearest to that split's interval goes there. With fewer than 20, the text as a whole is cut in three, in order, at
line ends.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator, Sequence
from typing import NamedTuple, overload

import numpy as np

from statewise.data.sources import Document
from statewise.errors import ConfigError, DataError, reading

SPLITS = ("train", "validation", "test")
ALL = "all"  # of labelled rows: those of all splits together
MIN_DOCUMENTS = 20  # fewer are too few to be divided whole
SEARCH_BYTES = 1 << 20  # how far to look for a line end


class Part(NamedTuple):
    """The bytes [begin, end) of a document: nearly always all of it."""

    document: Document
    begin: int
    end: int

    @property
    def n_bytes(self) -> int:
        return self.end - self.begin


class WholeParts(Sequence[Part]):
    """All of some documents, by their places in a sequence of documents, which may be too long for a list of parts."""

    def __init__(self, documents: Sequence[Document], chosen: np.ndarray) -> None:
        self.documents, self.chosen = documents, chosen

    def __len__(self) -> int:
        return len(self.chosen)

    @overload
    def __getitem__(self, i: int) -> Part: ...
    @overload
    def __getitem__(self, i: slice) -> WholeParts: ...
    def __getitem__(self, i: int | slice) -> Part | WholeParts:
        if isinstance(i, slice):
            return WholeParts(self.documents, self.chosen[i])
        document = self.documents[int(self.chosen[i])]
        return Part(document, 0, document.size)

    def __iter__(self) -> Iterator[Part]:
        return (self[i] for i in range(len(self)))


class Division(NamedTuple):
    """The parts of each split, and in words how they were divided."""

    parts: dict[str, Sequence[Part]]
    how: str

    @property
    def together(self) -> Sequence[Part]:
        """Those of all splits, one split after the other."""
        parts = [self.parts[name] for name in SPLITS]
        whole = [own for own in parts if isinstance(own, WholeParts)]
        if len(whole) == len(parts):
            return WholeParts(whole[0].documents, np.concatenate([own.chosen for own in whole]))
        return [part for own in parts for part in own]


def divide(documents: Sequence[Document], validation_fraction: float, test_fraction: float) -> Division:
    """Divide the documents in train, validation and test. A split with fraction 0 is empty, and no other is.

    A document's hash h says where it goes: to test for h < test_fraction, to validation for h < test_fraction +
    validation_fraction, else to train. It is that of its name, or where ``documents`` have ``hashes`` one of these. A
    split that this leaves empty takes the document nearest to its interval, from a split that has more than one; test
    chooses first, then validation, then train.

    Errors:  DataError if there are fewer than 20 documents, and too little text in them to be cut.
    """
    if len(documents) < MIN_DOCUMENTS:
        return _cut_in_order(documents, validation_fraction, test_fraction)
    known: np.ndarray | None = getattr(documents, "hashes", None)
    hashes = np.array([split_hash(document.name) for document in documents]) if known is None else known
    held_out = test_fraction + validation_fraction
    intervals = {"test": (0.0, test_fraction), "validation": (test_fraction, held_out), "train": (held_out, 1.0)}
    numbers = {name: i for i, name in enumerate(intervals)}
    chosen = np.digitize(hashes, [test_fraction, held_out])
    filled = []
    for name, (low, high) in intervals.items():
        if low < high and not (chosen == numbers[name]).any():
            chosen[_nearest(chosen, hashes, low, high)] = numbers[name]
            filled.append(name)
    how = f"by document: a fixed hash of each document's {'name' if known is None else 'text'}"
    if filled:
        how += f"; it left {' and '.join(filled)} empty, which took the nearest document"
    return Division({name: WholeParts(documents, np.flatnonzero(chosen == numbers[name])) for name in SPLITS}, how)


def _nearest(chosen: np.ndarray, hashes: np.ndarray, low: float, high: float) -> int:
    """The nearest document whose split has others left; if two are as near, the first."""
    distance = np.maximum(np.maximum(low - hashes, hashes - high), 0.0)
    distance[np.bincount(chosen)[chosen] < 2] = np.inf
    return int(distance.argmin())


def split_hash(name: str) -> float:
    """BLAKE2b of the name, as a number in [0, 1). The name is normalised first: macOS decomposes its letters."""
    encoded = unicodedata.normalize("NFC", name).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(encoded, digest_size=8).digest(), "big") / 2.0**64


def _cut_in_order(documents: Sequence[Document], validation_fraction: float, test_fraction: float) -> Division:
    total = sum(document.size for document in documents)
    begin_of_validation = int(total * (1 - validation_fraction - test_fraction))
    begin_of_test = int(total * (1 - test_fraction))
    places: set[str] = set()
    cuts = [0, total, total, total]
    if validation_fraction > 0:
        limit = begin_of_test if test_fraction > 0 else total
        cuts[1] = _cut(documents, begin_of_validation, limit, places)
    if test_fraction > 0:
        at_least = cuts[1] + 1 if validation_fraction > 0 else 1
        cuts[2] = _cut(documents, max(begin_of_test, at_least), total, places)
        if validation_fraction == 0:
            cuts[1] = cuts[2]
    parts: dict[str, Sequence[Part]] = {name: _slice(documents, cuts[i], cuts[i + 1]) for i, name in enumerate(SPLITS)}
    n = len(documents)
    if not places:
        how = f"not at all: all {n} documents are for training"
    else:
        text = "the text" if n == 1 else f"the {n} documents, one after the other,"
        how = f"{text} cut in order at {' and '.join(sorted(places))} (fewer than {MIN_DOCUMENTS} documents)"
    return Division(parts, how)


def _cut(documents: Sequence[Document], target: int, limit: int, places: set[str]) -> int:
    """The first good place to cut in [target, limit), counted over all documents one after the other.

    Good is after a line end or between documents; where none is near, after a space; else between two characters.
    """
    target = max(target, 1)
    offset = 0
    for document in documents:
        if target < offset + document.size:
            break
        offset += document.size
    end = offset + document.size
    if target >= limit:
        raise _too_small(documents)
    if target == offset:
        places.add("line ends")
        return target
    text = _read(document, target - 1 - offset, min(limit - 1, end, target + SEARCH_BYTES) - offset)
    newline = text.find(b"\n")
    if newline >= 0:
        places.add("line ends")
        return target + newline
    if end < limit and end <= target + SEARCH_BYTES:
        places.add("line ends")
        return end
    space = text.find(b" ")
    if space >= 0:
        places.add("a space")
        return target + space
    for i, byte in enumerate(text[1:]):
        if not 0x80 <= byte < 0xC0:
            places.add("a character")
            return target + i
    raise _too_small(documents)


def _read(document: Document, begin: int, end: int) -> bytes:
    with reading(document.path), open(document.path, "rb") as file:
        file.seek(document.begin + begin, os.SEEK_SET)
        return file.read(end - begin)


def _too_small(documents: Sequence[Document]) -> DataError:
    total = sum(document.size for document in documents)
    return DataError(
        f"a text of {total:,} bytes is too short to be cut in train, validation and test; "
        "give more text or larger validation_fraction and test_fraction"
    )


def _slice(documents: Sequence[Document], begin: int, end: int) -> tuple[Part, ...]:
    parts = []
    offset = 0
    for document in documents:
        low, high = max(begin - offset, 0), min(end - offset, document.size)
        if low < high:
            parts.append(Part(document, low, high))
        offset += document.size
    return tuple(parts)


def unknown_split(name: str, *known: str) -> ConfigError:
    """The error of a split that there is not; ``known``: those there are, or else the three."""
    return ConfigError(f"the split {name!r} is unknown; use {', '.join(known or SPLITS)}")
