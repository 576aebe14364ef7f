"""Long rows of short ones: rows of one class, end to end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from statewise.configuration import Config
from statewise.configuration.types import Count, Natural
from statewise.data.memory_tasks import growing
from statewise.data.sequences import Rows, begins_of
from statewise.data.splits import SPLITS
from statewise.errors import ConfigError, DataError
from statewise.memory import require_free


@dataclass(frozen=True, kw_only=True)
class JoinConfig(Config):
    """How long rows are made of short ones.

    length:   steps of a row; the last of the short ones is cut there
    shortest: the rows of the training split grow from this length to ``length``, many short ones and few long ones (see
              ``train.short_first``); None: all are as long
    n_train, n_validation, n_test: how many rows of each split, all classes alike
    """

    length: Count = 262_144
    shortest: Count | None = None
    n_train: Count = 1024
    n_validation: Natural = 24
    n_test: Natural = 48

    def __post_init__(self) -> None:
        if self.shortest is not None and self.shortest > self.length:
            raise ConfigError(
                f"JoinConfig.shortest={self.shortest} is more than length={self.length}; use at most that"
            )

    def lengths(self, split: str) -> np.ndarray:
        """(n,) of the rows of a split."""
        n = int(getattr(self, f"n_{split}"))
        if split == "train" and self.shortest is not None:
            return growing(n, self.shortest, self.length)
        return np.full(n, self.length, np.int64)


def join_rows(rows: Rows, chosen: np.ndarray, config: JoinConfig, split: str, seed: int) -> Rows:
    """Rows of a split, each of the ``chosen`` short ones of one class in a random order, by numpy's generator of
    ``seed`` and the split; none comes again before each of its class came once. Row i is of the class i modulo their
    number.

    Cost:    all of them, in the dtype of the short ones.
    Errors:  DataError for rows with numbers to predict; InputError if there is no room for the rows.
    """
    if rows.targets.ndim > 1:
        raise DataError("data.join puts rows of one class together, but these have numbers to predict; leave it out")
    lengths = config.lengths(split)
    step_bytes = rows.values.itemsize * rows.values.shape[1]
    require_free(int(lengths.sum()) * step_bytes, f"data.join with {len(lengths):,} rows for {split}")
    generator = np.random.default_rng([seed, SPLITS.index(split), 1])
    begins, classes = begins_of(rows.lengths), np.unique(rows.targets[chosen])
    values = np.empty((int(lengths.sum()), rows.values.shape[1]), rows.values.dtype)
    at, targets = 0, classes[np.arange(len(lengths)) % len(classes)]
    waiting: dict[int, list[int]] = {int(name): [] for name in classes}
    for length, target in zip(lengths.tolist(), targets.tolist()):
        end = at + length
        while at < end:
            if not waiting[target]:
                waiting[target] = generator.permutation(chosen[rows.targets[chosen] == target]).tolist()
            row = waiting[target].pop()
            n = min(int(rows.lengths[row]), end - at)
            values[at : at + n] = rows.values[begins[row] : begins[row] + n]
            at += n
    return Rows(values, lengths, targets)
