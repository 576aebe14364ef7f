"""Batches of windows of time series: a pure function of (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.series import Origin, SeriesSplit
from statewise.data.whole_batches import count_batches
from statewise.errors import ConfigError, DataError


class SeriesBatch(NamedTuple):
    """history: (batch, history, d_target) float32, right-padded, NaN in gaps and padding; lengths: (batch,) int64;
    targets: (batch, horizon, d_target), NaN where unknown; covariates: (batch, history, d_covariates +
    d_past_covariates), 0 in padding; future_covariates: (batch, horizon, d_covariates). No covariates: width 0.
    """

    history: Tensor
    lengths: Tensor
    targets: Tensor
    covariates: Tensor
    future_covariates: Tensor


class SeriesBatches:
    """``batches[step]`` is the batch of that step, for any step from 0 on: in each epoch all windows, shuffled, but for
    fewer than ``batch_size`` that fill no batch; with ``drop_last=False`` these are the epoch's last batch.

    Errors:  DataError if the split has fewer than ``batch_size`` windows, or with ``drop_last=False`` none.
    """

    def __init__(self, split: SeriesSplit, batch_size: int, seed: int, drop_last: bool = True) -> None:
        for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
            if value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        if len(split.origins) < (batch_size if drop_last else 1):
            raise DataError(
                f"the {split.name} split has {len(split.origins):,} windows, fewer than batch_size {batch_size}; "
                "use a smaller batch_size, history or horizon, or train.drop_last=false"
            )
        self.split, self.batch_size, self.seed, self.drop_last = split, batch_size, seed, drop_last
        self._order: tuple[int, np.ndarray] | None = None

    @property
    def steps_per_epoch(self) -> int:
        """How many batches make one pass over the split."""
        return count_batches(len(self.split.origins), self.batch_size, self.drop_last)

    def __getitem__(self, step: int) -> SeriesBatch:
        if step < 0:
            raise IndexError(f"step {step}: batches are numbered from 0")
        epoch, within = divmod(step, self.steps_per_epoch)
        if self._order is None or self._order[0] != epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self.split.origins))
            self._order = (epoch, order)
        chosen = self._order[1][within * self.batch_size : (within + 1) * self.batch_size]
        return collate(self.split, [self.split.origins[i] for i in chosen])


def collate(split: SeriesSplit, origins: Sequence[Origin]) -> SeriesBatch:
    """The windows at these origins as one batch."""
    windows = [split.window(origin) for origin in origins]
    length = split.data.config.history
    return SeriesBatch(
        _stack([_padded(w.history, length, np.nan) for w in windows]),
        torch.tensor([len(w.history) for w in windows]),
        _stack([w.targets for w in windows]),
        _stack([_padded(w.covariates, length, 0.0) for w in windows]),
        _stack([w.future_covariates for w in windows]),
    )


def _padded(rows: np.ndarray, length: int, value: float) -> np.ndarray:
    return np.pad(rows, ((0, length - len(rows)), (0, 0)), constant_values=value)


def _stack(arrays: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(arrays)).float()
