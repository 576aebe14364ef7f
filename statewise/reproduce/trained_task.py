"""Trained models on real data: a preset, its seeds, and how well it does on the rows held out for the test."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch

from statewise.checkpoints import load, resolve
from statewise.configuration import Config, assign
from statewise.configuration.types import (
    AtLeastTwo,
    Distinct,
    Finite,
    OneOf,
    Ratio,
    Seed,
)
from statewise.data.base import absolute
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.errors import ConfigError
from statewise.models.evaluation_mode import evaluation_mode
from statewise.reproduce.nearest_neighbour import nearest_neighbour, require_aeon
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Bar, Plot, Report
from statewise.reproduce.seeds_of_a_run import is_diverged, told, train_runs
from statewise.reproduce.work import Stopped, Work
from statewise.train.config import RunConfig
from statewise.train.environment import choose_device
from statewise.train.presets import PRESETS, fit_model
from statewise.train.run_folder import RUN_FILE
from statewise.train.tasks import Table, open_task, run_types

# Published figures that a reader may look for, and why they are not beside ours.
NOTES = {
    "digits": (
        "There is no published figure for these 8 x 8 digits as sequences. S4's 99.63 % (arXiv:2111.00396) is of "
        "sequential MNIST, 28 x 28 and 60,000 images for training.",
    ),
    "acsf1": ("DTW is measured here, on the rows that the model has for training and validation together.",),
    "spoken-digits": (
        "There is no published figure for these recordings and this split. S4's 98.32 % (arXiv:2111.00396) is of SC10, "
        "ten of Google's speech commands at 16 kHz.",
    ),
    "fashion-mnist": (
        "There is no published figure of S4 for it. S4's 99.63 % (arXiv:2111.00396) is of sequential MNIST, which is "
        "easier.",
    ),
    "co2": ("There is no published figure for this series; the forecasts beside it are made here, without a model.",),
}


@dataclass(frozen=True, kw_only=True)
class TrainedTaskSettings(Config):
    """preset:  of ``statewise train``; settings: fields of that run to set, as "train.steps=100"
    folder:  where the data lie, for data that have a folder
    seeds:   one run each; the split of the data is the same for all
    measured: the number of the evaluation that counts; bar: what its mean over the seeds has to reach; None: nothing
    dtw:     also the nearest neighbour by DTW on the same rows, which the mean has then to be beyond
    dtw_windows: to choose from, as shares of the length
    max_rows: of the test split, and for DTW of every split, are read; None: all
    """

    preset: Annotated[str, OneOf(PRESETS)]
    settings: tuple[str, ...] = ()
    folder: str | None = None
    seeds: Distinct[Seed] = (0,)
    measured: str = "accuracy"
    bar: Finite | None = None
    dtw: bool = False
    dtw_windows: tuple[Ratio, ...] = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)
    max_rows: AtLeastTwo | None = None

    def __post_init__(self) -> None:
        if self.folder is not None:
            object.__setattr__(self, "folder", absolute(self.folder))
        if self.dtw and not isinstance(PRESETS[self.preset]().data, LabelledDataConfig):
            raise ConfigError(f"TrainedTaskSettings.dtw is for labelled sequences; {self.preset} has none")


def run_config(config: TrainedTaskSettings, seed: int) -> RunConfig:
    """The training run of one seed.

    Errors: ConfigError for a field that the run does not have.
    """
    given = [*config.settings, f"train.seed={seed}"]
    preset = PRESETS[config.preset]()
    if config.folder is not None:
        if not hasattr(preset.data, "folder"):
            raise ConfigError(f"the data of {config.preset} come with a package and have no folder; leave it out")
        preset = replace(preset, data=replace(preset.data, folder=config.folder))  # type: ignore[call-arg]
    changed = assign(preset, given, types=run_types())
    return fit_model(changed, {text.split("=")[0].strip() for text in given}) if config.settings else changed


def run(config: TrainedTaskSettings, work: Work) -> Report:
    if config.dtw:
        require_aeon()
    open_task(run_config(config, config.seeds[0]))  # what is missing is told before anything is trained
    work.begin(len(config.seeds) + config.dtw)
    neighbour = work.part("dtw", partial(_dtw, config, work)) if config.dtw else None
    missing = [seed for seed in config.seeds if not work.is_done(f"seed-{seed}")]

    @cache
    def trained() -> dict[int, dict[str, Any]]:
        return _train_all(config, work, missing)

    records = {}
    for seed in config.seeds:
        records[seed] = work.part(f"seed-{seed}", partial(_part, config, work, seed, trained))
    return _report(config, work, records, neighbour)


def _train_all(config: TrainedTaskSettings, work: Work, seeds: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Trains these seeds side by side, or goes on with runs that were stopped; what each took.

    The time is that of all seeds together, for each the same.
    """
    runs = {f"run-{seed}": run_config(config, seed) for seed in seeds}
    started = any((work.folder / name / RUN_FILE).exists() for name in runs)
    begun = time.process_time()
    results, diverged, side_by_side = train_runs(runs, work.folder, work.training())
    cpu_seconds = time.process_time() - begun
    stopped = [result.signal for result in results.values() if result.signal is not None]
    if stopped:
        raise Stopped(stopped[0])
    took: dict[int, dict[str, Any]] = {}
    for seed, name in zip(seeds, runs):
        took[seed] = {
            "diverged": diverged.get(name),
            "cpu_seconds": cpu_seconds,  # of all threads; if resumed, of the last session
            "resumed": started,
            "side_by_side": len(seeds) if side_by_side else 1,
        }
        if name in results:
            took[seed] |= {"step": results[name].step, "training_seconds": results[name].seconds}
    return took


def _part(
    config: TrainedTaskSettings, work: Work, seed: int, trained: Callable[[], dict[int, dict[str, Any]]]
) -> dict[str, Any]:
    """A seed: trained, with all others when the first of them is asked for, and evaluated where validation was best.

    One that diverged is a result: "diverged" says where, and there is no evaluation.
    """
    took = trained()[seed]
    if is_diverged(took):
        return took
    record, checkpoint = _evaluate(config, work.folder / f"run-{seed}", seed)
    return {"evaluation": record, "checkpoint": checkpoint.name, **took}


@torch.no_grad()
def _evaluate(config: TrainedTaskSettings, folder: Path, seed: int) -> tuple[dict[str, Any], Path]:
    run = run_config(config, seed)
    checkpoint = resolve(folder, "best")
    model = load(checkpoint, device=choose_device(run.train.device))
    with evaluation_mode(model):
        record = open_task(run).evaluate(model, "test", max_items=config.max_rows)
    if not isinstance(record.get(config.measured), (int, float)):
        known = ", ".join(name for name, value in record.items() if isinstance(value, (int, float)))
        raise ConfigError(
            f"TrainedTaskSettings.measured={config.measured!r} is not in the evaluation; use one of {known}"
        )
    return record, checkpoint


def _dtw(config: TrainedTaskSettings, work: Work) -> dict[str, Any]:
    """All rows that the model is trained and validated on are neighbours."""
    data = run_config(config, config.seeds[0]).data
    assert isinstance(data, LabelledDataConfig)
    opened = open_labelled(data)
    if not opened.classes:
        raise ConfigError("TrainedTaskSettings.dtw: the targets of these data are numbers, not classes; leave it out")
    rows: dict[str, list[np.ndarray]] = {"train": [], "test": []}
    classes: dict[str, list[int]] = {"train": [], "test": []}
    for name, split in opened.splits.items():
        part = "test" if name == "test" else "train"
        n = len(split) if config.max_rows is None else min(len(split), config.max_rows)
        chosen = np.arange(n) * len(split) // n  # spread out: rows of a class may lie together
        rows[part] += [split.sequence(int(i)) for i in chosen]
        classes[part] += split.targets[chosen].tolist()
    found = nearest_neighbour(
        rows["train"],
        np.array(classes["train"]),
        rows["test"],
        np.array(classes["test"]),
        windows=config.dtw_windows,
        progress=work.progress,
    )
    return {**found, "train_rows": len(rows["train"]), "test_rows": len(rows["test"])}


def _report(
    config: TrainedTaskSettings, work: Work, records: Mapping[int, Any], neighbour: Mapping[str, Any] | None
) -> Report:
    evaluations = {
        seed: {**record["evaluation"], "split": "test"} for seed, record in records.items() if not is_diverged(record)
    }
    first = next(iter(evaluations), None)
    task = open_task(run_config(config, config.seeds[0]))
    ours = {seed: float(record[config.measured]) for seed, record in evaluations.items()}
    mean = statistics.mean(ours.values()) if len(ours) == len(records) else None
    rows = [
        (
            f"seed {seed}",
            f"{ours[seed]:.4f}" if seed in ours else "diverged",
            told(record, lambda r: f"{r['training_seconds']:,.0f}"),
            _cpu_seconds(record),
            told(record, lambda r: f"{r['step']:,}"),
        )
        for seed, record in records.items()
    ]
    if mean is not None and len(ours) > 1:
        rows.append(("mean (standard deviation)", f"{mean:.4f} ({statistics.stdev(ours.values()):.4f})", "", "", ""))
    bars = []
    if config.bar is not None:
        beyond = config.bar == 0
        bars.append(Bar(what=f"{config.measured} on the test split", ours=mean, bar=config.bar, beyond=beyond))
    if neighbour is not None:
        rows.append(("nearest neighbour, DTW", f"{neighbour['full']['accuracy']:.4f}", "", "", ""))
        if "windowed" in neighbour:
            windowed = neighbour["windowed"]
            within = f"DTW within {windowed['window']:.0%}" if windowed["window"] else "Euclidean"
            label = f"nearest neighbour, {within} (chosen)"
            rows.append((label, f"{windowed['accuracy']:.4f}", "", "", ""))
        if config.max_rows is None:
            best = max(found["accuracy"] for name, found in neighbour.items() if isinstance(found, dict))
            bars.append(Bar(what="mean accuracy beyond DTW's", ours=mean, bar=best, beyond=True))
    summary = Table(f"{config.preset}, test split", ("", config.measured, "training, s", "of CPU, s", "steps"), rows)
    tables, plots = [], []
    if first is not None:
        shown = {**evaluations[first], "checkpoint": f"run-{first}, {records[first]['checkpoint']}"}
        tables = [table._replace(title=f"seed {first}: {table.title}") for table in task.tables(shown)]
        if task.plot_of is not None:
            plots.append(Plot(config.preset, task.plot_of, partial(_plot, config, work, first, shown)))
    n_together = max(record.get("side_by_side", 1) for record in records.values())
    together = f" {n_together} of them were trained side by side: times are of all together." if n_together > 1 else ""
    return Report(
        title=f"{config.preset}: a model trained and tested",
        setting=(
            f"The preset {config.preset!r} of statewise train"
            f"{' with ' + ', '.join(config.settings) if config.settings else ''}; of each run the checkpoint that is "
            f"best on the validation split, tested once. All seeds have the same splits.{together}"
        ),
        tables=[summary, *tables],
        bars=bars,
        differences=NOTES.get(config.preset, ()),
        figures={
            "measured": {str(seed): ours.get(seed) for seed in config.seeds},
            "diverged": {str(seed): record["diverged"] for seed, record in records.items() if is_diverged(record)},
            "mean": mean,
            "cpu_seconds": {str(seed): record.get("cpu_seconds") for seed, record in records.items()},
            "evaluations": evaluations,
            "nearest_neighbour": neighbour,
        },
        plots=plots,
    )


def _cpu_seconds(record: Mapping[str, Any]) -> str:
    """Of the process and all its threads while it trained; "-" for a part that was measured before this was."""
    if "cpu_seconds" not in record:
        return "-"
    return f"{record['cpu_seconds']:,.0f}{' (last session)' if record['resumed'] else ''}"


def _plot(config: TrainedTaskSettings, work: Work, seed: int, record: dict[str, Any], path: Path) -> None:
    run = run_config(config, seed)
    model = load(resolve(work.folder / f"run-{seed}", "best"), device=choose_device(run.train.device))
    with evaluation_mode(model), torch.no_grad():
        open_task(run).plot(path, model=model, split="test", record=record)


def _reproduction(summary: str, duration: str, full: TrainedTaskSettings) -> Reproduction:
    few = ["train.steps=4", "train.epochs=null", "train.minutes=null", "train.evaluate_items=16"]
    if isinstance(PRESETS[full.preset]().data, LabelledDataConfig):
        few.append("data.max_length=128")
    quick = replace(full, settings=tuple(few), seeds=full.seeds[:1], bar=None, max_rows=16)
    return Reproduction(summary=summary, duration=duration, full=lambda: full, quick=lambda: quick, run=run)


REPRODUCTIONS = {
    "digits": _reproduction(
        "scikit-learn's digits, pixel by pixel", "a minute", TrainedTaskSettings(preset="digits", bar=0.97)
    ),
    "acsf1": _reproduction(
        "the power use of appliances (ACSF1), three seeds, beside DTW",
        "15 minutes",
        TrainedTaskSettings(preset="acsf1", seeds=(0, 1, 2), dtw=True),
    ),
    "spoken-digits": _reproduction(
        "spoken digits from raw waveforms", "20 minutes", TrainedTaskSettings(preset="spoken-digits", bar=0.95)
    ),
    "fashion-mnist": _reproduction(
        "Fashion-MNIST, pixel by pixel", "30 minutes", TrainedTaskSettings(preset="fashion-mnist", bar=0.85)
    ),
    "co2": _reproduction(
        "a year of CO2 at Mauna Loa, beside seasonal-naive",
        "a minute",
        TrainedTaskSettings(preset="co2", measured="skill", bar=0.0),
    ),
}
