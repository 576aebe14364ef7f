"""Classification of pairs of sequences, such as two documents that may or may not belong together."""

from __future__ import annotations

from statewise.models.pair_classifier import PairClassifierConfig
from statewise.training.tasks.classification import ClassificationTask


class PairClassificationTask(ClassificationTask):
    """Cross-entropy of the classes of pairs; rows 2 i and 2 i + 1 of a batch are pair i. All else is classification's:
    a "sequence" of its records is a pair."""

    models = (PairClassifierConfig,)  # type: ignore[assignment]  # of which classification has one class
    reads_pairs = True
