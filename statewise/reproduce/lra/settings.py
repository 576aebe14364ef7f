"""The settings of ``lra``: which models on which tasks, at which size, for how long."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Annotated

import torch

from statewise.configuration import Config, assign
from statewise.configuration.types import (
    AtLeastTwo,
    Count,
    Depth,
    Distinct,
    Limit,
    OneOf,
    Positive,
    Seed,
    Width,
)
from statewise.data.base import absolute
from statewise.data.long_range.config import TASKS as DATA
from statewise.errors import ConfigError
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.reproduce.lra.published import Setting
from statewise.reproduce.lra.runs import MODELS, arena_task, model_config, published_run, published_schedule, setting_of
from statewise.train.config import Device, RunConfig
from statewise.train.environment import choose_device
from statewise.train.presets import fit_model
from statewise.train.tasks import run_types


@dataclass(frozen=True, kw_only=True)
class LraSettings(Config):
    """models:  of "s4", "s4d", "h3", "transformer"
    tasks:   as ``LongRangeDataConfig`` names them: "listops", "text", "retrieval", "image", "pathfinder" and "path-x"
             from their official files in ``folder``; "listops-gen", "pathfinder-gen" and "path-x-gen", drawn here;
             "text-folder" and "retrieval-folder" from documents in ``folder``
    folder:  that the official files lie in, each task's own folder in it
    minutes, steps: of training, whichever is reached first; both null: the published number of steps
    d_model, n_layers, d_state, batch_size, lr: null: as published
    n_heads: of the Transformer's attention; transformer_lr: its rate
    evaluations:    looks at the validation split on the way, of ``evaluate_items`` rows each (null: all)
    seeds:   one run each
    settings: further fields of all runs, as "train.weight_decay=0", or of those on one task, as
             "listops-gen:data.n_train=1000"
    workers: processes that train side by side, each with its share of the cores
    device:  "auto", "cpu" or "cuda"
    """

    models: Distinct[Annotated[str, OneOf(MODELS)]] = ("s4d", "transformer")
    tasks: Distinct[Annotated[str, OneOf(DATA)]] = ("listops-gen", "image")
    folder: str | None = None
    minutes: Limit | None = 25.0
    steps: Count | None = None
    d_model: Width | None = 64
    n_layers: Depth | None = 4
    d_state: Width | None = None
    batch_size: Count | None = 16
    lr: Positive | None = None
    n_heads: Count = 4
    transformer_lr: Positive = 1e-3
    evaluations: Count = 6
    evaluate_items: AtLeastTwo | None = 500
    seeds: Distinct[Seed] = (0,)
    settings: tuple[str, ...] = ()
    workers: Count = 2
    device: Device = "auto"

    def __post_init__(self) -> None:
        choose_device(self.device)  # refuses what is not there before the folder is made
        if self.folder is not None:
            object.__setattr__(self, "folder", absolute(self.folder))
        for setting in self.settings:
            task = _task_of(setting)
            if task and task not in DATA:
                raise ConfigError(
                    f"LraSettings.settings: {setting!r} is for {task!r}, which is no task; use one of {', '.join(DATA)}"
                )
        for model in self.models:
            for task in self.tasks:  # refuses what no run could have
                run = run_config(self, model, task, self.seeds[0])
                if isinstance(run.model, SequenceModelConfig):
                    _require_buildable(run.model)

    def scaled(self, model: str, task: str) -> Setting:
        """The published setting with the sizes that were given."""
        given = {name: getattr(self, name) for name in ("d_model", "n_layers", "d_state", "batch_size")}
        given["lr"] = self.transformer_lr if model == "transformer" else self.lr
        setting = replace(
            setting_of(model, task), **{name: value for name, value in given.items() if value is not None}
        )
        if setting.n_systems is not None and setting.d_model % setting.n_systems:
            setting = replace(setting, n_systems=1)
        return setting


def run_config(config: LraSettings, model: str, task: str, seed: int) -> RunConfig:
    """The training run of a model on a task. What a model of documents reads is only known when the data are opened:
    :func:`fitted`.

    Errors:  ConfigError for what no run could have.
    """
    setting = config.scaled(model, task)
    budget = (config.minutes, config.steps)
    schedule = published_schedule(setting)
    if budget != (None, None):
        schedule = replace(
            schedule,
            minutes=config.minutes,
            steps=config.steps,
            evaluate_every=None if config.steps is None else max(1, config.steps // config.evaluations),
            evaluate_minutes=None if config.minutes is None else config.minutes / config.evaluations,
            log_every=20,
        )
    schedule = replace(
        schedule,
        seed=seed,
        evaluate_items=config.evaluate_items,
        save_minutes=5.0,
        keep_last=1,
        device=config.device,
        clip_norm=1.0 if model == "transformer" else None,
    )
    run = replace(
        published_run(model, task, None if task.endswith("-gen") else config.folder),
        model=model_config(model, task, setting, n_heads=config.n_heads),
        train=schedule,
    )
    given = [setting.removeprefix(f"{task}:") for setting in config.settings if _task_of(setting) in ("", task)]
    try:
        return assign(run, given, types=run_types())
    except ConfigError as error:
        if not given:
            raise
        raise ConfigError(
            f"LraSettings.settings, of the task {task!r}: {error}; what is for one task alone has its name in front, "
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


def require_folder(config: LraSettings) -> None:
    """Errors:  ConfigError without a folder for a task that reads files."""
    reading = [task for task in config.tasks if not task.endswith("-gen")]
    if reading and config.folder is None:
        raise ConfigError(
            f"LraSettings.tasks: {reading[0]!r} reads files; set folder (--data-dir) to where they lie, or leave the "
            'task out, as in tasks=["listops-gen"]'
        )


def fitted(run: RunConfig) -> RunConfig:
    """The run with the vocabulary and the classes of its data, where these hang on the documents."""
    task = run.data.task  # type: ignore[attr-defined]
    return fit_model(run) if arena_task(task) in ("text", "retrieval") else run


def quick() -> LraSettings:
    """All four models on short lists: a look at whether everything works, nothing to conclude."""
    return LraSettings(
        models=tuple(MODELS),
        tasks=("listops-gen",),
        minutes=0.3,
        d_model=32,
        n_layers=2,
        d_state=8,
        n_heads=2,
        evaluations=2,
        evaluate_items=64,
        workers=1,
        settings=(
            "listops-gen:data.min_length=20",
            "listops-gen:data.max_length=100",
            *(
                f"{task}:data.n_{split}={n}"
                for task, n_train in (("listops-gen", 4000), ("pathfinder-gen", 2000), ("path-x-gen", 500))
                for split, n in (("train", n_train), ("validation", 200), ("test", 200))
            ),
        ),
    )
