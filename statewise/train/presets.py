"""Whole runs by name: a model, the data, and how it is trained on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection

from statewise.configuration import assign
from statewise.data.text import TextDataConfig
from statewise.models import presets as models
from statewise.train.config import RunConfig, TrainConfig
from statewise.train.tasks import run_types, task_type


def demo() -> RunConfig:
    """The hybrid of `make demo`: two and a half minutes on the text of the standard library."""
    train = TrainConfig(
        minutes=2.5,
        batch_size=8,
        length=256,
        lr=4e-3,
        lr_min_ratio=0.02,
        matmul="fast",
        evaluate_minutes=None,
        save_minutes=None,
        log_every=25,
    )
    return RunConfig(model=models.demo(), data=TextDataConfig(), train=train)


def tiny() -> RunConfig:
    """Fifty steps of a model of twenty thousand parameters: seconds."""
    train = TrainConfig(steps=50, batch_size=4, length=128, lr=1e-2, evaluate_items=8192)
    return RunConfig(model=models.tiny(), data=TextDataConfig(), train=train)


PRESETS: dict[str, Callable[[], RunConfig]] = {"demo": demo, "tiny": tiny}


def fit_model(run: RunConfig, given: Collection[str] = ()) -> RunConfig:
    """The run with those fields of the model that follow from its data: what a preset needs for data not its own.

    given: paths that were set by hand, as "model.vocab_size"; they stay, and of a "model" that was set whole all does.
    """
    task = task_type(run.data)
    if "model" in given or not isinstance(run.model, task.models):
        return run
    fields = {f"model.{name}": value for name, value in task.model_fields(run.data).items()}
    assignments = [f"{path}={json.dumps(value)}" for path, value in fields.items() if path not in given]
    return assign(run, assignments, types=run_types())
