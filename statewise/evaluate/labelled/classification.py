"""How well a model classifies sequences, or their steps: loss, accuracy, macro F1, and the confusion matrix."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.data.labelled_batches import LabelledBatch, Split, batches_in_order
from statewise.data.memory_tasks import IGNORED
from statewise.data.progress import Progress
from statewise.data.sequences import LabelledSplit
from statewise.errors import InputError, NotFiniteError, require_least
from statewise.models.classifier import SequenceClassifier
from statewise.models.encoder import SequenceModel, SequenceModelConfig
from statewise.models.evaluation_mode import evaluation_mode

LONG_ROW = 1 << 15  # steps; longer rows are read in pieces
PIECE = 1 << 13


@dataclass(frozen=True, kw_only=True)
class Classification:
    """What :func:`evaluate_classifier` found.

    n_sequences, n_predictions: rows read, and targets scored (as many, or one for each step)
    loss:       mean cross-entropy in nats
    accuracy:   the share of right predictions
    macro_f1:   mean F1 of the classes that are a target or a prediction (see :func:`f1_scores`)
    confusion:  (n_classes, n_classes) int64: how often the row's class was predicted as the column's
    seconds:    wall time
    """

    n_sequences: int
    n_predictions: int
    loss: float
    accuracy: float
    macro_f1: float
    confusion: np.ndarray
    seconds: float


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats, in float32 or wider; targets of -100 do not count.

    Shapes:  logits: (..., n_classes)   targets: (...) int64   ->   ()
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten(), ignore_index=IGNORED)


def evaluate_classifier(
    model: SequenceClassifier,
    split: Split,
    *,
    batch_size: int = 64,
    max_sequences: int | None = None,
    progress: Progress | None = None,
) -> Classification:
    """Classify every row of a split, or the first ``max_sequences``; ``progress(done, total)`` is called on the way.

    Rows of similar length share a batch; which rows share one only changes the speed. Rows of more than 32,768 steps
    are read in pieces, if the model has a state.

    Errors:  InputError for logits that do not fit the targets, and for max_sequences below 1; NotFiniteError.
    """
    n_classes = model.config.n_classes
    confusion = np.zeros((n_classes, n_classes), np.int64)
    n_rows = rows_to_read(split, max_sequences)
    nats, done, begin = 0.0, 0, time.perf_counter()
    with evaluation_mode(model), torch.no_grad():
        for batch in batches_in_order(as_read(model.config, split), batch_size, n_rows):
            logits, targets = predict(model, batch)
            if targets.shape != logits.shape[:-1] or targets.is_floating_point():
                raise InputError(
                    f"logits {tuple(logits.shape)} do not fit targets {targets.dtype} {tuple(targets.shape)}; for a "
                    "class at each step the model needs pooling=None, for one class a sequence it needs a pooling"
                )
            counted = targets != IGNORED
            n_counted = int(counted.sum())
            if n_counted:
                nats += float(cross_entropy(logits, targets)) * n_counted
                found = targets[counted] * n_classes + logits[counted].argmax(-1)
                confusion += torch.bincount(found, minlength=n_classes**2).reshape(n_classes, n_classes).cpu().numpy()
            done += len(targets)
            if progress is not None:
                progress(done, n_rows)
    n_predictions = int(confusion.sum())
    if not n_predictions:
        raise InputError(f"the {split.name} split has no target to score; expected at least one")
    return Classification(
        n_sequences=n_rows,
        n_predictions=n_predictions,
        loss=nats / n_predictions,
        accuracy=float(np.trace(confusion) / n_predictions),
        macro_f1=macro_f1(confusion),
        confusion=confusion,
        seconds=time.perf_counter() - begin,
    )


def rows_to_read(split: Split, max_sequences: int | None) -> int:
    """All rows of the split, or the first ``max_sequences``.

    Errors:  InputError if that is below 1.
    """
    require_least(InputError, max_sequences=(max_sequences, 1))
    return len(split) if max_sequences is None else min(max_sequences, len(split))


def as_read(config: SequenceModelConfig, split: Split) -> Split:
    """The rows as such a model reads them: raw, where it scales them itself."""
    return split.raw if config.input is not None and isinstance(split, LabelledSplit) else split


def predict(model: SequenceModel, batch: LabelledBatch) -> tuple[Tensor, Tensor]:
    """The model's outputs for a batch, and its targets, on the model's device.

    Errors:  NotFiniteError.
    """
    weight = model.head.weight
    inputs, targets = (x.to(weight.device) for x in (batch.inputs, batch.targets))
    lengths = None if batch.lengths is None else batch.lengths.to(weight.device)
    if model.config.input is None and inputs.is_floating_point():
        inputs = inputs.to(weight.dtype)
    outputs = _outputs(model, inputs, lengths)
    if not outputs.isfinite().all():
        raise NotFiniteError("the model's outputs are not finite: its parameters or the data hold NaN or infinity")
    return outputs, targets


def _outputs(model: SequenceModel, x: Tensor, lengths: Tensor | None) -> Tensor:
    """The outputs, for long rows found in pieces, so that the memory does not grow with them."""
    length = x.shape[1]
    state = _first_state(model, x) if length > LONG_ROW else None
    if state is None:
        return model(x, lengths=lengths)[0]
    found = []
    for begin in range(0, length, PIECE):
        piece = x[:, begin : begin + PIECE]
        own = None if lengths is None else (lengths - begin).clamp(0, piece.shape[1])
        outputs, state = model(piece, state, lengths=own)
        found.append(outputs)
    return found[-1] if model.pooling is not None else torch.cat(found, 1)


def _first_state(model: SequenceModel, x: Tensor) -> Any:
    """None for a model that needs whole rows."""
    try:
        return model.initial_state(len(x))
    except InputError:
        return None


def confusion_matrix(targets: np.ndarray, predictions: np.ndarray, n_classes: int) -> np.ndarray:
    """(n_classes, n_classes) int64: how often the row's class was predicted as the column's.

    >>> confusion_matrix(np.array([0, 0, 1, 2]), np.array([0, 1, 1, 1]), 3)
    array([[1, 1, 0],
           [0, 1, 0],
           [0, 1, 0]])
    """
    return np.bincount(targets * n_classes + predictions, minlength=n_classes**2).reshape(n_classes, n_classes)


def f1_scores(confusion: np.ndarray) -> np.ndarray:
    """The F1 of each class, 2 TP / (2 TP + FP + FN); NaN for a class that is neither a target nor a prediction."""
    right = np.diag(confusion)
    total = confusion.sum(0) + confusion.sum(1)
    return np.where(total > 0, 2 * right / np.maximum(total, 1), np.nan)


def macro_f1(confusion: np.ndarray) -> float:
    """The mean of the classes' F1, of those that are a target or a prediction.

    >>> round(macro_f1(np.array([[1, 1, 0], [0, 1, 0], [0, 1, 0]])), 4)
    0.3889
    """
    return float(np.nanmean(f1_scores(confusion)))
