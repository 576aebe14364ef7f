"""Batches of a synthetic language: a pure function of (seed, step)."""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.synthetic_languages.data import LanguageSplit
from statewise.data.synthetic_languages.language import Rows
from statewise.data.whole_batches import WholeBatches

HELD_BYTES = 1 << 27  # a split of no more than that is drawn once and kept


class RecallBatch(NamedTuple):
    """All of one shape from step to step, but for the last batch of an epoch where that is not dropped.

    inputs:     (batch, length) int64 tokens
    targets:    (batch, length) int64, -100 where the loss does not count; or, with ``positions``, (batch, n_answers)
    positions:  (batch, n_answers) int64: the only steps at which the loss counts; None: the targets say
    """

    inputs: Tensor
    targets: Tensor
    positions: Tensor | None = None


class RecallBatches(WholeBatches[LanguageSplit, Any, RecallBatch]):
    """Cost:    A split of up to 128 MB (in the smallest integers that hold it) is drawn once, and a batch is then a few
    microseconds. Larger ones, and so fresh rows for each step, are drawn batch by batch.
    """

    def __init__(self, split: LanguageSplit, batch_size: int, seed: int, drop_last: bool = True) -> None:
        super().__init__(split, batch_size, seed, drop_last)
        self._only_answers: bool = split.language.config.answer_only

    @property
    def held(self) -> bool:
        """Whether the rows are drawn once and kept."""
        length, n_answers = self.split.shape
        width = length + 2 * n_answers if self._only_answers else 2 * length
        return len(self.split) * width * self._dtype.itemsize <= HELD_BYTES

    def _epoch(self, generator: np.random.Generator) -> Any:
        """The rows of each batch; where they are drawn batch by batch, how rows follow from their places.

        Rows drawn independently need no better shuffling than i times a factor that has none in common with their
        number, and a list of as many as may be asked for would be large.
        """
        if self._table is not None:
            return [torch.from_numpy(rows) for rows in self._shuffled(generator)]
        n_rows = len(self.split)
        shift, factor = (int(x) for x in generator.integers(n_rows, size=2))
        while gcd(factor, n_rows) != 1:
            factor = (factor + 1) % n_rows
        return shift, factor

    def _read(self, epoch: Any, within: int) -> RecallBatch:
        if self._table is not None:
            return RecallBatch(*(held.index_select(0, epoch[within]).long() for held in self._table))
        (shift, factor), n_rows, low = epoch, len(self.split), within * self.batch_size
        rows = (np.arange(low, min(low + self.batch_size, n_rows)) * factor + shift) % n_rows
        return RecallBatch(*map(torch.from_numpy, self._arrays(self.split.rows(rows))))

    @property
    def _dtype(self) -> torch.dtype:
        largest = max(self.split.language.vocab_size, self.split.shape[0])
        return next(dtype for dtype in (torch.int8, torch.int16, torch.int32) if largest <= torch.iinfo(dtype).max)

    @cached_property
    def _table(self) -> tuple[Tensor, ...] | None:
        """All rows, in the smallest integers; None where they are too many."""
        if not self.held:
            return None
        parts = [
            [torch.from_numpy(array).to(self._dtype) for array in self._arrays(rows)] for rows in self.split.in_parts()
        ]
        return tuple(torch.cat(arrays) for arrays in zip(*parts))

    def _arrays(self, rows: Rows) -> tuple[np.ndarray, ...]:
        """What a batch holds."""
        if self._only_answers:
            return rows.inputs, rows.answers, np.array(rows.positions)
        return rows.inputs, self.split.targets(rows)
