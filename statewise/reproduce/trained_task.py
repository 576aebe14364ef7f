"""Trained models on real data: a preset, its seeds, and how well it does on the rows held out for the test."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch

from statewise.checkpoints import resolve
from statewise.configuration import assign
from statewise.configuration.types import AtLeastTwo, Distinct, Finite, NonEmpty, OneOf, Ratio, Seed
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.errors import ConfigError
from statewise.models.evaluation_mode import evaluation_mode
from statewise.reproduce.claim import Claim
from statewise.reproduce.nearest_neighbour import nearest_neighbour, require_aeon
from statewise.reproduce.outcomes import LOST
from statewise.reproduce.page import told
from statewise.reproduce.progress import PartReporter
from statewise.reproduce.report import Bar, Plot, Report
from statewise.reproduce.settings import Settings
from statewise.reproduce.training import Trial, is_diverged, load_checkpoint, train_runs
from statewise.reproduce.work import Job, Work
from statewise.training.config import RunConfig
from statewise.training.presets import PRESETS, fit_model
from statewise.training.report import Reporter
from statewise.training.run_folder import RUN_FILE
from statewise.training.tasks import open_task, run_types

# Published figures that a reader may look for, and why they are not beside ours.
NOTES = {
    "digits": "There is no published figure for these 8 x 8 digits as sequences. S4's 99.63 % (arXiv:2111.00396) is of "
    "sequential MNIST, 28 x 28 and 60,000 images for training.",
    "acsf1": "DTW is measured here, on the rows that the model has for training and validation together.",
    "spoken-digits": "There is no published figure for these recordings and this split. S4's 98.32 % "
    "(arXiv:2111.00396) is of SC10, ten of Google's speech commands at 16 kHz.",
    "fashion-mnist": "There is no published figure of S4 for it. S4's 99.63 % (arXiv:2111.00396) is of sequential "
    "MNIST, which is easier.",
    "co2": "There is no published figure for this series; the forecasts beside it are made here, without a model.",
}


BLANK = {"training_seconds": "", "cpu": "", "step": ""}


@dataclass(frozen=True, kw_only=True)
class TrainedTaskSettings(Settings):
    """preset:  of ``statewise train``; settings: fields of that run to set, as "train.budget.steps=100"
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
    dtw_windows: NonEmpty[Ratio] = (0.0, 0.01, 0.02, 0.03, 0.05, 0.1)
    max_rows: AtLeastTwo | None = None

    def check(self) -> None:
        labelled = isinstance(PRESETS[self.preset]().data, LabelledDataConfig)
        self.require(labelled or not self.dtw, f"dtw is for labelled sequences; {self.preset} has none")


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


class Found(NamedTuple):
    """records: of each seed; neighbour: of DTW, if it was asked for; folder: of the runs"""

    records: Mapping[int, Trial]
    neighbour: Mapping[str, Any] | None
    folder: Path


def measure(config: TrainedTaskSettings, work: Work) -> Found:
    if config.dtw:
        require_aeon()
    open_task(run_config(config, config.seeds[0]))  # what is missing is told before anything is trained
    work.begin(len(config.seeds) + config.dtw)
    neighbour = work.parts({"dtw": Job(measure_dtw, (config,))})["dtw"] if config.dtw else None
    missing = [seed for seed in config.seeds if not work.is_done(f"seed-{seed}")]

    @cache
    def trained() -> dict[int, dict[str, Any]]:
        return _train_all(config, work, missing)

    records = {seed: work.part(f"seed-{seed}", partial(_part, config, work, seed, trained)) for seed in config.seeds}
    return Found(records, neighbour, work.folder)


def _train_all(config: TrainedTaskSettings, work: Work, seeds: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Trains these seeds, as many at once as cores, or continues runs that were stopped; what each took."""
    runs = {f"run-{seed}": run_config(config, seed) for seed in seeds}
    started = {name: (work.folder / name / RUN_FILE).exists() for name in runs}
    results, diverged, cpu_seconds = train_runs(runs, work.folder, PartReporter(work.watcher, "training"))
    took: dict[int, dict[str, Any]] = {}
    for seed, name in zip(seeds, runs):
        took[seed] = {"diverged": diverged.get(name), "resumed": started[name]}
        if name in cpu_seconds:  # of all threads; if resumed, of the last session
            took[seed]["cpu_seconds"] = cpu_seconds[name]
        if name in results:
            took[seed] |= {"step": results[name].step, "training_seconds": results[name].seconds}
    return took


def _part(config: TrainedTaskSettings, work: Work, seed: int, trained: Callable[[], dict[int, Any]]) -> dict[str, Any]:
    """A seed: trained, with all others when the first of them is asked for, and evaluated where validation was best.

    One that diverged is a result: "diverged" says where, and there is no evaluation.
    """
    took: dict[str, Any] = trained()[seed]
    if is_diverged(took):
        return took
    run, folder = run_config(config, seed), work.folder / f"run-{seed}"
    model = load_checkpoint(run, folder)
    with evaluation_mode(model), torch.no_grad():
        record = open_task(run).evaluate(model, "test", max_items=config.max_rows)
    known = ", ".join(name for name, value in record.items() if isinstance(value, (int, float)))
    config.require(
        config.measured in known.split(", "),
        f"measured={config.measured!r} is not a number of the evaluation; use one of {known}",
    )
    return {"evaluation": record, "checkpoint": resolve(folder, "best").name, **took}


def measure_dtw(config: TrainedTaskSettings, reporter: Reporter) -> dict[str, Any]:
    """All rows that the model is trained and validated on are neighbours."""
    opened = open_labelled(cast(LabelledDataConfig, run_config(config, config.seeds[0]).data))
    config.require(bool(opened.classes), "dtw: the targets of these data are numbers, not classes; leave it out")
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
        progress=lambda done, total: reporter.progress(done / max(total, 1), {}),
    )
    return {**found, "train_rows": len(rows["train"]), "test_rows": len(rows["test"])}


def report(config: TrainedTaskSettings, found: Found) -> Report:
    records, neighbour, _ = found
    whole = {seed: record for seed, record in records.items() if not is_diverged(record)}
    evaluations = {seed: {**record["evaluation"], "split": "test"} for seed, record in whole.items()}
    ours = {seed: float(record[config.measured]) for seed, record in evaluations.items()}
    mean = statistics.mean(ours.values()) if len(ours) == len(records) else None

    rows = []
    for seed, record in records.items():
        last = " (last session)" if record.get("resumed") else ""
        row = {"name": f"seed {seed}", "ours": ours.get(seed, LOST), "training_seconds": None, "step": None, **record}
        # A part from before this was measured has none
        rows.append({**row, "cpu": f"{record['cpu_seconds']:,.0f}{last}" if "cpu_seconds" in record else None})
    others: dict[str, str] = {}
    if mean is not None and len(ours) > 1:
        others["mean (standard deviation)"] = f"{mean:.4f} ({statistics.stdev(ours.values()):.4f})"
    bars = []
    if config.bar is not None:
        what = f"{config.measured} on the test split"
        bars.append(Bar(what=what, ours=mean, bar=config.bar, beyond=config.bar == 0))
    if neighbour is not None:
        others["nearest neighbour, DTW"] = f"{neighbour['full']['accuracy']:.4f}"
        if "windowed" in neighbour:
            window = neighbour["windowed"]["window"]
            within = f"DTW within {window:.0%}" if window else "Euclidean"
            others[f"nearest neighbour, {within} (chosen)"] = f"{neighbour['windowed']['accuracy']:.4f}"
        if config.max_rows is None:
            best = max(part["accuracy"] for part in neighbour.values() if isinstance(part, dict))
            bars.append(Bar(what="mean accuracy beyond DTW's", ours=mean, bar=best, beyond=True))
    rows += [{"name": name, "ours": text, **BLANK} for name, text in others.items()]
    tables, plots, first = [], [], next(iter(evaluations), None)
    if first is not None:
        task = open_task(run_config(config, first))
        shown = {**evaluations[first], "checkpoint": f"run-{first}, {records[first]['checkpoint']}"}
        tables = [table._replace(title=f"seed {first}: {table.title}") for table in task.tables(shown)]
        if task.plot_of is not None:
            plots.append(Plot(config.preset, task.plot_of, partial(_plot, config, found.folder, first, shown)))
    n_together = max(record.get("side_by_side", 1) for record in records.values())
    return told(
        "trained-task",
        {
            **vars(config),
            "changed": " with " if config.settings else "",
            "together": n_together if n_together > 1 else "",
            "preset_note": NOTES.get(config.preset),
        },
        rows,
        tables=tables,
        bars=bars,
        figures={
            "measured": {seed: ours.get(seed) for seed in config.seeds},
            "diverged": {seed: record["diverged"] for seed, record in records.items() if is_diverged(record)},
            "mean": mean,
            "cpu_seconds": {seed: record.get("cpu_seconds") for seed, record in records.items()},
            "evaluations": evaluations,
            "nearest_neighbour": neighbour,
        },
        plots=plots,
    )


def _plot(config: TrainedTaskSettings, folder: Path, seed: int, record: dict[str, Any], path: Path) -> None:
    run = run_config(config, seed)
    model = load_checkpoint(run, folder / f"run-{seed}")
    with evaluation_mode(model), torch.no_grad():
        open_task(run).plot(path, model=model, split="test", record=record)


def _claim(preset: str, summary: str, duration: str, **fields: Any) -> Claim:
    few = [f"train.budget.{limit}" for limit in ("steps=4", "epochs=null", "minutes=null")]
    few += ["train.reporting.evaluate_items=16"]
    few += ["data.max_length=128"] if isinstance(PRESETS[preset]().data, LabelledDataConfig) else []
    return Claim(
        summary=summary,
        duration=duration,
        settings=partial(TrainedTaskSettings, preset=preset, **fields),
        quick=f"settings={json.dumps(few, separators=(',', ':'))} seeds=[0] bar=null max_rows=16",
        measure=measure,
        report=report,
    )


CLAIMS = {
    "digits": _claim("digits", "scikit-learn's digits, pixel by pixel", "a minute", bar=0.97),
    "acsf1": _claim(
        "acsf1", "the power use of appliances (ACSF1), three seeds, beside DTW", "15 minutes", seeds=(0, 1, 2), dtw=True
    ),
    "spoken-digits": _claim("spoken-digits", "spoken digits from raw waveforms", "20 minutes", bar=0.95),
    "fashion-mnist": _claim("fashion-mnist", "Fashion-MNIST, pixel by pixel", "30 minutes", bar=0.85),
    "co2": _claim("co2", "a year of CO2 at Mauna Loa, beside seasonal-naive", "a minute", measured="skill", bar=0.0),
}
