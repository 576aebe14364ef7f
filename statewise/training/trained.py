"""What training leaves, in Python: the model, its answers, its scores."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch

from statewise.checkpoints import load, resolve
from statewise.models.base import Model
from statewise.predict.predictor import Predictor, predictor
from statewise.training.course import TrainResult
from statewise.training.metrics import read_metrics
from statewise.training.run_folder import METRICS_FILE, read_run
from statewise.training.same_data import open_trained


@dataclass(frozen=True, kw_only=True)
class Trained(TrainResult):
    """A run that has ended, as :func:`statewise.train` gives it; everything is read from its folder when you use it.

    folder:     of the run: ``statewise evaluate``, ``predict`` and ``train --resume`` take it
    checkpoint: the last one; ``model`` is the one that is best on the validation split
    """

    @classmethod
    def of(cls, result: TrainResult) -> Trained:
        return cls(**{field.name: getattr(result, field.name) for field in fields(result)})

    @cached_property
    def model(self) -> Model:
        """The best checkpoint's, in evaluation mode; it takes raw data."""
        return load(self.folder)

    @cached_property
    def predictor(self) -> Predictor:
        """The best checkpoint, ready for ``predict``, ``embed`` and ``stream``."""
        return predictor(self.folder)

    def predict(self, x: Any, **options: Any) -> Any:
        """As :meth:`statewise.predict.Predictor.predict`: for raw data, classes with probabilities, numbers, ..."""
        return self.predictor.predict(x, **options)

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: of kind "train" and "evaluation"."""
        return read_metrics(self.folder / METRICS_FILE)

    def evaluate(self, split: str = "test", *, max_items: int | None = None, **options: Any) -> dict[str, Any]:
        """The scores of the best checkpoint on a split of the run's data, as ``statewise evaluate`` gives them.

        split:   "train", "validation" or "test"; of labelled rows also "all"
        options: those of the task, see ``Task.evaluate_options``
        Errors:  DataError if there is no such split, or the data have gone or changed; ConfigError for another name.
        """
        run = replace(read_run(self.folder), model=self.model.config)
        task = open_trained(run, self.folder, resolve(self.folder))
        with torch.no_grad():
            return task.evaluate(self.model, split, max_items=max_items, **options)
