"""``open_long_range``: the rows of a task found or drawn, divided, and there to be read."""

from __future__ import annotations

import numpy as np

from statewise.data.long_range.config import SIDES, LongRangeDataConfig
from statewise.data.long_range.data import LongRangeData, Split
from statewise.data.long_range.split import TokenRowsSplit
from statewise.data.long_range.store import Progress, Stored
from statewise.data.sequences import LabelledSplit
from statewise.data.splits import SPLITS
from statewise.errors import DataError

DIGITS = tuple(map(str, range(10)))
CONNECTED = ("not connected", "connected")
N_PUBLISHED = {  # rows of train, validation and test
    "listops": (96_000, 2_000, 2_000),
    "text": (25_000, 25_000, 25_000),
    "retrieval": (147_086, 18_090, 17_437),
    "image": (45_000, 5_000, 10_000),
    "pathfinder": (160_000, 20_000, 20_000),
    "path-x": (160_000, 20_000, 20_000),
}


def open_long_range(config: LongRangeDataConfig, *, progress: Progress | None = None) -> LongRangeData:
    """Find or draw the rows, and divide them. They are made into arrays once, and read from a memory map afterwards.

    The rows of "validation" and "test" stand in one random order, that of numpy's generator of ``seed``: the first
    rows of a split, however few, are a fair sample of it. ``progress(done, total)`` is called while rows are made.

    Cost:    the first time a pass over the files; what is drawn at full size takes minutes.
    Errors:  DataError, one line: what was looked for, where, and where it comes from; files that are not what they
             should be.
    """
    data = _open(config, progress)
    if config.task in N_PUBLISHED:
        counts = tuple(len(data.splits[name]) if name in data.splits else 0 for name in SPLITS)
        if counts != N_PUBLISHED[config.task] and config.validation_fraction is None:
            note = f"the published rows are {', '.join(f'{n:,}' for n in N_PUBLISHED[config.task])}; these are not they"
            data = LongRangeData(**{**vars(data), "notes": (*data.notes, note)})
    return data


def _open(config: LongRangeDataConfig, progress: Progress | None) -> LongRangeData:
    task = config.task
    if task == "listops":
        from statewise.data.long_range.listops import find_listops

        return from_store(config, find_listops(config, progress), DIGITS)
    if task == "listops-gen":
        from statewise.data.long_range.listops_drawn import draw_listops

        return from_store(config, draw_listops(config, progress), DIGITS, notes=("drawn by the published grammar",))
    raise DataError(f"{task} {SIDES} {CONNECTED} {LabelledSplit}")


def from_store(
    config: LongRangeDataConfig, stored: Stored, classes: tuple[str, ...], *, notes: tuple[str, ...] = ()
) -> LongRangeData:
    """The splits of a store of tokens, as its ``parts`` say."""
    splits: dict[str, Split] = {}
    rows = np.arange(len(stored.lengths)) if stored.items.rows is None else stored.items.rows
    for part, name in enumerate(SPLITS):
        chosen = np.flatnonzero(stored.items.parts == part)
        if name != "train":
            chosen = np.random.default_rng([config.seed, 2]).permutation(chosen)
        if len(chosen):
            own = rows[chosen]
            splits[name] = TokenRowsSplit(
                name, stored.values, stored.begins[own], stored.lengths[own], stored.items.targets[chosen]
            )
    return LongRangeData(config, splits, classes, stored.items.vocabulary, stored.checksum, notes)
