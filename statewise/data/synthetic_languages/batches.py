"""Batches of a synthetic language: a pure function of (seed, step)."""

from __future__ import annotations

from functools import cached_property
from math import gcd
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.synthetic_languages.data import LanguageSplit
from statewise.data.synthetic_languages.language import Rows
from statewise.data.whole_batches import count_batches, cut, require_rows

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


class RecallBatches:
    """``batches[step]`` is the batch of that step, for any step from 0 on; there is no end.

    Each epoch takes the rows in a new order, each at most once; fewer than ``batch_size`` are left out, or with
    ``drop_last=False`` the last batch of the epoch.

    Cost:    A split of up to 128 MB (in the smallest integers that hold it) is drawn once, and a batch is then a few
             microseconds. Larger ones, and so fresh rows for each step, are drawn batch by batch.
    Errors:  DataError if the split has fewer than ``batch_size`` rows, or with ``drop_last=False`` none.
    """

    def __init__(self, split: LanguageSplit, batch_size: int, seed: int, drop_last: bool = True) -> None:
        require_rows(split, batch_size, seed, drop_last)
        self.split, self.batch_size, self.seed, self.drop_last = split, batch_size, seed, drop_last
        self._only_answers: bool = split.language.config.answer_only
        self._epoch: tuple[int, list[Tensor]] | None = None  # number, the rows of each step

    @property
    def steps_per_epoch(self) -> int:
        """How many batches make one pass over the split."""
        return count_batches(len(self.split), self.batch_size, self.drop_last)

    @property
    def held(self) -> bool:
        """Whether the rows are drawn once and kept."""
        length, n_answers = self.split.shape
        width = length + 2 * n_answers if self._only_answers else 2 * length
        return len(self.split) * width * self._dtype.itemsize <= HELD_BYTES

    def __getitem__(self, step: int) -> RecallBatch:
        if step < 0:
            raise IndexError(f"step {step}: batches are numbered from 0")
        number, within = divmod(step, self.steps_per_epoch)
        if self._table is None:
            drawn = self.split.rows(self._scattered(number, within))
            return RecallBatch(*map(torch.from_numpy, self._arrays(drawn)))
        if self._epoch is None or self._epoch[0] != number:
            self._epoch = (number, self._order(number))
        rows = self._epoch[1][within]
        return RecallBatch(*(held.index_select(0, rows).long() for held in self._table))

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

    def _order(self, number: int) -> list[Tensor]:
        generator = np.random.default_rng([self.seed, number])
        rows = generator.permutation(len(self.split))[: self.steps_per_epoch * self.batch_size]
        return [torch.from_numpy(batch) for batch in cut(rows, self.batch_size)]

    def _scattered(self, number: int, within: int) -> np.ndarray:
        """The rows of a batch without a list of all: i times a factor that has none in common with their number.

        Rows drawn independently need no better shuffling, and a list of as many as may be asked for would be large.
        """
        n_rows = len(self.split)
        generator = np.random.default_rng([self.seed, number])
        shift, factor = (int(x) for x in generator.integers(n_rows, size=2))
        while gcd(factor, n_rows) != 1:
            factor = (factor + 1) % n_rows
        low = within * self.batch_size
        return (np.arange(low, min(low + self.batch_size, n_rows)) * factor + shift) % n_rows
