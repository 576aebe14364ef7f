"""Batches by their number: what all kinds of them have in common, and how the rows of a split are cut in them."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import numpy as np

from statewise.errors import ConfigError, DataError, require_least

Epoch = TypeVar("Epoch")
Batch = TypeVar("Batch")


class NumberedBatches(abc.ABC, Generic[Epoch, Batch]):
    """``batches[step]`` is the batch of that step, for any step from 0 on; there is no end.

    It is a pure function of (seed, step), so that the place in the data is one number. The order of an epoch is made
    when the first batch of it is asked for.
    """

    seed: int
    _opened: tuple[int, Epoch] | None = None  # the number of the epoch that was read last, and the epoch

    @property
    @abc.abstractmethod
    def steps_per_epoch(self) -> int:
        """How many batches make one pass over the split."""

    @abc.abstractmethod
    def _epoch(self, generator: np.random.Generator) -> Epoch:
        """The order of an epoch, whose generator is that of (seed, number of the epoch)."""

    @abc.abstractmethod
    def _read(self, epoch: Epoch, within: int) -> Batch:
        """A batch by its number in the epoch."""

    def __getitem__(self, step: int) -> Batch:
        if step < 0:
            raise IndexError(f"step {step}: batches are numbered from 0")
        number, within = divmod(step, self.steps_per_epoch)
        if self._opened is None or self._opened[0] != number:
            self._opened = (number, self._epoch(np.random.default_rng([self.seed, number])))
        return self._read(self._opened[1], within)


class RowSplit(Protocol):
    """What batches of whole rows are made from."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...


Split = TypeVar("Split", bound=RowSplit)


class WholeBatches(NumberedBatches[Epoch, Batch], Generic[Split, Epoch, Batch]):
    """Each epoch takes the rows of a split in a new random order, each at most once; fewer than ``batch_size`` are left
    out, or with ``drop_last=False`` the last batch of the epoch.

    Errors:  ConfigError for a number out of range; DataError if the split has fewer than ``batch_size`` rows, or with
             ``drop_last=False`` none.
    """

    noun: ClassVar[str] = "sequences"

    def __init__(self, split: Split, batch_size: int, seed: int, drop_last: bool = True) -> None:
        require_least(ConfigError, batch_size=(batch_size, 1), seed=(seed, 0))
        if not len(split):
            raise DataError(
                f"the {split.name} split has no {self.noun}, so there is nothing to train on; give more data"
            )
        if drop_last and len(split) < batch_size:
            raise DataError(
                f"the {split.name} split has {len(split):,} {self.noun}, fewer than batch_size {batch_size}; "
                f"use a batch_size of at most {len(split)}, or train.drop_last=false with "
                "train.accumulation=1"
            )
        self.split, self.batch_size, self.seed, self.drop_last = split, batch_size, seed, drop_last

    @property
    def steps_per_epoch(self) -> int:
        return count_batches(len(self.split), self.batch_size, self.drop_last)

    def _shuffled(self, generator: np.random.Generator) -> Sequence[Any]:
        """The rows of each batch of an epoch."""
        rows = generator.permutation(len(self.split))[: self.steps_per_epoch * self.batch_size]
        return np.split(rows, range(self.batch_size, len(rows), self.batch_size))


def count_batches(n_rows: int, batch_size: int, drop_last: bool) -> int:
    """How many batches an epoch has.

    >>> count_batches(70, 32, drop_last=True), count_batches(70, 32, drop_last=False)
    (2, 3)
    """
    return n_rows // batch_size if drop_last else -(-n_rows // batch_size)
