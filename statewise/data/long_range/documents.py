"""Labelled documents in folders: the film reviews of aclImdb by characters, and documents of your own by bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from statewise.data.long_range.config import LongRangeDataConfig
from statewise.data.long_range.files import locate
from statewise.data.long_range.store import Items, Stored, Write, identity, stored_rows
from statewise.data.long_range.vocabulary import BYTES, CharacterEncoder, byte_tokens, characters
from statewise.data.progress import Progress, tell
from statewise.errors import DataError, reading

REVIEWS = ("neg", "pos")
MIN_COUNT = 15  # of a character in the training reviews, cut as they are; gives 135 tokens
TRAIN, TEST = 0, 2


class Tree(NamedTuple):
    """classes: names in order.  paths: the documents, and for each of them labels: its class, parts: 0 for training, 2
    for the test, which there is none of where the folder is not divided.
    """

    classes: tuple[str, ...]
    paths: list[Path]
    labels: np.ndarray
    parts: np.ndarray


def read_tree(folder: Path, classes: tuple[str, ...] | None = None) -> Tree:
    """``train/<class>/*.txt`` and ``test/<class>/*.txt``, or ``<class>/*.txt``, by name.

    classes: which to read; None: every folder that holds such files.

    Errors:  DataError if there are fewer than two classes, or the test has another one.
    """
    parts = {TRAIN: folder / "train", TEST: folder / "test"}
    has_test = all(path.is_dir() for path in parts.values())
    if not has_test:
        parts = {TRAIN: folder}
    found: list[tuple[Path, str, int]] = []
    for part, place in parts.items():
        for own in sorted(path for path in place.iterdir() if path.is_dir()):
            if classes is None or own.name in classes:
                found += [(path, own.name, part) for path in sorted(own.glob("*.txt"))]
    names = classes or tuple(sorted({name for _, name, part in found if part == TRAIN}))
    if len(names) < 2:
        raise DataError(
            f"{folder} has {len(names)} classes of documents; expected two folders or more with *.txt files in them, "
            "or train/ and test/ with such folders"
        )
    index = {name: i for i, name in enumerate(names)}
    if strange := sorted({name for _, name, _ in found} - index.keys()):
        raise DataError(f"{folder / 'test'} has the class {strange[0]!r}, which has no training documents")
    labels = np.array([index[name] for _, name, _ in found], np.int64)
    return Tree(names, [path for path, _, _ in found], labels, np.array([part for _, _, part in found], np.int64))


def find_reviews(config: LongRangeDataConfig, progress: Progress | None) -> tuple[Stored, Tree]:
    """The reviews as characters, the first ``max_length`` - 1 of each and an end token. The vocabulary is that of the
    training reviews.

    Source:  Maas et al. 2011, "Learning word vectors for sentiment analysis".
    Errors:  DataError if a folder is missing, or has no reviews, or a file is not UTF-8.
    """
    places = [f"{part}/{name}" for part in ("train", "test") for name in REVIEWS]
    folder = locate(config, lambda folder: all((folder / place).is_dir() for place in places))
    for place in places:
        if next((folder / place).glob("*.txt"), None) is None:
            raise DataError(f"{folder / place} has no *.txt files; expected the reviews of aclImdb")
    tree = read_tree(folder, REVIEWS)
    limit = config.resolved("max_length") - 1

    def make(write: Write) -> Items:
        texts: list[str] = []
        for path in tree.paths:
            try:
                texts.append(_read(path).decode("utf-8")[:limit])
            except UnicodeDecodeError as error:
                raise DataError(f"{path} is not UTF-8 at byte {error.start}; convert it to UTF-8") from error
            tell(progress, len(texts), len(tree.paths))
        counts = count_characters((text, 1) for text, part in zip(texts, tree.parts) if part == TRAIN)
        vocabulary = characters(counts, MIN_COUNT)
        encode = CharacterEncoder(vocabulary)
        for text in texts:
            write(tokens := encode(text), np.array([len(tokens)]))
        return Items(tree.labels, tree.parts, vocabulary=vocabulary)

    return stored_rows(config, [identity(tree.paths), limit], make, dtype=np.uint16), tree


def find_own_documents(config: LongRangeDataConfig, progress: Progress | None) -> tuple[Stored, Tree]:
    """Documents of your own as bytes, the first ``max_length`` - 1 of each and an end token; labels are the folders.

    Errors:  DataError if there are none, or of one class only, or if one is empty.
    """
    folder = locate(config, Path.is_dir)
    tree = read_tree(folder)
    empty = [path for path in tree.paths if not _size(path)]
    if empty:
        raise DataError(
            f"{len(empty):,} of the {len(tree.paths):,} documents in {folder} are empty, first {empty[0]}; fill them, "
            "or take them away"
        )
    limit = config.resolved("max_length") - 1

    def make(write: Write) -> Items:
        for done, path in enumerate(tree.paths, 1):
            write(tokens := byte_tokens(_read(path, limit)), np.array([len(tokens)]))
            tell(progress, done, len(tree.paths))
        return Items(tree.labels, tree.parts, vocabulary=BYTES)

    return stored_rows(config, [identity(tree.paths), limit], make, dtype=np.uint16), tree


def count_characters(texts: Iterable[tuple[str, int]]) -> Counter[str]:
    """How often each character is in the texts, each of which counts so many times."""
    total: Counter[str] = Counter()
    for text, times in texts:
        if times == 1:
            total.update(text)
        else:
            for character, count in Counter(text).items():
                total[character] += count * times
    return total


def _size(path: Path) -> int:
    """In bytes."""
    with reading(path):
        return path.stat().st_size


def _read(path: Path, limit: int = -1) -> bytes:
    with reading(path), open(path, "rb") as file:
        return file.read(limit)
