"""Batches of labelled sequences: a pure function of (seed, step), so that the place in the data is one number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from statewise.data.whole_batches import RowSplit, WholeBatches

POOL_BATCHES = 32  # how many batches' rows are sorted by length together


class LabelledBatch(NamedTuple):
    """inputs: (batch, length, d_input) float32, or (batch, length) int64 tokens, right-padded.
    targets: (batch,) int64 classes or (batch, d_output) float32; or a step at a time (batch, length) and
        (batch, length, d_output). A class of -100 does not count.
    lengths: (batch,) int64; None where every row is as long as the batch.

    For pairs, inputs and lengths have 2 batch rows: those of pair i are 2i and 2i + 1.
    """

    inputs: Tensor
    targets: Tensor
    lengths: Tensor | None


class Split(RowSplit, Protocol):
    """What batches are made from: ``LabelledSplit``, ``MemorySplit``, ``TokenRowsSplit``."""

    @property
    def lengths(self) -> np.ndarray:
        """(n,) int64, of the rows; or (n, 2) where each is a pair."""

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """inputs (right-padded) and targets of these rows, as :class:`LabelledBatch` has them."""


class LabelledBatches(WholeBatches[Split, list[np.ndarray], LabelledBatch]):
    """Batches of whole rows. Where the lengths differ, the shuffled rows are sorted by length within pools of 32
    batches before they are cut in batches, whose order is then shuffled: rows of like length share a batch, and little
    of it is padding. With ``short_first`` the rows of an epoch come from the shortest to the longest.

    Cost:    O(rows) for a new epoch, then the rows of the batch.
    """

    def __init__(
        self, split: Split, batch_size: int, seed: int, drop_last: bool = True, short_first: bool = False
    ) -> None:
        super().__init__(split, batch_size, seed, drop_last)
        self.short_first = short_first

    def _read(self, epoch: list[np.ndarray], within: int) -> LabelledBatch:
        return read_batch(self.split, epoch[within])

    def _epoch(self, generator: np.random.Generator) -> list[np.ndarray]:
        shuffled = generator.permutation(len(self.split))
        if self.short_first:
            ordered = shuffled[np.argsort(_longest(self.split.lengths[shuffled]), kind="stable")]
            begin = len(ordered) % self.batch_size if self.drop_last else 0  # what is left out are short ones
            return [ordered[low : low + self.batch_size] for low in range(begin, len(ordered), self.batch_size)]
        n_full = len(shuffled) // self.batch_size * self.batch_size
        rows, rest = shuffled[:n_full], [] if self.drop_last or n_full == len(shuffled) else [shuffled[n_full:]]
        lengths = _longest(self.split.lengths[rows])
        if (lengths == lengths[:1]).all():
            full = rows.reshape(-1, self.batch_size)
        else:
            pool = POOL_BATCHES * self.batch_size
            keys = (lengths, np.arange(len(rows)) // pool)  # by pool, then by length
            full = generator.permutation(rows[np.lexsort(keys)].reshape(-1, self.batch_size))
        return [*full, *rest]


def batches_in_order(split: Split, batch_size: int, max_rows: int | None = None) -> Iterator[LabelledBatch]:
    """Every row once, or each of the first ``max_rows``: for evaluation. Sorted by length, so that little is padded."""
    rows = np.argsort(_longest(split.lengths[:max_rows]), kind="stable")
    for low in range(0, len(rows), batch_size):
        yield read_batch(split, rows[low : low + batch_size])


def read_batch(split: Split, rows: np.ndarray) -> LabelledBatch:
    """These rows of a split."""
    lengths = split.lengths[rows].ravel()
    ragged = (lengths != lengths.max()).any()
    inputs, targets = split.read(rows)
    return LabelledBatch(
        torch.from_numpy(inputs), torch.from_numpy(targets), torch.from_numpy(lengths) if ragged else None
    )


def _longest(lengths: np.ndarray) -> np.ndarray:
    """(n,): of a pair, the longer one's."""
    return lengths if lengths.ndim == 1 else lengths.max(1)
