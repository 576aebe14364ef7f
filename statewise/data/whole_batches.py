"""What batches of whole rows ask of a split."""

from __future__ import annotations

from typing import Protocol

from statewise.errors import ConfigError, DataError


class _Split(Protocol):
    @property
    def name(self) -> str: ...

    def __len__(self) -> int: ...


def require_full_batch(split: _Split, batch_size: int, seed: int) -> None:
    """Errors:  ConfigError for a number out of range, DataError for a split with fewer rows than a batch has."""
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
        if value < least:
            raise ConfigError(f"{name}={value} must be at least {least}")
    if len(split) < batch_size:
        raise DataError(
            f"the {split.name} split has {len(split):,} sequences, fewer than batch_size {batch_size}; "
            f"use a batch_size of at most {len(split)}"
        )
