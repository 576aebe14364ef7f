"""A year of CO2 beyond the end, beside exponential smoothing; and how honest intervals beyond the horizon are.

    python experiments/co2_beyond.py --out results.json

1.  The last 52 weeks of ``co2`` are held out. The presets ``co2`` and ``co2-structural`` are trained on what is before
    them, and statsmodels' exponential smoothing (trend and a season of 52 weeks, both additive; gaps filled on straight
    lines, since it reads none) is fitted to the same, as Holt-Winters by least squares and as ETS by likelihood. All
    forecast the held-out year.
2.  The presets ``co2`` and ``sunspots``, trained on their training span, forecast three horizons ahead from origins of
    the test span, and the share of the values inside the interval of 80 % is counted for each horizon: for the way
    that ``predictor.forecast`` goes on, and for two others.
"""

from __future__ import annotations

import argparse
import csv
import json
import warnings
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

import statewise as sw
from statewise.benchmark.processor import processor
from statewise.data.series import SeriesData, open_series
from statewise.data.series_ahead import Past
from statewise.data.series_files import find_series
from statewise.models.forecaster import Forecaster
from statewise.predict.ahead import _call, _longer, at_level, forecast_batches, pooled
from statewise.training import train_run
from statewise.training.presets import PRESETS

HELD_OUT = 52


def scores(point: np.ndarray, low: np.ndarray, high: np.ndarray, known: np.ndarray) -> dict[str, float]:
    error = np.abs(point - known)
    inside = (low <= known) & (known <= high)
    return {
        "mae": float(error.mean()),
        "mse": float(np.square(error).mean()),
        "coverage": float(inside.mean()),
        "mean width of the interval": float((high - low).mean()),
    }


def held_out_year(folder: Path) -> dict[str, Any]:
    """The last year of CO2 by each way, all of them from the rows before it."""
    with find_series("co2").open(newline="") as file:
        header, *rows = list(csv.reader(file))
    before, year = rows[:-HELD_OUT], np.array([float(row[1] or "nan") for row in rows[-HELD_OUT:]])
    table = folder / "before.csv"
    table.write_text("\n".join(map(",".join, [header, *before])) + "\n")
    known = ~np.isnan(year)
    found: dict[str, Any] = {}
    for name in ("co2", "co2-structural"):
        preset = PRESETS[name]()
        train_run(replace(preset, data=replace(preset.data, source=str(table), test_fraction=0.0)), folder / name)  # type: ignore[type-var]
        low, point, high = sw.predictor(folder / name).forecast(table, HELD_OUT).values[0, known, 0].T
        found[name] = scores(point, low, high, year[known])
    import pandas
    from statsmodels.tsa.exponential_smoothing.ets import ETSModel
    from statsmodels.tsa.holtwinters import ExponentialSmoothing

    values = np.array([float(row[1] or "nan") for row in before])
    gap = np.isnan(values)
    values[gap] = np.interp(np.flatnonzero(gap), np.flatnonzero(~gap), values[~gap])
    series = pandas.Series(values, pandas.to_datetime([row[0] for row in before]))
    season = {"trend": "add", "seasonal": "add", "seasonal_periods": 52}
    fit = ExponentialSmoothing(series, **season).fit()
    drawn = fit.simulate(HELD_OUT, anchor="end", repetitions=2000, random_state=0).to_numpy()[known]
    low, high = np.quantile(drawn, [0.1, 0.9], axis=1)
    found["Holt-Winters"] = scores(fit.forecast(HELD_OUT).to_numpy()[known], low, high, year[known])
    for way in ("heuristic", "estimated"):  # of the first states
        fit = ETSModel(series, error="add", initialization_method=way, **season).fit(disp=False, maxiter=200)
        frame = fit.get_prediction(len(values), len(values) + HELD_OUT - 1).summary_frame(alpha=0.2)
        mean, low, high = (frame[name].to_numpy()[known] for name in ("mean", "pi_lower", "pi_upper"))
        converged = bool(fit.mle_retvals["converged"])
        found[f"ETS, {way}"] = {**scores(mean, low, high, year[known]), "converged": converged}
    naive = values[-HELD_OUT:][known]
    found["seasonal naive"] = {name: scores(naive, naive, naive, year[known])[name] for name in ("mae", "mse")}
    return {"fitted up to": before[-1][0], "weeks": int(known.sum()), "of": found}


def pasts_of(data: SeriesData, steps: int, stride: int) -> tuple[list[Past], np.ndarray]:
    """Origins of the test span, and what came after them (n, steps)."""
    (table,) = data.tables
    begin, end = data.span("test")
    pasts, known = [], []
    for row in range(begin, end - steps + 1, stride):
        here, ahead = slice(row - data.config.history, row), slice(row, row + steps)
        parts = (part[here] for part in (table.times, table.values, table.covariates))
        pasts.append(Past(table.name, *parts, table.times[ahead], table.covariates[ahead], data.dates))
        known.append(table.values[ahead, 0])
    return pasts, np.stack(known)


def level_by_level(model: Forecaster, past: Past, steps: int) -> np.ndarray:
    """Each quantile fed back alone, as if the series went along it."""
    quantiles, horizon = model.config.quantiles or (), model.config.horizon
    rows = []
    for i in range(len(quantiles)):
        following, parts = past, []
        for _ in range(0, steps, horizon):
            block = _call(model, [following], horizon)[0]
            parts.append(block[:, 0, i])
            following = _longer(following, block[..., i])
        rows.append(np.concatenate(parts)[:steps])
    return np.stack(rows, 1)


def step_by_step(model: Forecaster, past: Past, steps: int, paths: int = 100) -> np.ndarray:
    """Paths whose steps are drawn independently of each other."""
    quantiles, horizon = model.config.quantiles or (), model.config.horizon
    generator = np.random.default_rng(0)
    following, parts = [past] * paths, []
    for begin in range(0, steps, horizon):
        block = _call(model, following, horizon)
        parts.append(pooled(block, quantiles)[:, 0] if begin else block[0, :, 0])
        drawn = at_level(block, quantiles, generator.normal(size=(paths, horizon, 1)))
        following = [_longer(one, values) for one, values in zip(following, drawn)]
    return np.concatenate(parts)[:steps]


def later_blocks(folder: Path, name: str, stride: int) -> dict[str, Any]:
    """Coverage and width by horizon, three ways."""
    preset = PRESETS[name]()
    train_run(preset, folder / f"{name}-blocks")
    model = sw.load(folder / f"{name}-blocks")
    assert isinstance(model, Forecaster)
    data = open_series(preset.data)  # type: ignore[arg-type]
    horizon = model.config.horizon
    pasts, known = pasts_of(data, 3 * horizon, stride)
    batches = forecast_batches(model, pasts, 3 * horizon)
    ways = {
        "paths, one level for all steps of a block": np.concatenate([values for _, values in batches])[:, :, 0],
        "each quantile fed back alone": np.stack([level_by_level(model, past, 3 * horizon) for past in pasts]),
        "paths, each step drawn for itself": np.stack([step_by_step(model, past, 3 * horizon) for past in pasts]),
    }
    told: dict[str, Any] = {"origins": len(pasts), "horizon": horizon}
    for way, found in ways.items():
        told[way] = []
        for block in range(3):
            here = slice(block * horizon, (block + 1) * horizon)
            there = ~np.isnan(known[:, here])
            low, point, high = (found[:, here, i][there] for i in range(3))
            told[way].append(scores(point, low, high, known[:, here][there]))
    return told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    with TemporaryDirectory() as folder:
        record = {
            "hardware": {**processor(), "threads": torch.get_num_threads(), "torch": torch.__version__},
            "the last year of co2": held_out_year(Path(folder)),
            "beyond the horizon": {
                name: later_blocks(Path(folder), name, stride) for name, stride in (("co2", 8), ("sunspots", 1))
            },
        }
    print(json.dumps(record, indent=2))
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
