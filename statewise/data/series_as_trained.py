"""Series for a model that is trained already: the columns, the steps and the calendar are those it learned from."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from statewise.data.series_files import SeriesTable
from statewise.data.series_times import Frequency, infer_frequency, parse_frequency, steps_after
from statewise.errors import ConfigError, DataError
from statewise.models.series_input import SeriesInputConfig

if TYPE_CHECKING:
    from statewise.data.series import SeriesDataConfig

COLUMNS = ("time", "series", "targets", "covariates", "past_covariates")
SHORTEST_MONTH = 28 * 86400


def as_trained(config: SeriesDataConfig, trained: SeriesInputConfig) -> SeriesDataConfig:
    """The config with what it leaves open as the model has it.

    Errors:  ConfigError, one line, where it says something else than the model: columns, frequency, calendar, season.
    """
    changes: dict[str, Any] = {name: getattr(trained, name) for name in COLUMNS}
    wanted = {name: value for name, value in changes.items() if getattr(config, name)}
    wanted |= {"calendar": trained.calendar}
    if trained.calendar:
        wanted["harmonics"] = trained.harmonics
    if config.season is not None and "season" in trained.calendar:
        wanted["season"] = trained.season
    for name, value in wanted.items():
        if (given := getattr(config, name)) != value:
            raise ConfigError(
                f"data.{name}={_told(given)}, but the model was trained with {name}={_told(value)}, and reads nothing "
                f"else; give series like those, with data.{name}={_told(value)}, or train a new model"
            )
    spacing = Frequency(trained.unit, trained.step)
    if config.frequency is not None and parse_frequency(config.frequency, trained.dates) != spacing:
        raise ConfigError(
            f"data.frequency={config.frequency!r}, but the model was trained on steps of {spacing}; resample the "
            "series, or train a new model"
        )
    return replace(config, **changes, season=config.season or trained.season)


def to_go_on(config: SeriesDataConfig, trained: SeriesInputConfig, given: Collection[str]) -> SeriesDataConfig:
    """The config of series to train a model further on: what nobody gave and a preset would choose is the model's."""
    fields = [name for name in (*COLUMNS, "calendar", "harmonics") if name not in given]
    return replace(config, **{name: getattr(trained, name) for name in fields})


def require_step(where: str, series: Sequence[SeriesTable], trained: SeriesInputConfig) -> None:
    """Errors:  DataError for weeks on a grid of days, where the model learned from every day."""
    spacing = Frequency(trained.unit, trained.step)
    apart = rows_apart(series, spacing)
    if apart > trained.every:
        raise DataError(
            f"{where} has a value at most every {apart} steps of {spacing}, but the model was trained on "
            f"{'every step' if trained.every == 1 else f'every {trained.every}'}; resample the series to steps of "
            f"{spacing}, or train a new model"
        )


def rows_apart(series: Sequence[SeriesTable], spacing: Frequency) -> int:
    """How many steps lie between two known rows at least: 7 for weeks on a grid of days, 28 for months, 1 for days.

    The least of all series that have three known rows or more; fewer tell no regular step.
    """
    known = [table.times[~np.isnan(table.values).all(1)] for table in series]
    return min((_apart(times, spacing) for times in known if len(times) > 2), default=1)


def _apart(times: np.ndarray, spacing: Frequency) -> int:
    found = infer_frequency(times, spacing.kind != "number")
    if found.kind == "months" and spacing.kind == "seconds":
        return max(1, int(found.step * SHORTEST_MONTH / spacing.step))
    steps = np.round(steps_after(times, float(times[0]), spacing)).astype(np.int64)
    return max(1, int(np.gcd.reduce(np.diff(steps))))


def _told(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)
