"""Batches of tokens: a pure function of (seed, step), so that the place in the data is one number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.text import TokenSplit
from statewise.data.whole_batches import NumberedBatches
from statewise.errors import ConfigError, DataError, require_least


class Batch(NamedTuple):
    """inputs, targets: (batch, length) int64, targets one token ahead.  starts: (batch, length) bool, where a document
    begins in the inputs (and, with ``carry``, where an epoch does).
    """

    inputs: Tensor
    targets: Tensor
    starts: Tensor | None


class _Epoch(NamedTuple):
    """The order of one epoch: its documents shuffled, joined to a ring, and read from ``phase`` on."""

    ends: np.ndarray  # (n_documents,) where each shuffled document ends in the ring
    shifts: np.ndarray  # (n_documents,) from a place in the ring to its place in the split
    phase: int
    windows: np.ndarray | None  # the order of the windows; None where the state is carried


class Batches(NumberedBatches[_Epoch, Batch]):
    """In each epoch the documents are shuffled and joined to a ring, which is entered at a random place.

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
        require_least(ConfigError, batch_size=(batch_size, 1), length=(length, 1), seed=(seed, 0))
        needed = batch_size * (length + 1)
        if split.n_tokens < needed:
            raise DataError(
                f"the {split.name} split has {split.n_tokens:,} tokens, but batch_size {batch_size} of length {length} "
                f"needs {needed:,}; use a smaller batch_size or length, or more text"
            )
        self.split, self.batch_size, self.length, self.seed, self.carry = split, batch_size, length, seed, carry

    @property
    def steps_per_epoch(self) -> int:
        if self.carry:
            return self.split.n_tokens // self.batch_size // self.length
        return self.split.n_tokens // self.length // self.batch_size

    def _epoch(self, generator: np.random.Generator) -> _Epoch:
        offsets = self.split.document_offsets
        order = generator.permutation(self.split.n_documents)
        begins = offsets[order]
        ends = np.cumsum(offsets[order + 1] - begins)
        shifts = begins - np.concatenate([np.zeros(1, np.int64), ends[:-1]])
        phase = int(generator.integers(self.split.n_tokens))
        windows = None if self.carry else generator.permutation(self.split.n_tokens // self.length)
        return _Epoch(ends, shifts, phase, windows)

    def _read(self, epoch: _Epoch, within: int) -> Batch:
        rows = np.arange(self.batch_size)
        if epoch.windows is None:
            begins = rows * (self.split.n_tokens // self.batch_size) + within * self.length
        else:
            begins = epoch.windows[within * self.batch_size + rows] * self.length
        places = (begins[:, None] + np.arange(self.length + 1) + epoch.phase) % self.split.n_tokens
        documents = np.searchsorted(epoch.ends, places, side="right")
        window = torch.from_numpy(self.split.tokens[places + epoch.shifts[documents]].astype(np.int64))
        inputs, targets = window[:, :-1].contiguous(), window[:, 1:].contiguous()
        starts = inputs == self.split.document_token
        if self.carry and within == 0:
            starts[:, 0] = True
        return Batch(inputs, targets, starts)
