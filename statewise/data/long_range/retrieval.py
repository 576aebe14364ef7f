"""Pairs of documents: papers of the ACL Anthology Network by characters, and documents of your own by bytes."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from statewise.data.long_range.config import LongRangeDataConfig
from statewise.data.long_range.division import divide_documents
from statewise.data.long_range.documents import count_characters, find_own_documents
from statewise.data.long_range.files import locate
from statewise.data.long_range.store import Items, Stored, Write, identity, stored_rows
from statewise.data.long_range.vocabulary import CharacterEncoder, characters
from statewise.data.progress import Progress
from statewise.data.splits import SPLITS
from statewise.errors import DataError, excerpt, reason

FILES = ("new_aan_pairs.train.tsv", "new_aan_pairs.eval.tsv", "new_aan_pairs.test.tsv")
N_COLUMNS = 5  # label, the names of the two papers, their texts
MAX_FIELD = 1 << 27  # of a line of such a file, in characters


def find_papers(config: LongRangeDataConfig, progress: Progress | None) -> Stored:
    """The pairs of the official files, and whether the two papers share a citation. Each text is its first
    ``max_length`` - 1 characters and an end token. The vocabulary is that of the training pairs. A text in many pairs
    is kept once.

    Source:  Radev et al. 2013, the ACL Anthology Network; Tay et al. 2021, arXiv:2011.04006, sec. 2.2.3.
    Cost:    memory for every text that there is, once, while they are made.
    Errors:  DataError if a file is missing, or a line is not this.
    """
    folder = locate(config, lambda place: all((place / name).is_file() for name in FILES))
    paths = [folder / name for name in FILES]
    limit = config.resolved("max_length") - 1
    files = identity(paths)

    def make(write: Write) -> Items:
        documents: dict[str, int] = {}
        pairs: list[tuple[int, int]] = []
        targets: list[int] = []
        parts: list[int] = []
        for part, path in enumerate(paths):
            for done, total, label, first, second in _lines(path):
                pair = [documents.setdefault(text[:limit], len(documents)) for text in (first, second)]
                pairs.append((pair[0], pair[1]))
                targets.append(label)
                parts.append(part)
                if progress is not None and len(pairs) % 1000 == 0:
                    progress(done, total)
        rows = np.array(pairs)
        times = np.bincount(rows[np.array(parts) == 0].ravel(), minlength=len(documents))
        vocabulary = characters(count_characters((text, int(n)) for text, n in zip(documents, times) if n))
        encode = CharacterEncoder(vocabulary)
        for text in documents:
            write(tokens := encode(text), np.array([len(tokens)]))
        return Items(np.array(targets), np.array(parts), rows, vocabulary)

    return stored_rows(config, [files, limit], make, dtype=np.uint16)


def pair_own_documents(config: LongRangeDataConfig, progress: Progress | None) -> Stored:
    """Pairs of documents of your own, half of them of one class; documents of two splits are never paired.

    Errors:  DataError if there are too few documents for the pairs asked for, or for any.
    """
    stored, tree = find_own_documents(config, progress)
    parts = divide_documents(config, tree.labels, tree.parts)
    rows, targets, own = [], [], []
    for part, name in enumerate(SPLITS):
        documents = np.flatnonzero(parts == part)
        asked = config.resolved(f"n_{name}")
        pairs, same = draw_pairs(
            np.random.default_rng([config.seed, 3, part]), tree.labels[documents], asked, f"data.n_{name}"
        )
        if asked is None and len(documents) and not len(pairs):
            remedy = "" if name == "train" else f" (data.{name}_fraction), or set data.n_{name}=0"
            raise DataError(
                f"the {len(documents):,} {name} documents of {config.folder} make no pairs, half of which are of one "
                f"class and half of two; give two of a class at least{remedy}"
            )
        rows.append(documents[pairs])
        targets.append(same)
        own.append(np.full(len(pairs), part))
    items = Items(np.concatenate(targets), np.concatenate(own), np.concatenate(rows), stored.items.vocabulary)
    return stored._replace(items=items)


def draw_pairs(
    generator: np.random.Generator, labels: np.ndarray, n: int | None, name: str = "n"
) -> tuple[np.ndarray, np.ndarray]:
    """``n`` pairs of different documents, no pair twice, (n, 2), and whether both are of one class, (n,): half are.
    Every pair of a kind is as likely as another. n None: as many as there are documents, or as can be.

    Errors:  DataError if there are not enough.
    """
    order = np.argsort(labels, kind="stable")  # by class
    _, first, size = np.unique(labels[order], return_index=True, return_counts=True)
    of = np.repeat(np.arange(len(size)), size)  # the class of each place in the order
    n_documents = len(labels)
    n_same, n_other = int((size * (size - 1)).sum()) // 2, (n_documents**2 - int((size**2).sum())) // 2
    if n is None:
        n = min(n_documents, 2 * n_same, 2 * n_other)
    wanted = {1: n // 2, 0: n - n // 2}
    for same, there, what in ((1, n_same, "of one class"), (0, n_other, "of two classes")):
        if there < wanted[same]:
            raise DataError(
                f"{name}={n:,} needs {wanted[same]:,} pairs {what}, but {n_documents:,} documents make {there:,}; ask "
                "for fewer, or give more documents"
            )
    found: list[np.ndarray] = []
    for same, count in wanted.items():
        partners = size[of] - 1 if same else n_documents - size[of]  # how many each place has
        keys: dict[int, None] = {}
        while len(keys) < count:
            one = generator.choice(n_documents, count, p=partners / partners.sum())
            step = generator.integers(partners[one])
            begin, width = first[of[one]], size[of[one]]
            if same:
                other = begin + (one - begin + 1 + step) % width
            else:
                other = (begin + width + step) % n_documents
            keys.update(dict.fromkeys((np.minimum(one, other) * n_documents + np.maximum(one, other)).tolist()))
        key = np.array(list(keys)[:count], np.int64)
        pair = np.stack(np.divmod(key, n_documents), 1) if count else np.zeros((0, 2), np.int64)
        found.append(order[generator.permuted(pair, axis=1)])
    mixed = generator.permutation(n)
    targets = np.concatenate([np.ones(wanted[1], np.int64), np.zeros(wanted[0], np.int64)])
    return np.concatenate(found)[mixed], targets[mixed]


def _lines(path: Path) -> Iterator[tuple[int, int, int, str, str]]:
    """How far they are in the file, its size, the label, and the two texts."""
    try:
        total = path.stat().st_size
        done = 0
        with open(path, encoding="utf-8-sig", newline="") as file, _long_fields():
            lines = csv.reader(file, "excel-tab")
            for fields in lines:
                if len(fields) != N_COLUMNS or fields[0] not in ("0", "1", "0.0", "1.0"):
                    raise DataError(
                        f"{path}, line {lines.line_num} has {len(fields)} fields, the first "
                        f"{excerpt(fields[:1])}; expected a label 0.0 or 1.0, two names and two "
                        "texts, with tabs between"
                    )
                done += sum(map(len, fields))
                yield min(done, total), total, int(float(fields[0])), fields[3], fields[4]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {reason(error)}") from error
    if not done:
        raise DataError(f"{path} is empty; expected a pair of papers on each line")


@contextmanager
def _long_fields() -> Iterator[None]:
    """Python's csv refuses fields of more than 131,072 characters; its limit is one for the whole process."""
    before = csv.field_size_limit(MAX_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)
