"""What of the Long Range Arena is run, and the training run of each model on each task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Annotated, Literal, NamedTuple

import torch

from statewise.configuration import assign
from statewise.configuration.types import AtLeastTwo, Count, Depth, Distinct, Limit, OneOf, Positive, Seed, Width
from statewise.data.long_range.config import TASKS as DATA
from statewise.errors import ConfigError
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.reproduce.lra.published import (
    Setting,
    model_config,
    published_run,
    published_training,
    setting_of,
)
from statewise.reproduce.settings import Settings
from statewise.training.config import BudgetConfig, Device, RunConfig
from statewise.training.tasks import run_types

MODELS = {"s4": "S4", "s4d": "S4D-LegS", "h3": "H3", "mamba2": "Mamba-2", "transformer": "Transformer"}

OURS = ("mamba2", "transformer")  # whose rate, and a clipping of gradients at 1, are ours


@dataclass(frozen=True, kw_only=True)
class LraSettings(Settings):
    """models:  of "s4", "s4d", "h3", "mamba2", "transformer"
    tasks:   as ``LongRangeDataConfig`` names them: "listops", "text", "retrieval", "image", "pathfinder" and "path-x"
             from their official files in ``folder``; "listops-gen", "pathfinder-gen" and "path-x-gen", drawn here;
             "text-folder" and "retrieval-folder" from documents in ``folder``
    folder:  that the official files lie in, each task's own folder in it
    minutes, steps: of training, whichever is reached first; both null: the published number of steps
    clock:   what counts the minutes: "wall", or "processor", the time that a run had on the cores, for runs that share
             them with other work
    d_model, n_layers, d_state, batch_size, lr: null: as published
    n_heads: of the Transformer's attention; transformer_lr: its rate, and that of Mamba-2
    bidirectional: every model reads in both directions; false: every one from the first step to the last alone
    evaluations:    looks at the validation split on the way, of ``evaluate_items`` rows each (null: all)
    test_rows: of each test split so many rows are read, which lie in a random order; null: all
    seeds:   one run each
    settings: further fields of all runs, as "train.optimizer.weight_decay=0", or of those on one task, as
             "listops-gen:data.n_train=1000"
    workers: processes that train side by side, each with its share of the cores
    device:  "auto", "cpu" or "cuda"
    """

    models: Distinct[Annotated[str, OneOf(MODELS)]] = ("s4d", "transformer")
    tasks: Distinct[Annotated[str, OneOf(DATA)]] = ("listops-gen", "image")
    folder: str | None = None
    minutes: Limit | None = 25.0
    steps: Count | None = None
    clock: Literal["wall", "processor"] = "wall"
    d_model: Width | None = 64
    n_layers: Depth | None = 4
    d_state: Width | None = None
    batch_size: Count | None = 16
    lr: Positive | None = None
    n_heads: Count = 4
    transformer_lr: Positive = 1e-3
    bidirectional: bool = True
    evaluations: Count = 6
    evaluate_items: AtLeastTwo | None = 500
    test_rows: AtLeastTwo | None = None
    seeds: Distinct[Seed] = (0,)
    settings: tuple[str, ...] = ()
    workers: Count = 2
    device: Device = "auto"

    def check(self) -> None:
        for setting in self.settings:
            task, known = _task_of(setting), f"which is not a task; use one of {', '.join(DATA)}"
            self.require(not task or task in DATA, f"settings: {setting!r} is for {task!r}, {known}")
        for model, task in product(self.models, self.tasks):  # refuses what no run could have
            run = run_config(self, model, task, self.seeds[0])
            if isinstance(run.model, SequenceModelConfig):
                _require_buildable(run.model)

    def cells(self) -> Iterator[Cell]:
        for task in self.tasks:
            yield from (Cell(model, task, seed) for model in self.models for seed in self.seeds)

    def scaled(self, model: str, task: str) -> Setting:
        """The published setting with the sizes that were given."""
        given = {name: getattr(self, name) for name in ("d_model", "n_layers", "d_state", "batch_size")}
        given["lr"] = self.transformer_lr if model in OURS else self.lr
        given = {name: value for name, value in given.items() if value is not None}
        setting = replace(setting_of(model, task), **given)
        if setting.n_systems is not None and setting.d_model % setting.n_systems:
            setting = replace(setting, n_systems=1)
        return setting


class Cell(NamedTuple):
    model: str
    task: str
    seed: int

    @property
    def part(self) -> str:
        return f"{self.task}-{self.model}-{self.seed}"


def run_config(config: LraSettings, model: str, task: str, seed: int) -> RunConfig:
    """The training run of a model on a task. What a model of documents reads is only known when the data are opened:
    :func:`fitted`.

    Errors:  ConfigError for what no run could have.
    """
    setting = config.scaled(model, task)
    train = published_training(setting)
    budget, reporting = train.budget, replace(train.reporting, evaluate_items=config.evaluate_items)
    if (config.minutes, config.steps) != (None, None):
        every = None if config.steps is None else max(1, config.steps // config.evaluations)
        minutes = None if config.minutes is None else config.minutes / config.evaluations
        budget = BudgetConfig(minutes=config.minutes, steps=config.steps, clock=config.clock)
        reporting = replace(reporting, evaluate_every=every, evaluate_minutes=minutes, log_every=20)
    clip_norm = 1.0 if model in OURS else None
    run = replace(
        published_run(model, task, None if task.endswith("-gen") else config.folder),
        model=model_config(model, task, setting, n_heads=config.n_heads, bidirectional=config.bidirectional),
        train=replace(
            train,
            budget=budget,
            optimizer=replace(train.optimizer, clip_norm=clip_norm),
            reporting=replace(reporting, save_minutes=5.0, keep_last=1),
            seed=seed,
            device=config.device,
        ),
    )
    given = [setting.removeprefix(f"{task}:") for setting in config.settings if _task_of(setting) in ("", task)]
    try:
        return assign(run, given, types=run_types())
    except ConfigError as error:
        if not given:
            raise
        raise ConfigError(
            f"LraSettings.settings, of the task {task!r}: {error}; a setting for one task begins with its name, "
            'as in "listops-gen:data.n_train=1000"'
        ) from error


def _task_of(setting: str) -> str:
    """The task that a setting is for: "" for all."""
    name, colon, _ = setting.partition("=")[0].partition(":")
    return name if colon else ""


@cache
def _require_buildable(config: SequenceModelConfig) -> None:
    """Builds each different layer once, without memory, to refuse what only that refuses."""
    layers = []
    for layer in dict.fromkeys(config.layers):
        if isinstance(layer, BlockConfig) and isinstance(layer.mixer, (S4Config, S4DConfig)):
            layer = replace(layer, mixer=replace(layer.mixer, n_systems=1))  # many take seconds
        layers.append(layer)
    with torch.device("meta"):
        replace(config, layers=tuple(layers)).build()
