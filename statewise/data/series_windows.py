"""The places in series that a forecast can be made from, each within one part of their time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from statewise.data.series_files import SeriesTable


class Origin(NamedTuple):
    """A place to forecast from: the history of series ``series`` ends before row ``row``, where the targets begin."""

    series: int
    row: int


class Window(NamedTuple):
    """What is read and what is forecast at an origin, float64. history: (n, d_target), n at most ``history``;
    covariates: (n, d_covariates + d_past_covariates); targets: (horizon, d_target), NaN where unknown;
    future_covariates: (horizon, d_covariates).
    """

    history: np.ndarray
    covariates: np.ndarray
    targets: np.ndarray
    future_covariates: np.ndarray


def ends_of_splits(n_steps: int, validation_fraction: float, test_fraction: float) -> tuple[int, int, int]:
    """The steps before which training, validation and test end, of the steps from the first of all series to the last.

    >>> ends_of_splits(60, 0.1, 0.2)
    (42, 48, 60)
    """
    return round(n_steps * (1 - validation_fraction - test_fraction)), round(n_steps * (1 - test_fraction)), n_steps


def origins_within(
    tables: Sequence[SeriesTable], span: tuple[int, int], history: int, least: int, horizon: int
) -> tuple[Origin, ...]:
    """Those whose ``horizon`` targets lie within the steps [begin, end) ``span``, one known at least, with ``least``
    steps before them, of which the last ``history`` have two known values.
    """
    origins = []
    for number, table in enumerate(tables):
        begin, end = (step - int(table.index[0]) for step in span)
        known = ~np.isnan(table.values).all(1)
        counts = np.concatenate([[0], known.cumsum()])
        origins += [
            Origin(number, row)
            for row in range(max(begin, least), min(end, len(table.index)) - horizon + 1)
            if counts[row] > counts[max(0, row - history)] + 1 and counts[row + horizon] > counts[row]
        ]
    return tuple(origins)
