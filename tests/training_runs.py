"""A small run for the tests of training: a text, a model, and steps that take milliseconds."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from statewise.data.text import TextDataConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.training import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
    read_metrics,
)
from statewise.training.report import Reporter

TIMES = ("seconds", "tokens_per_second", "sequences_per_second")  # what two equal runs may differ in

GROUPS = {
    "budget": BudgetConfig,
    "optimizer": OptimizerConfig,
    "schedule": ScheduleConfig,
    "reporting": ReportingConfig,
}
GROUP_OF = {field.name: group for group, cls in GROUPS.items() for field in fields(cls)}


def train_config(**settings: Any) -> TrainConfig:
    """A TrainConfig from its fields and those of its groups, each by its own name."""
    grouped = _grouped(settings)
    return TrainConfig(**{name: GROUPS[name](**value) if name in GROUPS else value for name, value in grouped.items()})


def with_train(config: RunConfig, **settings: Any) -> RunConfig:
    """The run with these fields of its TrainConfig, or of the groups of that, set."""
    train = config.train
    changes = {
        name: replace(getattr(train, name), **value) if name in GROUPS else value
        for name, value in _grouped(settings).items()
    }
    return replace(config, train=replace(train, **changes))


def train_setting(config: TrainConfig, name: str) -> Any:
    return getattr(getattr(config, GROUP_OF[name]) if name in GROUP_OF else config, name)


def train_path(name: str) -> str:
    """Where a run has this field."""
    return f"train.{GROUP_OF[name]}.{name}" if name in GROUP_OF else f"train.{name}"


def _grouped(settings: dict[str, Any]) -> dict[str, Any]:
    grouped: dict[str, Any] = {}
    for name, value in settings.items():
        if name in GROUP_OF:
            grouped.setdefault(GROUP_OF[name], {})[name] = value
        else:
            grouped[name] = value
    return grouped


def write_text(folder: Path) -> Path:
    path = folder / "text.txt"
    path.write_text("".join(f"{i} squared is {i * i}; {'odd' if i % 2 else 'even'}\n" for i in range(1500)))
    return path


def small_model(dropout: float = 0.1, **changes: Any) -> LanguageModelConfig:
    layer = BlockConfig(mixer=Mamba2Config(d_state=8, d_head=8, chunk_length=16), dropout=dropout)
    return LanguageModelConfig(**{"vocab_size": 257, "d_model": 16, "layers": (layer, layer), **changes})


def small_run(folder: Path, *, model: LanguageModelConfig | None = None, **train: Any) -> RunConfig:
    """A run on a text in ``folder``; further arguments are those of :func:`train_config`."""
    text = folder / "text.txt"
    settings = {"length": 16, "batch_size": 2, "evaluate_items": 200, "log_every": 1, "save_minutes": None}
    if "steps" not in train and "minutes" not in train:
        settings["steps"] = 8
    return RunConfig(
        model=small_model() if model is None else model,
        data=TextDataConfig(source=str(text if text.exists() else write_text(folder))),
        train=train_config(**{**settings, **train}),
    )


def curve(folder: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The lines of a run's metrics without what depends on the clock."""
    lines = read_metrics(folder / "metrics.jsonl")
    return [{k: v for k, v in line.items() if k not in TIMES} for line in lines if kind in (None, line["kind"])]


def steps_of(folder: Path) -> list[int]:
    """The steps that the checkpoints of a run were saved at."""
    return sorted(int(path.name.removeprefix("step-")) for path in (folder / "checkpoints").iterdir())


def weights(run: Path, step: int) -> bytes:
    """The file of a run's checkpoint."""
    return (run / f"checkpoints/step-{step:08d}/model.safetensors").read_bytes()


class Recorder(Reporter):
    """Keeps all it hears."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.fractions: list[float] = []
        self.closed = False

    def event(self, record: Any) -> None:
        self.events.append(dict(record))

    def progress(self, fraction: float, record: Any) -> None:
        self.fractions.append(fraction)

    def close(self) -> None:
        self.closed = True
