"""Missing data, irregular sampling and another sampling rate: trained on whole rows, asked on what is left of them."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import numpy as np

from statewise.configuration.types import AtLeastTwo, Distinct, OneOf, Seed, from_to
from statewise.data.labelled import LabelledDataConfig, open_labelled
from statewise.data.labelled_batches import Split
from statewise.errors import DivergedError
from statewise.evaluate.labelled.classification import as_read, evaluate_classifier
from statewise.mixers.rate import set_rate
from statewise.models.classifier import SequenceClassifier
from statewise.reproduce.baselines import ARMS, run_config
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.measure import n_parameters
from statewise.reproduce.outcomes import LOST
from statewise.reproduce.page import told
from statewise.reproduce.report import MARKED, Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.training import load_checkpoint, train_one
from statewise.reproduce.work import Job, Work
from statewise.training.config import RunConfig
from statewise.training.report import Reporter

ASKED = ("s4d", "lssl", "gru", "attention")
WITH_RATE = ("s4d", "lssl")
ONE_BY_ONE = ("acsf1", "digits", "fashion-mnist")  # whose models read a step at a time
Lost = Annotated[float, from_to(0.01, 0.99)]  # of a row
Alter = Callable[[np.ndarray, np.random.Generator], np.ndarray]  # (length, d_input) -> (some length, d_input)


@dataclass(frozen=True, kw_only=True)
class SamplingSettings(Settings):
    """preset:  of ``statewise train``: its data, schedule and, for S4D, its model
    arms:     of "s4d", "lssl", "gru", "attention", "tcn"
    missing:  the shares of the steps that are lost, each step by itself
    strides:  of every how many steps one is kept
    settings: fields of every run to set, as "train.budget.steps=100"
    folder:   where the data lie, for data that have a folder
    seeds:    one run each for every arm; they also draw what is lost
    max_rows: of the test split are read; None: all
    """

    preset: Annotated[str, OneOf(ONE_BY_ONE)] = "acsf1"
    arms: Distinct[Annotated[str, OneOf(ARMS)]] = ASKED
    missing: Distinct[Lost] = (0.1, 0.3, 0.5)
    strides: Distinct[AtLeastTwo] = (2, 4)
    settings: tuple[str, ...] = ()
    folder: str | None = None
    seeds: Distinct[Seed] = (0,)
    max_rows: AtLeastTwo | None = None


class Condition(NamedTuple):
    """What is left of the rows, and the rate that a model with one is given."""

    name: str
    alter: Alter
    rate: float = 1.0


def conditions(config: SamplingSettings) -> list[Condition]:
    """All of them, the rows as they are first."""
    found = [Condition("whole", lambda row, _: row)]
    for share in config.missing:
        found.append(Condition(f"{share:.0%} missing, the last value held", partial(_hold, share)))
    for share in config.missing:
        found.append(Condition(f"{share:.0%} left out", partial(_leave_out, share)))
        found.append(Condition(f"{share:.0%} left out, rate told", partial(_leave_out, share), 1 / (1 - share)))
    for stride in config.strides:
        found.append(Condition(f"one of {stride}", partial(_every, stride)))
        found.append(Condition(f"one of {stride}, rate told", partial(_every, stride), float(stride)))
    return found


def _kept(share: float, row: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Which steps of a row are not lost, of (length,); the first one never is."""
    kept = generator.random(len(row)) >= share
    kept[0] = True
    return kept


def _leave_out(share: float, row: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return row[_kept(share, row, generator)]


def _hold(share: float, row: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Each lost value is the last that was not lost."""
    kept = _kept(share, row, generator)
    return row[np.maximum.accumulate(np.where(kept, np.arange(len(row)), 0))]


def _every(stride: int, row: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return row[::stride]


class Altered:
    """Rows of a split, each of them altered once."""

    def __init__(self, split: Split, alter: Alter, seed: int) -> None:
        inputs = [split.read(np.array([i])) for i in range(len(split))]
        generator = np.random.default_rng(seed)
        self.rows = [alter(values[0, :n], generator) for (values, _), n in zip(inputs, split.lengths)]
        self.targets = np.concatenate([targets for _, targets in inputs])
        self.name, self.lengths = split.name, np.array([len(row) for row in self.rows], np.int64)

    def __len__(self) -> int:
        return len(self.rows)

    def read(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """inputs, right-padded with zeros, and targets."""
        padded = np.zeros((len(rows), self.lengths[rows].max(), self.rows[0].shape[1]), self.rows[0].dtype)
        for into, i in zip(padded, rows):
            into[: self.lengths[i]] = self.rows[i]
        return padded, self.targets[rows]


def trials(config: SamplingSettings, work: Work) -> dict[str, Job]:
    return {
        f"{arm}-{seed}": Job(train_and_ask, (config, arm, seed, str(work.folder / f"run-{arm}-{seed}")))
        for arm in config.arms
        for seed in config.seeds
    }


def train_and_ask(config: SamplingSettings, arm: str, seed: int, folder: str, reporter: Reporter) -> dict[str, Any]:
    """A trial: trained, or continued, and asked in every condition. One that diverged is a result."""
    run = run_config(config, arm, seed)
    try:
        train_one(run, Path(folder), reporter)
    except DivergedError as error:
        return {"diverged": error.what, "parameters": n_parameters(run.model)}
    return {"diverged": None, "parameters": n_parameters(run.model), "accuracy": ask(config, run, arm, seed, folder)}


def ask(config: SamplingSettings, run: RunConfig, arm: str, seed: int, folder: str) -> dict[str, float]:
    """The accuracy on the test split in each condition that there is for this arm."""
    model = cast(SequenceClassifier, load_checkpoint(run, Path(folder)))
    split = as_read(model.config, open_labelled(cast(LabelledDataConfig, run.data)).split("test"))
    found = {}
    for name, alter, rate in conditions(config):
        if rate != 1 and arm not in WITH_RATE:
            continue
        if arm in WITH_RATE:
            set_rate(model, rate)
        asked = Altered(split, alter, seed)
        result = evaluate_classifier(model, asked, batch_size=run.train.batch_size, max_sequences=config.max_rows)
        found[name] = result.accuracy
    return found


def report(config: SamplingSettings, found: Found) -> Report:
    parts = {arm: [found[f"{arm}-{seed}"] for seed in config.seeds] for arm in config.arms}

    def mean(arm: str, name: str) -> float | str | None:
        if any(part["diverged"] is not None for part in parts[arm]):
            return LOST
        each = [part["accuracy"].get(name) for part in parts[arm]]
        return None if None in each else statistics.fmean(each)

    rows = [
        {"name": condition.name, "accuracy": [mean(arm, condition.name) for arm in config.arms]}
        for condition in conditions(config)
    ]
    values = {**vars(config), "names": [ARMS[arm] for arm in config.arms], "n_seeds": len(config.seeds)}
    shares, strides = [0.0, *config.missing], [1, *config.strides]
    panels = [
        _panel(config, mean, "the last value held", shares, "{:.0%} missing, the last value held", "share missing"),
        _panel(config, mean, "left out", shares, "{:.0%} left out", "share missing"),
        _panel(config, mean, "one of several", strides, "one of {}", "stride"),
    ]
    picture = curves("sampling", "Accuracy on what is left of the rows", *panels, width=10.5, height=3.6, sharey=True)
    return told("sampling", values, rows, figures={"runs": found}, plots=[picture])


def _panel(
    config: SamplingSettings,
    mean: Callable[[str, str], float | str | None],
    title: str,
    x: list[Any],
    name: str,
    label: str,
) -> Panel:
    """A line for each arm, dashed with the rate told."""
    lines = []
    for i, arm in enumerate(config.arms):
        for told_rate, style in (("", "-"), (", rate told", "--")):
            y = [mean(arm, "whole"), *(mean(arm, name.format(at) + told_rate) for at in x[1:])]
            if all(isinstance(value, float) for value in y):
                drawn = {**MARKED, "color": f"C{i}", "linestyle": style}
                lines.append(Curve(x, cast(list[float], y), f"{ARMS[arm]}{told_rate}", drawn))
    return Panel(lines, title=title, x=label, y="test accuracy")


CLAIM = Claim(
    summary="missing data, irregular sampling and another sampling rate: S4D, LSSL, a GRU and attention",
    duration="an hour of one core for acsf1",
    settings=SamplingSettings,
    quick='preset=digits settings=["train.budget.steps=4","train.budget.epochs=null","data.max_length=16",'
    '"train.reporting.evaluate_items=16"] max_rows=16 missing=[0.5] strides=[2]',
    trials=trials,
    report=report,
)
