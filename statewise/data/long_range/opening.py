"""``open_long_range``: the rows of a task found or drawn, divided, and there to be read."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from statewise.data.divided_rows import rows_by_split
from statewise.data.long_range.config import TASKS, LongRangeDataConfig
from statewise.data.long_range.data import LongRangeData, Split
from statewise.data.long_range.division import divide_documents
from statewise.data.long_range.documents import find_own_documents, find_reviews
from statewise.data.long_range.drawing import draw_pathfinder
from statewise.data.long_range.images import DEVIATION, MEAN, find_grey_cifar, find_pathfinder
from statewise.data.long_range.listops import find_listops
from statewise.data.long_range.listops_drawn import draw_listops
from statewise.data.long_range.retrieval import find_papers, pair_own_documents
from statewise.data.long_range.split import TokenRowsSplit
from statewise.data.long_range.store import Stored
from statewise.data.progress import Progress
from statewise.data.sequences import LabelledSplit, Rows, begins_of
from statewise.data.splits import SPLITS
from statewise.errors import DataError

DIGITS = tuple(map(str, range(10)))
OWN = ("your own documents",)
CONNECTED = ("not connected", "connected")
N_PUBLISHED = {  # rows of train, validation and test
    "listops": (96_000, 2_000, 2_000),
    "text": (25_000, 25_000, 25_000),
    "retrieval": (147_086, 18_090, 17_437),
    "image": (45_000, 5_000, 10_000),
    "pathfinder": (160_000, 20_000, 20_000),
    "path-x": (160_000, 20_000, 20_000),
}
VOCAB_SIZE = {"text": 135, "retrieval": 98}  # of the published characters


def open_long_range(config: LongRangeDataConfig, *, progress: Progress | None = None) -> LongRangeData:
    """Find or draw the rows, and divide them. They are made into arrays once, and read from a memory map afterwards.

    The rows of "validation" and "test" are in one random order, that of numpy's generator of ``seed``: the first
    rows of a split, however few, are a fair sample of it. ``progress(done, total)`` is called while rows are made.

    Cost:    the first time a pass over the files; what is drawn at full size takes minutes.
    Errors:  DataError, one line: what was looked for, where, and where it comes from; files that are not what they
             should be.
    """
    data = _open(config, progress)
    if "train" not in data.splits:
        raise DataError(f"{config.task}: no rows are left for training; give more, or hold out fewer")
    return replace(data, caveats=(*data.caveats, *_caveats(data))) if config.task in N_PUBLISHED else data


def _caveats(data: LongRangeData) -> list[str]:
    """What is not as published in rows from the official files."""
    config, published, found = data.config, N_PUBLISHED[data.config.task], []
    n_train, n_validation, n_test = (len(data.splits.get(name, ())) for name in SPLITS)
    if config.validation_fraction:
        found.append(f"{n_validation:,} training rows are held out for validation; published runs train on them")
        n_train, n_validation = n_train + n_validation, n_test
    if (n_train, n_validation, n_test) != published:
        found.append(f"these are not the published rows, which are {', '.join(f'{n:,}' for n in published)}")
    limit = TASKS[config.task].defaults.get("max_length")
    if config.resolved("max_length") != limit:
        found.append(f"rows are cut to {config.max_length:,} steps, the published ones to {limit:,}")
    vocab_size = VOCAB_SIZE.get(config.task, data.vocab_size)
    if data.vocab_size != vocab_size:
        found.append(f"the vocabulary has {data.vocab_size} tokens, the published one {vocab_size}")
    return found


def _open(config: LongRangeDataConfig, progress: Progress | None) -> LongRangeData:
    task = config.task
    if task == "listops":
        return _tokens(config, find_listops(config, progress), DIGITS)
    if task == "listops-gen":
        return _tokens(config, draw_listops(config, progress), DIGITS, ("new lists, drawn by the published grammar",))
    if task == "retrieval":
        return _tokens(config, find_papers(config, progress), ("no citation shared", "a citation shared"))
    if task == "retrieval-folder":
        return _tokens(config, pair_own_documents(config, progress), ("two classes", "one class"), OWN)
    if task in ("text", "text-folder"):
        return _text(config, progress)
    if task == "image":
        return _image(config, progress)
    if task in ("pathfinder", "path-x"):
        return _pixels(config, find_pathfinder(config, progress))
    return _pixels(config, draw_pathfinder(config, progress), ("drawn by Statewise; not the published images",))


def _text(config: LongRangeDataConfig, progress: Progress | None) -> LongRangeData:
    if config.task == "text-folder":
        stored, tree = find_own_documents(config, progress)
        parts = divide_documents(config, tree.labels, tree.parts)
        data = _tokens(config, stored._replace(items=stored.items._replace(parts=parts)), tree.classes, OWN)
        return replace(data, notes=tuple(_classes_left_out(data)))
    stored, tree = find_reviews(config, progress)
    if config.resolved("validation_fraction"):
        parts = divide_documents(config, tree.labels, tree.parts)
        return _tokens(config, stored._replace(items=stored.items._replace(parts=parts)), tree.classes)
    test = np.flatnonzero(tree.parts == 2)
    items = stored.items._replace(
        rows=np.concatenate([np.arange(len(tree.parts)), test]),
        targets=np.concatenate([tree.labels, tree.labels[test]]),
        parts=np.concatenate([tree.parts, np.ones(len(test), np.int64)]),
    )
    caveats = ("validation is the test split, as published; data.validation_fraction=0.1 holds out training rows",)
    return _tokens(config, stored._replace(items=items), tree.classes, caveats)


def _classes_left_out(data: LongRangeData) -> Iterator[str]:
    """Notes on rare classes, from which no row can be held out."""
    for name, split in data.splits.items():
        absent = np.setdiff1d(np.arange(len(data.classes)), split.targets)
        if len(absent):
            example = data.classes[absent[0]]
            yield f"{name} has no documents of {len(absent)} of the {len(data.classes)} classes, as of {example!r}"


def _image(config: LongRangeDataConfig, progress: Progress | None) -> LongRangeData:
    found, parts = find_grey_cifar(config, progress)
    assert found.test is not None
    test = np.full(len(found.test.lengths), 2)
    splits: dict[str, Split] = {}
    for own, rows in ((parts, found.train), (test, found.test)):
        splits |= _pixel_splits(config, rows, own, 1 / DEVIATION, -MEAN / DEVIATION)
    digest = hashlib.sha256()
    for rows in (found.train, found.test):
        digest.update(np.ascontiguousarray(rows.values).data)
    form, *caveats = found.notes  # how the pixels stand; then what is not as published
    return LongRangeData(config, splits, found.classes, (), digest.hexdigest(), (form,), tuple(caveats))


def _pixels(config: LongRangeDataConfig, stored: Stored, caveats: tuple[str, ...] = ()) -> LongRangeData:
    rows = Rows(stored.values[:, None], stored.lengths, stored.items.targets)
    splits = _pixel_splits(config, rows, stored.items.parts, 1 / 255, 0.0)
    return LongRangeData(config, splits, CONNECTED, (), stored.checksum, caveats=caveats)


def _pixel_splits(
    config: LongRangeDataConfig, rows: Rows, parts: np.ndarray, scale: float, shift: float
) -> dict[str, Split]:
    by, to = (np.full((1, 1), value, np.float32) for value in (scale, shift))
    begins = begins_of(rows.lengths)
    return {
        name: LabelledSplit(name, rows.values, begins[chosen], rows.lengths[chosen], rows.targets[chosen], by, to)
        for name, chosen in rows_by_split(parts, config.seed).items()
    }


def _tokens(
    config: LongRangeDataConfig, stored: Stored, classes: tuple[str, ...], caveats: tuple[str, ...] = ()
) -> LongRangeData:
    items = stored.items
    rows = np.arange(len(stored.lengths)) if items.rows is None else items.rows
    splits: dict[str, Split] = {
        name: TokenRowsSplit(
            name, stored.values, stored.begins[rows[chosen]], stored.lengths[rows[chosen]], items.targets[chosen]
        )
        for name, chosen in rows_by_split(items.parts, config.seed).items()
    }
    return LongRangeData(config, splits, classes, items.vocabulary, stored.checksum, caveats=caveats)
