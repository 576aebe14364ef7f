"""Rows of tokens, or of pairs of rows, that are read from a memory map when a batch asks for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class TokenRowsSplit:
    """Row i is ``values[begins[i]:begins[i] + lengths[i]]``.

    values:   (steps,) unsigned integers, usually a memory map. Token 0 is the padding.
    begins, lengths: (n,) int64; or (n, 2), the two documents of each pair.
    targets:  (n,) int64 classes, or (n, d_output) float32 to be regressed.

    Batches of pairs hold the two documents of pair i in rows 2i and 2i + 1, so that their inputs and lengths have
    twice as many rows as their targets.
    """

    name: str
    values: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    targets: np.ndarray

    def __len__(self) -> int:
        return len(self.targets)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """inputs, (len(rows), length) int64 or (2 len(rows), length) for pairs, right-padded with 0; and targets."""
        begins, lengths = self.begins[rows].ravel(), self.lengths[rows].ravel()
        inputs = np.zeros((len(lengths), int(lengths.max())), np.int64)
        for row, begin, n in zip(inputs, begins, lengths):
            row[:n] = self.values[begin : begin + n]
        return inputs, self.targets[rows]

    def sequence(self, i: int) -> np.ndarray:
        """Row ``i``: (length,) int64; of pairs (2, length), padded to the longer of the two."""
        inputs, _ = self.read(np.array([i]))
        return inputs if self.lengths.ndim == 2 else inputs[0]


def rows_fingerprint(content: Any, splits: Mapping[str, Any]) -> str:
    """A digest of JSON data that says which rows there are, and of each split's places, lengths and targets."""
    digest = hashlib.sha256(json.dumps(content).encode())
    for name, split in sorted(splits.items()):
        digest.update(name.encode())
        for array in (split.begins, split.lengths, split.targets):
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
