"""Labelled texts for classification and regression: found, divided, tokenised, and ready to read.

``open_labelled_texts(LabelledTextDataConfig(source="reviews/"))`` is all that training and evaluation need to call.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from statewise.configuration.types import AtLeastTwo, Fraction, Name, Natural, OneOf
from statewise.data.base import DataConfig
from statewise.data.divided_rows import held_out, rows_by_split, together
from statewise.data.labelled_shelves import LabelledShelves, find_labelled
from statewise.data.learned_tokenizer import learn_tokenizer, learned_size
from statewise.data.long_range.split import TokenRowsSplit, rows_fingerprint
from statewise.data.long_range.vocabulary import BYTES, byte_tokens
from statewise.data.own.known import NOTHING, Known
from statewise.data.own.targets import TASKS, as_targets
from statewise.data.progress import Progress
from statewise.data.splits import ALL, SPLITS, WholeParts, unknown_split
from statewise.data.stored_documents import StoredDocuments, store_documents
from statewise.data.text_sources import absolute_source
from statewise.data.token_store import open_store
from statewise.data.tokenizers import NAMED, FileTokenizer, describe_tokenizer, load_tokenizer
from statewise.errors import ConfigError, DataError
from statewise.files.json_lines import as_column

HELD_OUT = 0.1  # of what is not divided, for validation and for the test


@dataclass(frozen=True, kw_only=True)
class LabelledTextDataConfig(DataConfig):
    """Which texts with which labels, in which tokens, how divided.

    source: a folder whose subfolders are classes, with files of text in them; "train", "validation" and "test" may
        be folders above the classes. A file, folder or glob of records: JSON lines, CSV, TSV or Parquet, each as it is
        or compressed; files named train, validation and test are such parts. "hf:owner/name" or
        "hf:owner/name:config", a data set of Hugging Face, or a folder that ``save_to_disk`` wrote.
    text_field, label_field: of records, where the text is, and where its label: "text", or "meta.text" for one field
        within another. None for a folder of classes.
    task: labels that are strings, whole numbers, true and false are classes, floating numbers are regressed.
        "regression" regresses whole numbers, too; "classification" takes floating numbers that are whole as classes.
    tokenizer: "bytes"; the path of a tokenizer.json; or "bpe:4096" for one of 4,096 tokens that is learned from the
        training texts. The checkpoint keeps it.
    max_length: a text's further tokens are not read.
    validation_fraction, test_fraction: the share that is held out, of each class alike; None: 0.1, where the source has
        no such part of its own.
    seed: of what is held out.
    """

    source: Name
    text_field: Name | None = None
    label_field: Name | None = None
    task: Annotated[str, OneOf(TASKS)] | None = None
    tokenizer: Name = "bytes"
    max_length: AtLeastTwo = 4096
    validation_fraction: Fraction | None = None
    test_fraction: Fraction | None = None
    seed: Natural = 0

    def __post_init__(self) -> None:
        learned_size(self.tokenizer)
        if self.label_field is not None and self.label_field == self.text_field:
            raise ConfigError(
                f"LabelledTextDataConfig has {self.text_field!r} as text_field and as label_field; give two different "
                "fields"
            )

    def with_absolute_paths(self) -> LabelledTextDataConfig:
        tokenizer = self.tokenizer
        if tokenizer not in NAMED and learned_size(tokenizer) is None:
            tokenizer = str(Path(tokenizer).absolute())
        return replace(self, source=absolute_source(self.source), tokenizer=tokenizer)


class ByteRowsSplit(TokenRowsSplit):
    """``values`` are the bytes of the texts; a row is the first ``lengths`` - 1 of one, and an end token."""

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        lengths = self.lengths[rows]
        inputs = np.zeros((len(rows), int(lengths.max())), np.int64)
        for row, begin, n in zip(inputs, self.begins[rows], lengths):
            row[:n] = byte_tokens(self.values[begin : begin + n - 1].tobytes())
        return inputs, self.targets[rows]


@dataclass(frozen=True)
class LabelledTextData:
    """Opened data. ``split`` gives "train", "validation" and "test", and "all" of their texts.

    classes: their names, in order; () for regression.  tokenizer: None where tokens are bytes.
    n_cut: texts that are longer than ``max_length``.
    """

    config: LabelledTextDataConfig
    splits: dict[str, TokenRowsSplit]
    classes: tuple[str, ...]
    tokenizer: FileTokenizer | None
    documents: StoredDocuments
    what: str
    n_cut: int

    d_input = None  # steps are tokens
    each_step = False  # a text has one target

    @property
    def vocab_size(self) -> int:
        return len(BYTES) if self.tokenizer is None else self.tokenizer.vocab_size

    @property
    def d_output(self) -> int:
        """Numbers to predict for a text; 0 where there are classes."""
        return 0 if self.classes else 1

    @property
    def max_length(self) -> int:
        """The length of the longest text of all splits."""
        return max(int(split.lengths.max()) for split in self.splits.values())

    def split(self, name: str) -> TokenRowsSplit:
        """One of "train", "validation", "test", or the texts of "all" of them, in one random order.

        Errors:  DataError if it has no rows; ConfigError for another name.
        """
        if name == ALL:
            return together(list(self.splits.values()), self.config.seed)
        if name not in SPLITS:
            raise unknown_split(name, *SPLITS, ALL)
        if name not in self.splits:
            raise DataError(f"there is no {name} split: data.{name}_fraction is 0; set it above 0")
        return self.splits[name]

    @cached_property
    def fingerprint(self) -> str:
        """Equal only for the same rows in the same splits: what a resumed run is held against."""
        tokens = "bytes" if self.tokenizer is None else self.tokenizer.fingerprint
        return rows_fingerprint([self.documents.checksum, tokens, self.classes], self.splits)

    def describe(self) -> str:
        """What was found, how it was divided, and how much of it there is: a few lines to print."""
        passed_over = ", ".join(f"{count:,} {reason} texts" for reason, count in self.documents.passed_over.items())
        what = f"{len(self.classes)} classes" if self.classes else "a number to predict"
        lines = [
            f"data       {self.config.source}: {self.what}, {what}{passed_over and f'; skipped {passed_over}'}",
            f"tokenizer  {'bytes' if self.tokenizer is None else describe_tokenizer(self.tokenizer)}",
        ]
        if self.n_cut:
            lines.append(f"cut        {self.n_cut:,} texts at their end, to {self.config.max_length:,} tokens")
        for name, split in self.splits.items():
            low, high = int(split.lengths.min()), int(split.lengths.max())
            line = f"{name:<10} {len(split):,} texts of {low:,} to {high:,} tokens"
            if self.classes:
                line += f"; the most frequent class is {np.bincount(split.targets).max() / len(split):.1%}"
            lines.append(line)
        return "\n".join(lines)


def open_labelled_texts(
    config: LabelledTextDataConfig, *, progress: Progress | None = None, known: Known = NOTHING
) -> LabelledTextData:
    """Find, divide and tokenise the texts; they are kept on disk for the next time, and read from a memory map.

    ``progress(done_bytes, total_bytes)`` is called while records are read, and again while texts are tokenised.
    ``known``: what a trained model says of its data; labels are of its classes, not all of which have to be there.

    Errors:  DataError, one line: nothing at the source, records without their two fields, a text that is none, a label
             that is missing or not like the others, classes that the training texts lack, splits that would be empty.
    """
    found = find_labelled(config.source, config.text_field, config.label_field, known)
    documents = store_documents(found.shelves, labelled=True, progress=progress)
    targets, classes = _targets(config, found, documents, known)
    parts = _divided(config, found, documents, targets)
    if not known.classes:
        _require_trained(config, documents, targets, parts, classes)
    rows = rows_by_split(parts, config.seed)
    if "train" not in rows:
        raise DataError(f"{config.source}: no texts are left for training; hold out fewer")
    if config.tokenizer == "bytes":
        kind: type[TokenRowsSplit] = ByteRowsSplit
        tokenizer = None
        values: np.ndarray = np.memmap(documents.path, np.uint8, mode="r")
        begins, whole = documents.begins, documents.sizes + 1
    else:
        kind, tokenizer = TokenRowsSplit, _tokenizer(config.tokenizer, documents, rows["train"])
        store = open_store(WholeParts(documents, np.arange(len(documents))), tokenizer, progress)
        values, begins, whole = store.tokens, store.offsets[:-1], np.diff(store.offsets)
    lengths = np.minimum(whole, config.max_length)
    splits = {
        name: kind(name, values, begins[chosen], lengths[chosen], targets[chosen]) for name, chosen in rows.items()
    }
    n_cut = int((whole > config.max_length).sum())
    return LabelledTextData(config, splits, classes, tokenizer, documents, found.what, n_cut)


def _targets(
    config: LabelledTextDataConfig, found: LabelledShelves, documents: StoredDocuments, known: Known
) -> tuple[np.ndarray, tuple[str, ...]]:
    def where(i: int) -> str:
        return found.shelves[documents.shelves[i]].place(int(documents.numbers[i]))

    if found.classes:
        if config.task == "regression":
            raise DataError(
                f"{config.source} has folders of classes, not numbers; leave out --set data.task=regression"
            )
        number = {name: i for i, name in enumerate(found.classes)}
        return np.array([number[label] for label in documents.labels]), found.classes
    task = known.task or config.task
    targets, classes = as_targets(as_column(list(documents.labels)), task, where, known.classes)
    if not known.classes and len(classes) > 100 and 2 * len(classes) > len(targets):
        raise DataError(
            f"{config.source}: the {len(targets):,} texts have {len(classes):,} different labels in "
            f"{config.label_field!r}; name the field that holds a class or a number"
        )
    return targets, classes


def _divided(
    config: LabelledTextDataConfig, found: LabelledShelves, documents: StoredDocuments, targets: np.ndarray
) -> np.ndarray:
    own = np.array(found.parts)[documents.shelves]
    fractions: dict[str, Any] = {}
    for part, name in ((1, "validation_fraction"), (2, "test_fraction")):
        given = getattr(config, name)
        if given and (own == part).any():
            raise DataError(f"data.{name}: {config.source} already holds such a split; leave it out")
        fractions[name] = HELD_OUT if given is None else given
    return held_out(targets, own, seed=config.seed, where=config.source, **fractions)


def _require_trained(
    config: LabelledTextDataConfig,
    documents: StoredDocuments,
    targets: np.ndarray,
    parts: np.ndarray,
    classes: Sequence[str],
) -> None:
    """Errors:  DataError for a class of which there is nothing to learn from."""
    trained = np.unique(targets[parts == 0]) if classes else ()
    if len(trained) < len(classes):
        missing = next(i for i in range(len(classes)) if i not in trained)
        of_it = np.flatnonzero(targets == missing)
        other = f", but {documents[int(of_it[0])].name} belongs to it" if len(of_it) else ""
        raise DataError(
            f"{config.source}: the class {classes[missing]!r} has no training texts{other}; give some, or leave the "
            "class out"
        )


def _tokenizer(spec: str, documents: StoredDocuments, train: np.ndarray) -> FileTokenizer:
    size = learned_size(spec)
    if size is not None:
        return learn_tokenizer(WholeParts(documents, np.sort(train)), size)
    tokenizer = load_tokenizer(spec)
    assert isinstance(tokenizer, FileTokenizer)
    return tokenizer
