"""What a model reads beside the values of a series: the calendar, and covariates in the units of the training data."""

from __future__ import annotations

import numpy as np

from statewise.data.series_files import SeriesTable
from statewise.data.series_times import Frequency, steps_after
from statewise.errors import DataError
from statewise.models.series_input import CYCLES, SeriesInputConfig


def read_covariates(table: SeriesTable, config: SeriesInputConfig) -> np.ndarray:
    """(n, d_covariates + d_past_covariates): the calendar, the covariates known ahead, those of the past."""
    return np.concatenate([calendar(table.times, config), scaled(table.covariates, config)], 1)


def scaled(covariates: np.ndarray, config: SeriesInputConfig) -> np.ndarray:
    """(n, k): the first k columns as a model reads them, k at most as many as there are."""
    k = covariates.shape[1]
    found: np.ndarray = (covariates - np.array(config.mean[:k])) / np.array(config.deviation[:k])
    return found


def calendar(times: np.ndarray, config: SeriesInputConfig) -> np.ndarray:
    """(n, 2 * harmonics * cycles): sine and cosine of each cycle, known for any time."""
    waves = []
    for cycle in config.calendar:
        if cycle == "season":
            phase = steps_after(times, config.origin, Frequency(config.unit, config.step)) / config.season
        else:
            phase = times / CYCLES[cycle]
        for k in range(1, config.harmonics + 1):
            waves += [np.sin(2 * np.pi * k * phase), np.cos(2 * np.pi * k * phase)]
    return np.stack(waves, 1) if waves else np.empty((len(times), 0))


def training_scales(
    tables: tuple[SeriesTable, ...], columns: tuple[str, ...], train_end: int, source: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The covariates' mean and deviation, both of the training span alone: of the steps before ``train_end``.

    Errors:  DataError for a covariate with a gap.
    """
    if not columns:
        return (), ()
    for table in tables:
        row, column = next(zip(*np.nonzero(np.isnan(table.covariates))), (None, None))
        if row is not None and column is not None:
            raise DataError(
                f"{source}: the covariate {columns[column]!r} of series {table.name!r} is missing at its step "
                f"{row + 1}; fill it: only targets may have gaps"
            )
    training = np.concatenate([table.covariates[table.index < train_end] for table in tables])
    if not len(training):
        return (0.0,) * len(columns), (1.0,) * len(columns)
    deviation = training.std(0)
    return tuple(training.mean(0).tolist()), tuple(np.where(deviation > 0, deviation, 1.0).tolist())
