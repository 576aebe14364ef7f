"""What a forecaster forecasts: quantiles with the median among them, or the mean; and its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from statewise.configuration.types import NOT_EMPTY, RISING, Condition, Words
from statewise.models.base import ModelConfig
from statewise.models.series_input import SeriesInputConfig, require_fits

Quantiles = Annotated[
    tuple[float, ...],
    NOT_EMPTY,
    RISING,
    Condition(lambda q: q[0] > 0 and q[-1] < 1),
    Condition(lambda q: 0.5 in q, complaint="is without the median, which is the point forecast"),
    Words("rising numbers between 0 and 1 with 0.5 among them"),
]


@dataclass(frozen=True, kw_only=True)
class QuantileConfig(ModelConfig):
    """The quantiles of a model that forecasts.

    quantiles: which to forecast, rising, inside (0, 1), the median 0.5 among them: it is the point forecast that MAE
    and MSE are of. None: the mean, by squared error.
    series: what tables of series hold and what is made of them, for whoever asks for a forecast; None: not known.
    """

    quantiles: Quantiles | None = (0.5,)
    series: SeriesInputConfig | None = None

    def __post_init__(self) -> None:
        if self.series is not None:
            require_fits(type(self).__name__, self.series, self)

    @property
    def n_quantiles(self) -> int:
        """How many numbers a forecast holds: 1 for the mean."""
        return 1 if self.quantiles is None else len(self.quantiles)

    @property
    def point(self) -> int:
        """Which of them is the point forecast: the median, or the mean."""
        return 0 if self.quantiles is None else self.quantiles.index(0.5)


def interval_name(quantiles: Sequence[float] | None) -> str | None:
    """What lies between the outer quantiles; None where there are none.

    >>> interval_name((0.1, 0.5, 0.9))
    '80 % interval'
    """
    return None if quantiles is None or len(quantiles) < 2 else f"{100 * (quantiles[-1] - quantiles[0]):.4g} % interval"


def scaled_targets(targets: Tensor, anchor: Tensor, scale: Tensor) -> Tensor:
    """(..., 1) in units of the scale, to compare with forecasts (..., n_quantiles) in such units. NaN, as if they were
    unknown, where the scale is 0: then the history shows no scale, and its forecast is its last value.

    Shapes:  targets: (batch, horizon, d_target)   anchor, scale: (batch, 1, d_target, 1), or 1 instead of a size
    """
    told = scale > 0
    found = (targets.unsqueeze(-1) - anchor) / torch.where(told, scale, 1)
    return torch.where(told, found, torch.nan)


def quantile_losses(forecasts: Tensor, targets: Tensor, quantiles: Sequence[float] | None) -> Tensor:
    """The pinball loss of each quantile, or without quantiles the squared error of the mean; 0 where a target is NaN.

    Shapes:  forecasts: (..., n_quantiles)   targets: (..., 1)   ->   (..., n_quantiles)
    """
    known = ~targets.isnan()
    error = targets.masked_fill(~known, 0) - forecasts.masked_fill(~known, 0)
    return error.square() if quantiles is None else pinball(error, quantiles)


def pinball(error: Tensor, quantiles: Sequence[float]) -> Tensor:
    """max(q e, (q - 1) e) for e = value - forecast (..., n_quantiles): smallest in the mean where the forecast is the
    quantile q (Koenker & Bassett 1978, Econometrica 46, eq. 3.1).

    >>> pinball(torch.tensor([2.0, -2.0]), (0.9, 0.9))
    tensor([1.8000, 0.2000])
    """
    q = torch.tensor(quantiles, dtype=error.dtype, device=error.device)
    return torch.maximum(q * error, (q - 1) * error)
