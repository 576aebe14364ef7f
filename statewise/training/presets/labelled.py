"""Presets for your own labelled sequences: the run follows from how many there are, and how long they are."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from statewise.data.base import DataConfig
from statewise.data.labelled_config import OWN, LabelledDataConfig
from statewise.errors import ConfigError, DataError
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from statewise.training.tasks.sequences import SequenceData, fields_of, open_sequences

MOST_STEPS = 1024  # that the layers read of a row; longer ones are read in frames
EPOCHS = 30.0
UPDATES = (600, 3000)  # at least, at most
STEPS_READ = 10_000_000  # by the layers in the whole run
MINUTES = 10.0  # for machines that are slower than thought


@dataclass(frozen=True)
class Size:
    """The size of labelled sequences: training rows, the steps of the longest and the shortest row."""

    rows: int
    longest: int
    shortest: int

    @classmethod
    def of(cls, data: SequenceData) -> Size:
        lengths = data.split("train").lengths
        every = [data.split(name).lengths for name in ("train", "validation", "test") if _has(data, name)]
        return cls(len(lengths), int(lengths.max()), min(int(each.min()) for each in every))

    @property
    def frame_length(self) -> int:
        """A power of two, so that the layers read at most ``MOST_STEPS``; no longer than the shortest row."""
        frame = 1
        while self.longest > frame * MOST_STEPS and 2 * frame <= self.shortest:
            frame *= 2
        return frame

    @property
    def steps(self) -> int:
        """That the layers read of the longest row."""
        return self.longest // self.frame_length

    @property
    def batch_size(self) -> int:
        """A power of two from 4 to 32, so that an epoch has ten batches or more; no more than there are rows."""
        return min(int(2 ** np.clip(math.log2(max(self.rows, 1) / 10) // 1, 2, 5)), max(self.rows, 1))

    @property
    def dt_range(self) -> tuple[float, float]:
        """Time scales from about ten steps up to one and a half rows."""
        low = float(np.clip(0.64 / self.steps, 1e-3, 5e-2))
        return round(low, 4), max(0.1, round(10 * low, 3))

    @property
    def epochs(self) -> float:
        """As many as the budget of steps and updates has room for, with two digits."""
        per_epoch = max(1, self.rows // self.batch_size)
        updates = float(np.clip(EPOCHS * per_epoch, *UPDATES))
        updates = max(100.0, min(updates, STEPS_READ / (self.batch_size * self.steps)))
        return float(f"{updates / per_epoch:.2g}")


def labelled(data: DataConfig, given: Collection[str]) -> RunConfig:
    """A classifier or a regressor, whichever the targets need."""
    found = open_sequences(data)
    return _classifier(data, found) if found.classes else _regressor(data, found)


def classifier(data: DataConfig, given: Collection[str]) -> RunConfig:
    """Classes of sequences of numbers: three layers of S4D, the mean over the steps. Floating numbers that are whole
    are classes, too.

    Errors: ConfigError if the targets are numbers, or ``data.task`` says so; as the data are opened.
    """
    return _classifier(*_opened(data, "classification"))


def regressor(data: DataConfig, given: Collection[str]) -> RunConfig:
    """Numbers from sequences of numbers: the same layers; the targets' mean and deviation are the model's. Whole
    numbers are predicted as numbers, too.

    Errors: ConfigError if the targets are classes, or ``data.task`` says so; as the data are opened.
    """
    return _regressor(*_opened(data, "regression"))


def _opened(data: DataConfig, task: str) -> tuple[DataConfig, SequenceData]:
    """The data, with targets for the task if they can be that."""
    wanted = _with_task(data, task)
    try:
        found = open_sequences(wanted)
    except DataError:
        if wanted is data:
            raise
        found = open_sequences(data)  # to say what the targets are, if nothing else is wrong
        if bool(found.classes) == (task == "classification"):
            raise
    if found.classes and task == "regression":
        raise ConfigError('the targets are classes, not numbers; use the preset "classifier"')
    if not found.classes and task == "classification":
        raise ConfigError('the targets are numbers, not classes; use the preset "regressor"')
    return wanted, found


def _with_task(data: DataConfig, task: str) -> DataConfig:
    """Errors: ConfigError if ``data.task`` is another one."""
    if not isinstance(data, LabelledDataConfig) or data.source not in OWN or data.folder is None:
        return data
    if data.task == task or Path(data.folder).expanduser().is_dir():  # whose folders are classes
        return data
    if data.task is None:
        return replace(data, task=task)
    asked, other = ("regressor", "classifier") if task == "regression" else ("classifier", "regressor")
    raise ConfigError(
        f"--preset {asked} and --set data.task={data.task} contradict each other; leave one out, or use --preset "
        f"{other}"
    )


def _classifier(data: DataConfig, found: SequenceData) -> RunConfig:
    size = Size.of(found)
    model = SequenceClassifierConfig(**_layers(size), **fields_of(found))
    return RunConfig(model=model, data=data, train=train_config(size))


def _regressor(data: DataConfig, found: SequenceData) -> RunConfig:
    size = Size.of(found)
    model = SequenceRegressorConfig(**_layers(size), **fields_of(found), **target_fields(found))
    return RunConfig(model=model, data=data, train=train_config(size))


def target_fields(found: SequenceData) -> dict[str, Any]:
    """The mean and the deviation of the numbers to predict, as a regressor has them; {} where there are none."""
    if found.classes or found.each_step:
        return {}
    split = found.split("train")
    targets = np.asarray(getattr(split, "targets", np.empty(0)), np.float64)
    if not targets.size:  # drawn, not stored
        return {}
    deviation = targets.std(0)
    return {
        "target_mean": tuple(map(float, targets.mean(0))),
        "target_deviation": tuple(map(float, np.where(deviation > 0, deviation, 1.0))),
    }


def _layers(size: Size) -> dict[str, Any]:
    layer = BlockConfig(mixer=S4DConfig(d_state=32, dt_range=size.dt_range), norm="layer", dropout=0.1)
    return {"d_model": 64, "layers": (layer,) * 3, "frame_length": size.frame_length}


def train_config(size: Size, lr: float = 4e-3) -> TrainConfig:
    """So many epochs, ten looks at the validation split on the way."""
    looks = max(1, round(size.epochs * max(1, size.rows // size.batch_size) / 10))
    return TrainConfig(
        budget=BudgetConfig(epochs=size.epochs, minutes=MINUTES),
        optimizer=OptimizerConfig(lr=lr, dynamics_lr_max=1e-3, weight_decay=0.05),
        schedule=ScheduleConfig(warmup=0.05, min_ratio=0.01),
        reporting=ReportingConfig(evaluate_every=looks, evaluate_minutes=None, evaluate_items=2048, save_minutes=2.0),
        batch_size=size.batch_size,
        matmul="fast",
    )


def _has(data: SequenceData, name: str) -> bool:
    try:
        data.split(name)
    except DataError:  # its fraction is 0
        return False
    return True
