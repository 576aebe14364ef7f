"""The smallest task that is no language model: points of a plane and the side of a line that they are on.

With everything that a task may have: fields of its own, a metric of which more is better, a picture, dropout.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from training_runs import train_config, with_train

from statewise.data.base import DataConfig, absolute
from statewise.errors import ConfigError, DataError, InputError
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.base import Model, ModelConfig
from statewise.models.block import Block, BlockConfig
from statewise.models.registry import CONFIG_TYPES
from statewise.plots.style import figure
from statewise.training import RunConfig
from statewise.training.presets import PRESETS
from statewise.training.tasks import TASKS, Task


@dataclass(frozen=True, kw_only=True)
class ToyConfig(ModelConfig):
    d_input: int = 2
    dropout: float = 0.1

    def build(self) -> Toy:
        return Toy(self)


class Toy(Model):
    """x (batch, length, d_input) -> one logit (batch,)."""

    config: ToyConfig

    def __init__(self, config: ToyConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Linear(config.d_input, 8)
        self.layer = BlockConfig(mixer=Mamba2Config(d_state=4, d_head=8), dropout=config.dropout).build(8)
        self.count = nn.BatchNorm1d(8)  # buffers, one of them of integers
        self.head = nn.Linear(8, 1)

    @property
    def blocks(self) -> list[Block]:
        return [self.layer]

    def reset_parameters(self) -> None:
        self.layer.reset_parameters()

    def initial_state(self, batch: int, **options: Any) -> Any:
        return self.layer.initial_state(batch, **options)

    def forward(self, x: Tensor, state: Any = None, **options: Any) -> tuple[Tensor, Any]:
        x, state = self.layer(self.embedding(x), state, **options)
        return self.head(self.count(x[:, -1])).squeeze(-1), state


@dataclass(frozen=True, kw_only=True)
class ToyDataConfig(DataConfig):
    source: str = "plane"
    folder: str | None = None
    n_points: int = 64
    validation: bool = True

    def with_absolute_paths(self) -> ToyDataConfig:
        return self if self.folder is None else replace(self, folder=absolute(self.folder))


class ToyBatch(NamedTuple):
    x: Tensor
    y: Tensor
    lengths: None = None  # a batch may have holes


class ToyBatches:
    def __init__(self, x: Tensor, y: Tensor, batch_size: int, seed: int) -> None:
        self.x, self.y, self.batch_size, self.seed = x, y, batch_size, seed
        self.steps_per_epoch = len(x) // batch_size

    def __getitem__(self, step: int) -> ToyBatch:
        epoch, within = divmod(step, self.steps_per_epoch)
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(1000 * self.seed + epoch))
        rows = order[within * self.batch_size : (within + 1) * self.batch_size]
        return ToyBatch(self.x[rows], self.y[rows])


class ToyTask(Task[Toy, ToyBatch]):
    models = (ToyConfig,)
    noun = "plane"
    metric = "accuracy"
    higher_is_better = True
    evaluation_line = "accuracy {accuracy:.1%}"
    plot_of = "the points"

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        assert isinstance(run.data, ToyDataConfig)
        self.data = run.data
        if run.data.source not in ("plane", "space"):
            raise DataError(f"data.source={run.data.source!r} is unknown; use plane or space")
        d_input = self.model_fields(run.data)["d_input"]
        if run.model.d_input != d_input:  # type: ignore[attr-defined]
            raise ConfigError(f"model.d_input has to be {d_input}")
        generator = torch.Generator().manual_seed(5)
        self.x = {
            name: torch.randn(run.data.n_points, 3, d_input, generator=generator)
            for name in ("train", "validation", "test")
            if run.data.validation or name != "validation"
        }
        self.y = {name: (x.sum((1, 2)) > 0).float() for name, x in self.x.items()}

    @classmethod
    def model_fields(cls, data: Any) -> Mapping[str, Any]:
        return {"d_input": 2 if data.source == "plane" else 3}

    @property
    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self.data.source, self.data.n_points)).encode()).hexdigest()

    def describe(self) -> str:
        return f"{self.data.n_points} points"

    def sizes(self) -> dict[str, int]:
        return {name: len(x) for name, x in self.x.items()}

    @cached_property
    def batches(self) -> ToyBatches:
        return ToyBatches(self.x["train"], self.y["train"], self.run.train.batch_size, self.run.train.seed)

    def loss(self, model: Toy, batch: ToyBatch, state: Any) -> tuple[Tensor, Any]:
        logits, state = model(batch.x, state)
        return F.binary_cross_entropy_with_logits(logits.float(), batch.y), state

    def evaluate(self, model: Toy, split: str, *, max_items: int | None = None, **options: Any) -> dict[str, Any]:
        if split not in self.x:
            raise ConfigError(f"there is no split {split!r}; use one of {list(self.x)}")
        torch.rand(3)  # rude, and must not change the run
        assert not model.training
        assert not torch.is_grad_enabled()
        x, y = self.x[split][:max_items], self.y[split][:max_items]
        logits, _ = model(x)
        if not torch.isfinite(logits).all():
            raise InputError("the model's predictions are not finite")
        right = (logits > 0) == (y > 0)
        return {
            "loss": float(F.binary_cross_entropy_with_logits(logits, y)),
            "accuracy": float(right.float().mean()),
            "sequences": len(x),
            "seconds": 1e6,
            "right": right.int().tolist(),
        }

    def plot(self, path: Path, *, model: Toy, split: str, record: Mapping[str, Any]) -> None:
        with figure(path) as drawn:
            drawn.subplots().plot(record["right"])


def toy_preset() -> RunConfig:
    train = train_config(steps=8, batch_size=8, lr=1e-2, log_every=1, save_minutes=None)
    return RunConfig(model=ToyConfig(), data=ToyDataConfig(), train=train)


def toy_run(**train: Any) -> RunConfig:
    run = toy_preset()
    return with_train(run, **train)


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toy's names are known for the length of a test."""
    monkeypatch.setitem(CONFIG_TYPES, "ToyConfig", ToyConfig)
    monkeypatch.setitem(TASKS, ToyDataConfig, (ToyTask,))
    monkeypatch.setitem(PRESETS, "toy", toy_preset)
