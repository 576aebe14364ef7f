"""Classification of sequences, or of their steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from statewise.data.labelled_batches import LabelledBatch
from statewise.data.memory_tasks import IGNORED
from statewise.evaluate.labelled.classification import (
    cross_entropy,
    evaluate_classifier,
    f1_scores,
)
from statewise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from statewise.plots.confusion import MAX_SHOWN, draw_confusion
from statewise.plots.style import figure
from statewise.training.tasks.base import Table, rows_of
from statewise.training.tasks.sequences import SequenceTask


class ClassificationTask(SequenceTask[SequenceClassifier]):
    """Cross-entropy of the classes; accuracy says which checkpoint is best."""

    models = (SequenceClassifierConfig,)
    metric = "accuracy"
    higher_is_better = True
    progress_line = "loss {loss:.3f}"
    evaluation_line = "loss {loss:.4f}, accuracy {accuracy:.2%}, macro F1 {macro_f1:.4f}"
    plot_of = "the confusion matrix"

    def loss(self, model: SequenceClassifier, batch: LabelledBatch, state: Any) -> tuple[Tensor, Any]:
        """The mean cross-entropy in nats."""
        logits, state = model(batch.inputs, state, lengths=batch.lengths)
        return cross_entropy(logits, batch.targets), state

    def n_targets(self, batch: LabelledBatch) -> int:
        return int((batch.targets != IGNORED).sum())

    def evaluate(
        self, model: SequenceClassifier, split: str, *, max_items: int | None = None, **options: Any
    ) -> dict[str, Any]:
        result = evaluate_classifier(
            model, self.data.split(split), batch_size=self.run.train.batch_size, max_sequences=max_items
        )
        return {
            "loss": result.loss,
            "accuracy": result.accuracy,
            "macro_f1": result.macro_f1,
            "sequences": result.n_sequences,
            "predictions": result.n_predictions,
            "seconds": result.seconds,
            "classes": list(self.data.classes),
            "confusion": result.confusion.tolist(),
        }

    def tables(self, record: Mapping[str, Any]) -> list[Table]:
        """The figures, and precision, recall and F1 of each class; where there are few, the confusion matrix."""
        confusion, classes = np.array(record["confusion"]), record["classes"]
        rows = [
            ("accuracy", f"{record['accuracy']:.2%}"),
            ("macro F1", f"{record['macro_f1']:.4f}"),
            ("loss", f"{record['loss']:.4f}"),
        ]
        right, true, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
        by_class = [
            (name, *(f"{x:.3f}" if np.isfinite(x) else "" for x in scores), f"{n:,}")
            for name, *scores, n in zip(
                classes, _ratio(right, predicted), _ratio(right, true), f1_scores(confusion), true
            )
        ]
        notes = (f"{record['sequences']:,} sequences in {record['seconds']:.1f} s by {record['checkpoint']}",)
        tables = [
            Table(rows_of(record), ("", ""), rows, notes),
            Table("by class", ("class", "precision", "recall", "F1", "n"), by_class),
        ]
        if len(classes) <= MAX_SHOWN:
            cells = [(name, *(f"{n:,}" if n else "" for n in row)) for name, row in zip(classes, confusion)]
            tables.append(Table("true class (rows), predicted (columns)", ("", *classes), cells))
        return tables

    def plot(self, path: Path, *, model: SequenceClassifier, split: str, record: Mapping[str, Any]) -> None:
        confusion, classes = np.array(record["confusion"]), record["classes"]
        size = 2.5 + 0.45 * min(len(classes), MAX_SHOWN)
        with figure(path, size + 1, size) as drawn:
            draw_confusion(drawn, confusion, classes, title=f"{rows_of(record)}: accuracy {record['accuracy']:.2%}")


def _ratio(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """NaN where there is nothing."""
    return np.where(whole > 0, part / np.maximum(whole, 1), np.nan)
