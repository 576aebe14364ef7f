"""How the rows of a split are cut in batches, and what batches ask of it."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from statewise.errors import ConfigError, DataError


class _Split(Protocol):
    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...


def count_batches(n_rows: int, batch_size: int, drop_last: bool) -> int:
    """How many batches an epoch has.

    >>> count_batches(70, 32, drop_last=True), count_batches(70, 32, drop_last=False)
    (2, 3)
    """
    return n_rows // batch_size if drop_last else -(-n_rows // batch_size)


def cut(rows: np.ndarray, batch_size: int) -> list[np.ndarray]:
    """Batches of these rows in their order; the last one has what remains."""
    return np.split(rows, range(batch_size, len(rows), batch_size))


def require_rows(split: _Split, batch_size: int, seed: int, drop_last: bool) -> None:
    """Errors:  ConfigError for a number out of range, DataError for a split that has no batch."""
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name}={value} must be at least {least}")
    if not len(split):
        raise DataError(f"the {split.name} split has no sequences; there is nothing to train on")
    if drop_last and len(split) < batch_size:
        raise DataError(
            f"the {split.name} split has {len(split):,} sequences, fewer than batch_size {batch_size}; "
            f"use a batch_size of at most {len(split)}, or train.drop_last=false with "
            "train.accumulation=1"
        )
