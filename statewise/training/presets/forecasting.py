"""The preset for your own series: what is forecast, from what, by which calendar."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from itertools import pairwise
from typing import Any, cast

import numpy as np

from statewise.data.base import DataConfig
from statewise.data.series import DEFAULT_SEASONS, SeriesDataConfig
from statewise.data.series_files import SeriesFile, find_series, read_series
from statewise.data.series_windows import ends_of_splits, origins_within
from statewise.errors import DataError
from statewise.mixers.s4d import S4DConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.series_input import CYCLES
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)

DAY = 86400.0
MONTH = 365.25 / 12 * DAY
MINUTES = 10.0  # for machines that are slower than thought
BATCH_SIZE = 32  # at most
STEPS_READ = 4_000_000  # by the layers in the whole run
UPDATES = (100.0, 400.0)
# Few windows are soon known by heart. On nine spans of 60 months, quarters and years of co2, El Nino, GDP, unemployment
# and the Nile, 31 windows each, 60 updates of 8 were better than 120 in MASE and in coverage
UPDATES_A_WINDOW, FEWEST_UPDATES = 2, 60
FEWEST_WINDOWS = 8  # of fewer nothing can be learned that holds elsewhere
MOST_TRIED = 100_000  # rows, when it is to be said how many are enough


def forecaster(data: DataConfig, given: Collection[str]) -> RunConfig:
    """Two layers of S4D that forecast the median and an interval of 80 %: a season ahead, from two seasons or more.

    Errors:  DataError, one line, for series that are too short, with how long they have to be.
    """
    data = cast(SeriesDataConfig, data)
    found = read_series(
        find_series(data.source),
        time=data.time,
        series=data.series,
        targets=data.targets,
        covariates=(*data.covariates, *data.past_covariates),
        frequency=data.frequency,
        notation=data.notation,
    )
    season = data.season or found.frequency.season or DEFAULT_SEASONS.get(data.source) or 1
    n_steps = max(int(table.index[-1]) for table in found.series) + 1
    chosen: dict[str, Any] = _windows(data, given, n_steps, season)
    if "calendar" not in given:
        chosen["calendar"] = _calendar(found)
    if "harmonics" not in given:
        chosen["harmonics"] = 2
    data = replace(data, **chosen)
    n_windows = _count_windows(data, given, found, season)
    batch_size = BATCH_SIZE
    while 2 * batch_size > n_windows:  # an epoch of one batch leaves out much
        batch_size //= 2
    model = ForecasterConfig(
        horizon=data.horizon,
        d_model=32,
        layers=(S4DConfig(d_state=16, dropout=0.1),) * 2,
        quantiles=(0.1, 0.5, 0.9),
        scaling_steps=int(np.clip(season, 8, max(8, data.history))),
        dropout=0.1,
    )
    steps = int(np.clip(STEPS_READ / (BATCH_SIZE * (data.history + data.horizon)), *UPDATES))
    steps = min(steps, max(FEWEST_UPDATES, UPDATES_A_WINDOW * n_windows))
    train = TrainConfig(
        budget=BudgetConfig(steps=steps, minutes=MINUTES),
        optimizer=OptimizerConfig(lr=3e-3),
        schedule=ScheduleConfig(warmup=0.05, min_ratio=0.02),
        reporting=ReportingConfig(evaluate_every=max(1, steps // 8), save_minutes=2.0, evaluate_items=1024),
        batch_size=batch_size,
    )
    return RunConfig(model=model, data=data, train=train)


def _windows(data: SeriesDataConfig, given: Collection[str], n: int, season: int) -> dict[str, Any]:
    """Horizon, history and held-out fractions for series of n steps, where they are not given."""
    horizon = (
        data.horizon if "horizon" in given else int(np.clip(season if season > 1 else n // 30, 1, max(1, n // 10)))
    )
    chosen: dict[str, Any] = {"horizon": horizon}
    for name, least in (("validation_fraction", 0.1), ("test_fraction", 0.2)):
        if name not in given:  # room for a forecast, and for some places to begin it at
            chosen[name] = float(np.clip(math.ceil(150 * horizon / n) / 100, least, 0.3))
    fractions = [chosen.get(name, getattr(data, name)) for name in ("validation_fraction", "test_fraction")]
    before = max(2, ends_of_splits(n, *fractions)[0] - horizon)  # steps before the last window to train on
    if "history" not in given:
        chosen["history"] = min(max(2 * season, 3 * horizon, 24), before)
    if "min_history" not in given:
        history = chosen.get("history", data.history)
        chosen["min_history"] = max(2, min(max(season, horizon), history // 2, before // 4))
    return chosen


def _count_windows(data: SeriesDataConfig, given: Collection[str], found: SeriesFile, season: int) -> int:
    """The windows of the training split. Errors: DataError where they are too few, or a held-out split has none."""
    n_steps = max(int(table.index[-1]) for table in found.series) + 1
    least = data.history if data.min_history is None else data.min_history
    ends = ends_of_splits(n_steps, data.validation_fraction, data.test_fraction)
    n_windows, *held_out = (
        len(origins_within(found.series, span, data.history, least, data.horizon))
        for span in pairwise((0, *ends))
        if span[0] < span[1] or not span[0]
    )
    if n_windows >= FEWEST_WINDOWS and all(held_out):
        return n_windows
    n_series, given = len(found.series), {*given, "horizon"}
    if _is_enough(data, given, n_steps, season, n_series):
        has = f"gaps, or series that are short by themselves, leave {n_windows:,} windows to train on"
        needs = f"at least {FEWEST_WINDOWS} are needed, and one in each split that is held out"
    else:
        more = range(n_steps + 1, MOST_TRIED)
        enough = next((n for n in more if _is_enough(data, given, n, season, n_series)), MOST_TRIED)
        unit = "" if found.frequency.kind == "number" else f" of {found.frequency}"
        has = f"the {'longest of the ' if n_series > 1 else ''}series has {n_steps:,} steps{unit}"
        needs = f"at least {enough:,} rows are needed"
    shorter = ", or ask for a smaller horizon" if data.horizon > 1 else ""
    raise DataError(f"{has}; to learn to forecast {data.horizon} steps, {needs}; give more rows{shorter}")


def _is_enough(data: SeriesDataConfig, given: Collection[str], n: int, season: int, n_series: int) -> bool:
    """Whether series of n steps, without a gap, have windows enough."""
    data = replace(data, **_windows(data, given, n, season))
    train, validation, test = ends_of_splits(n, data.validation_fraction, data.test_fraction)
    least = data.history if data.min_history is None else data.min_history
    n_windows = max(0, train - least - data.horizon + 1) * n_series
    held_out = ((data.validation_fraction, validation - train), (data.test_fraction, test - validation))
    return n_windows >= FEWEST_WINDOWS and all(span >= data.horizon for fraction, span in held_out if fraction)


def _calendar(found: SeriesFile) -> tuple[str, ...]:
    """Cycles of dates that the series have seen twice and that have several steps; () for times that are numbers."""
    if not found.dates:
        return ()
    kind, step = found.frequency
    seconds = step * MONTH if kind == "months" else step
    seen = (max(int(table.index[-1]) for table in found.series) + 1) * seconds
    return tuple(name for name, cycle in CYCLES.items() if 2 * cycle <= seen and 4 * seconds <= cycle)
