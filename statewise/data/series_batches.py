"""Batches of windows of time series: a pure function of (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from statewise.data.series import SeriesSplit
from statewise.data.series_windows import Origin
from statewise.data.whole_batches import WholeBatches


class SeriesBatch(NamedTuple):
    """history: (batch, history, d_target) float64, right-padded, NaN in gaps and padding; lengths: (batch,) int64;
    targets: (batch, horizon, d_target) float64, NaN where unknown; covariates: (batch, history, d_covariates +
    d_past_covariates) float32, 0 in padding; future_covariates: (batch, horizon, d_covariates) float32. No covariates:
    width 0. What is forecast is float64 since it is yet to be scaled.
    """

    history: Tensor
    lengths: Tensor
    targets: Tensor
    covariates: Tensor
    future_covariates: Tensor


class SeriesBatches(WholeBatches[SeriesSplit, Sequence[np.ndarray], SeriesBatch]):
    """All windows of a split, shuffled again in each epoch."""

    noun = "windows"

    def _epoch(self, generator: np.random.Generator) -> Sequence[np.ndarray]:
        return self._shuffled(generator)

    def _read(self, epoch: Sequence[np.ndarray], within: int) -> SeriesBatch:
        return collate(self.split, [self.split.origins[i] for i in epoch[within]])


def collate(split: SeriesSplit, origins: Sequence[Origin]) -> SeriesBatch:
    """The windows at these origins as one batch."""
    windows = [split.window(origin) for origin in origins]
    length = split.data.config.history
    return SeriesBatch(
        _stack([_padded(w.history, length, np.nan) for w in windows]),
        torch.tensor([len(w.history) for w in windows]),
        _stack([w.targets for w in windows]),
        _stack([_padded(w.covariates, length, 0.0) for w in windows]).float(),
        _stack([w.future_covariates for w in windows]).float(),
    )


def _padded(rows: np.ndarray, length: int, value: float) -> np.ndarray:
    return np.pad(rows, ((0, length - len(rows)), (0, 0)), constant_values=value)


def _stack(arrays: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(arrays))
