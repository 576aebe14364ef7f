"""Forecasts from series of which many values are missing: Kalman layers and Mamba layers, together and alone."""

from __future__ import annotations

import csv
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from statewise.configuration.types import Count, Distinct, Fraction, OneOf, Positive, Seed, Width
from statewise.data.series import SeriesDataConfig, open_series
from statewise.data.series_files import find_series
from statewise.evaluate.forecasting import BASELINES, forecast, score_forecasts
from statewise.mixers.base import MixerConfig
from statewise.mixers.kalman import KalmanConfig
from statewise.mixers.mamba import MambaConfig
from statewise.models.block import BlockConfig
from statewise.models.forecaster import Forecaster, ForecasterConfig
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.measure import n_parameters
from statewise.reproduce.page import told
from statewise.reproduce.report import Report
from statewise.reproduce.settings import Settings
from statewise.reproduce.training import load_checkpoint, train_one
from statewise.reproduce.work import Job, Work
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from statewise.training.report import Reporter

# What is forecast from what: of co2 and sunspots as the presets of ``statewise train`` have it.
SERIES: dict[str, SeriesDataConfig] = {
    "co2": SeriesDataConfig(source="co2", horizon=52, history=104, calendar=("year",), harmonics=2),
    "sunspots": SeriesDataConfig(source="sunspots", horizon=11, history=33),
    "elnino": SeriesDataConfig(source="elnino", horizon=12, history=36, calendar=("year",), harmonics=2),
}
SEASONS = {"co2": 52, "sunspots": 11, "elnino": 12}  # a year, or a cycle of the sun
SCALING_STEPS = {"co2": 52, "sunspots": 22, "elnino": 24}
MODELS: dict[str, tuple[MixerConfig, ...]] = {
    "mamba": (MambaConfig(), MambaConfig()),
    "kalman": (KalmanConfig(), KalmanConfig()),
    "both": (KalmanConfig(), MambaConfig()),
}
NAMES = {"mamba": "Mamba, Mamba", "kalman": "Kalman, Kalman", "both": "Kalman, Mamba"}


@dataclass(frozen=True, kw_only=True)
class KalmanMissingSettings(Settings):
    """series:  of "co2", "sunspots", "elnino"        models: of "mamba", "kalman", "both"
    missing: the share of the values that are taken away, at random, from inputs and from what the loss knows
    seeds:   of what is taken away, the parameters, the dropout and the order of the windows
    d_model, dropout, steps, batch_size, lr: of all runs
    workers: processes that train side by side
    """

    series: Distinct[Annotated[str, OneOf(SERIES)]] = tuple(SERIES)
    models: Distinct[Annotated[str, OneOf(MODELS)]] = tuple(MODELS)
    missing: Fraction = 0.3
    seeds: Distinct[Seed] = (0, 1, 2, 3, 4)
    d_model: Width = 32
    dropout: Fraction = 0.1
    steps: Count = 300
    batch_size: Count = 32
    lr: Positive = 3e-3
    workers: Count = 2


def source(name: str) -> Path:
    """The file of a series: all come with statsmodels.

    Errors:  DataError where it is not installed.
    """
    return find_series(name) if name != "elnino" else find_series("co2").parents[1] / "elnino" / "elnino.csv"


def values(name: str) -> list[tuple[str, str]]:
    """Time and value of each step, as the file has them; an empty value is missing. El Niño has a column a month."""
    with source(name).open(newline="") as file:
        _, *rows = csv.reader(file)
    if name != "elnino":
        return [(row[0], row[1]) for row in rows]
    return [(f"{row[0]}-{month:02}-01", value) for row in rows for month, value in enumerate(row[1:], 1)]


def write_series(name: str, folder: Path, missing: float, seed: int | None) -> Path:
    """The series as a CSV file, whole for no seed, else with this share of its values taken away at random."""
    rows = values(name)
    known = np.array([i for i, (_, value) in enumerate(rows) if value.strip()])
    gone = set()
    if seed is not None:
        gone = set(np.random.default_rng(seed).choice(known, round(missing * len(known)), replace=False).tolist())
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / (f"{name}.csv" if seed is None else f"{name}-gaps-{seed}.csv")
    lines = [f"{when},{'' if i in gone else value}" for i, (when, value) in enumerate(rows)]
    path.write_text("\n".join(["time,value", *lines]) + "\n")
    return path


def run_config(config: KalmanMissingSettings, name: str, model: str, seed: int, file: Path) -> RunConfig:
    """The training run of a model on the series that the file holds."""
    data = replace(SERIES[name], source=str(file), season=SEASONS[name])
    layers = tuple(BlockConfig(mixer=mixer, dropout=config.dropout) for mixer in MODELS[model])
    opened = open_series(data)
    return RunConfig(
        model=ForecasterConfig(
            horizon=data.horizon,
            d_covariates=opened.d_covariates,
            d_model=config.d_model,
            layers=layers,
            quantiles=(0.1, 0.5, 0.9),
            scaling_steps=SCALING_STEPS[name],
            dropout=config.dropout,
        ),
        data=data,
        train=TrainConfig(
            budget=BudgetConfig(steps=config.steps),
            optimizer=OptimizerConfig(lr=config.lr),
            schedule=ScheduleConfig(warmup=0.05, min_ratio=0.02),
            reporting=ReportingConfig(evaluate_every=50, save_minutes=None, keep_last=1),
            batch_size=config.batch_size,
            seed=seed,
            device="cpu",
        ),
    )


def trials(config: KalmanMissingSettings, work: Work) -> Mapping[str, Job]:
    for name in config.series:
        source(name)  # what is missing is told before anything is trained
    return {
        f"{name}-{model}-{seed}": Job(measure, (config, name, model, seed, str(work.folder)))
        for name in config.series
        for model in config.models
        for seed in config.seeds
    }


def measure(
    config: KalmanMissingSettings, name: str, model: str, seed: int, folder: str, reporter: Reporter
) -> dict[str, Any]:
    """Trains one model on what is left of a series, and scores its forecasts on all that was there."""
    part = Path(folder) / f"run-{name}-{model}-{seed}"
    gaps = write_series(name, part / "series", config.missing, seed)
    whole = write_series(name, part / "series", config.missing, None)
    run = run_config(config, name, model, seed, gaps)
    begin = time.process_time()
    train_one(run, part / "run", reporter)
    seconds = time.process_time() - begin
    trained = load_checkpoint(run, part / "run")
    assert isinstance(trained, Forecaster)
    assert isinstance(run.data, SeriesDataConfig)
    truth, seen = open_series(replace(run.data, source=str(whole))), open_series(run.data)
    split = seen.split("test")
    targets = np.stack([truth.split("test").window(origin).targets for origin in split.origins])
    with torch.no_grad():
        found = forecast(trained, split, split.origins)
    scale = truth.naive_errors[[origin.series for origin in split.origins]][:, None]
    scores = score_forecasts(found[..., trained.config.point], targets, scale)
    naive = {
        rule: score_forecasts(np.stack([BASELINES[rule](seen, origin) for origin in split.origins]), targets, scale)
        for rule in BASELINES
    }
    inside = (found[..., 0] <= targets) & (targets <= found[..., -1])
    return {
        "mase": scores.mase,
        "mae": scores.mae,
        "coverage": float(inside[~np.isnan(targets)].mean()),
        "naive": {rule: score.mase for rule, score in naive.items()},
        "windows": len(split.origins),
        "seconds": seconds,
        "parameters": n_parameters(run.model),
    }


def report(config: KalmanMissingSettings, found: Found) -> Report:
    rows, best = [], []
    for name in config.series:
        each = {model: [found[f"{name}-{model}-{seed}"] for seed in config.seeds] for model in config.models}
        naive = next(iter(each.values()))
        for model, parts in each.items():
            mase = [part["mase"] for part in parts]
            rows.append(
                {
                    "series": name,
                    "name": NAMES[model],
                    "mase": statistics.fmean(mase),
                    "spread": statistics.stdev(mase) if len(mase) > 1 else None,
                    "each": mase,
                    "coverage": statistics.fmean(part["coverage"] for part in parts),
                    "naive": statistics.fmean(part["naive"]["seasonal naive"] for part in naive),
                    "drift": statistics.fmean(part["naive"]["seasonal naive with drift"] for part in naive),
                    "weights": parts[0]["parameters"],
                    "seconds": statistics.fmean(part["seconds"] for part in parts),
                }
            )
        if {"mamba", "kalman", "both"} <= each.keys():
            best += [_paired(name, each, other) for other in ("mamba", "kalman")]
    return told(
        "kalman-missing",
        {**vars(config), "minutes": sum(part["seconds"] for part in found.values()) / 60},
        rows,
        best,
        figures={"runs": found},
    )


def _paired(name: str, each: Mapping[str, list[dict[str, Any]]], other: str) -> dict[str, Any]:
    """By how much the two kinds of layers together are better than one alone, seed by seed: each has its own gaps."""
    gained = [1 - a["mase"] / b["mase"] for a, b in zip(each["both"], each[other])]
    return {
        "series": name,
        "other": NAMES[other],
        "gain": statistics.fmean(gained),
        "spread": statistics.stdev(gained) if len(gained) > 1 else None,
        "wins": sum(gain > 0 for gain in gained),
        "of": len(gained),
    }


CLAIM = Claim(
    summary="forecasts with 30 % of the values missing: Kalman and Mamba layers together, and either alone",
    duration="20 minutes on 2 cores",
    settings=KalmanMissingSettings,
    quick='series=["sunspots"] seeds=[0] steps=20 d_model=16 workers=1',
    trials=trials,
    report=report,
)
