"""How well a model regresses sequences, or their steps: MAE, MSE, R2, and the error relative to the targets' spread."""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from statewise.data.labelled_batches import Split, batches_in_order
from statewise.data.progress import Progress
from statewise.errors import InputError
from statewise.evaluate.labelled.classification import as_read, predict, rows_to_read
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.regressor import SequenceRegressor


@dataclass(frozen=True, kw_only=True)
class Regression:
    """What :func:`evaluate_regressor` found, over all outputs of all rows (and steps) alike.

    n_sequences, n_predictions: rows read, and numbers predicted
    mae, mse:   mean absolute and mean squared error
    nrmse:      the square root of mse / variance of the targets (each output about its own mean): 1 if you always
                answer that mean, 0 without error. None if the targets do not vary
    r2:         1 - nrmse squared
    seconds:    wall time
    """

    n_sequences: int
    n_predictions: int
    mae: float
    mse: float
    nrmse: float | None
    r2: float | None
    seconds: float


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error, in float32 or wider. Shapes must be equal."""
    return (outputs.to(torch.promote_types(outputs.dtype, torch.float32)) - targets).square().mean()


def evaluate_regressor(
    model: SequenceRegressor,
    split: Split,
    *,
    batch_size: int = 64,
    max_sequences: int | None = None,
    progress: Progress | None = None,
) -> Regression:
    """Predict every row of a split, or the first ``max_sequences``; ``progress(done, total)`` is called on the way.

    Numerics: errors and moments in float64, the moments merged batch by batch (Chan, Golub & LeVeque 1983).
    Errors:   InputError for outputs that do not have the shape of the targets, and for max_sequences below 1;
              NotFiniteError.
    """
    d_output = model.config.d_output
    n_rows = rows_to_read(split, max_sequences)
    absolute = squares = 0.0
    count, mean, deviations = 0, np.zeros(d_output), np.zeros(d_output)
    done, begin = 0, time.perf_counter()
    with evaluation_mode(model), torch.no_grad():
        for batch in batches_in_order(as_read(model.config, split), batch_size, n_rows):
            outputs, targets = predict(model, batch)
            if targets.shape != outputs.shape:
                raise InputError(
                    f"outputs {tuple(outputs.shape)} do not fit targets {tuple(targets.shape)}; for a target at each "
                    "step the model needs pooling=None, for one a sequence it needs a pooling"
                )
            y = targets.double().flatten(0, -2).cpu().numpy()
            error = outputs.double().flatten(0, -2).cpu().numpy() - y
            absolute += float(np.abs(error).sum())
            squares += float((error**2).sum())
            n, own = len(y), y.mean(0)
            deviations += ((y - own) ** 2).sum(0) + (own - mean) ** 2 * count * n / (count + n)
            mean += (own - mean) * n / (count + n)
            count += n
            done += len(targets)
            if progress is not None:
                progress(done, n_rows)
    ratio = squares / float(deviations.sum()) if deviations.any() else None
    return Regression(
        n_sequences=n_rows,
        n_predictions=count * d_output,
        mae=absolute / (count * d_output),
        mse=squares / (count * d_output),
        nrmse=None if ratio is None else ratio**0.5,
        r2=None if ratio is None else 1 - ratio,
        seconds=time.perf_counter() - begin,
    )
