"""Batches of tokens: a pure function of (seed, step), so that the place in the data is one number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.text import TokenSplit
from statewise.errors import ConfigError, DataError


class Batch(NamedTuple):
    """inputs, targets: (batch, length) int64, targets one token ahead.  starts: (batch, length) bool, where a document
    begins in the inputs (and, with ``carry``, where an epoch does).
    """

    inputs: Tensor
    targets: Tensor
    starts: Tensor | None


class _Epoch(NamedTuple):
    """The order of one epoch: its documents shuffled, joined to a ring, and read from ``phase`` on."""

    number: int
    ends: np.ndarray  # (n_documents,) where each shuffled document ends in the ring
    shifts: np.ndarray  # (n_documents,) from a place in the ring to its place in the split
    phase: int
    windows: np.ndarray | None  # the order of the windows; None where the state is carried


class Batches:
    """``batches[step]`` is the batch of that step, for any step from 0 on; there is no end.

    In each epoch the documents are shuffled and joined to a ring, which is entered at a random place.

    carry=False: the ring is cut in windows of ``length`` targets, and the windows are shuffled. Each is to be read from
    rest. Within an epoch every token is a target at most once, and all are but fewer than ``length`` that fill no
    window and fewer than ``batch_size`` windows that fill no batch.

    carry=True: the ring is cut in ``batch_size`` rows, and each step reads on where the step before stopped: the state
    after step k is to be given to step k + 1. ``starts`` is True throughout the first column of an epoch, so that
    nothing passes from one epoch to the next; fewer than ``length`` tokens of each row, and fewer than ``batch_size``
    more, are not used.

    Cost:    O(documents) time and 16 bytes each for a new epoch (and 8 bytes for each window), then
             O(batch_size · length · log documents) a step. The tokens stay on the disk.
    Errors:  DataError if the split has fewer than ``batch_size * (length + 1)`` tokens.
    """

    def __init__(self, split: TokenSplit, batch_size: int, length: int, seed: int, carry: bool) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("length", length, 1), ("seed", seed, 0)):
            if value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        needed = batch_size * (length + 1)
        if split.n_tokens < needed:
            raise DataError(
                f"the {split.name} split has {split.n_tokens:,} tokens, but batch_size {batch_size} of length {length} "
                f"needs {needed:,}; use a smaller batch_size or length, or more text"
            )
        self.split, self.batch_size, self.length, self.seed, self.carry = split, batch_size, length, seed, carry
        self._epoch: _Epoch | None = None

    @property
    def steps_per_epoch(self) -> int:
        """How many batches make one pass over the split."""
        if self.carry:
            return self.split.n_tokens // self.batch_size // self.length
        return self.split.n_tokens // self.length // self.batch_size

    def __getitem__(self, step: int) -> Batch:
        if step < 0:
            raise IndexError(f"step {step}: batches are numbered from 0")
        number, within = divmod(step, self.steps_per_epoch)
        epoch = self._open_epoch(number)
        rows = np.arange(self.batch_size)
        if epoch.windows is None:
            begins = rows * (self.split.n_tokens // self.batch_size) + within * self.length
        else:
            begins = epoch.windows[within * self.batch_size + rows] * self.length
        window = torch.from_numpy(self._read(epoch, begins))
        inputs, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
        starts = inputs == self.split.document_token
        if self.carry and within == 0:
            starts[:, 0] = True
        return Batch(inputs, targets, starts)

    def _open_epoch(self, number: int) -> _Epoch:
        if self._epoch is None or self._epoch.number != number:
            generator = np.random.default_rng([self.seed, number])
            offsets = self.split.document_offsets
            order = generator.permutation(self.split.n_documents)
            begins = offsets[order]
            ends = np.cumsum(offsets[order + 1] - begins)
            shifts = begins - np.concatenate([np.zeros(1, np.int64), ends[:-1]])
            phase = int(generator.integers(self.split.n_tokens))
            windows = None if self.carry else generator.permutation(self.split.n_tokens // self.length)
            self._epoch = _Epoch(number, ends, shifts, phase, windows)
        return self._epoch

    def _read(self, epoch: _Epoch, begins: np.ndarray) -> np.ndarray:
        """The ``length + 1`` tokens from each of these places of the epoch on: (batch, length + 1) int64."""
        places = begins[:, None] + np.arange(self.length + 1)
        places = (places + epoch.phase) % self.split.n_tokens
        documents = np.searchsorted(epoch.ends, places, side="right")
        return self.split.tokens[places + epoch.shifts[documents]].astype(np.int64)
