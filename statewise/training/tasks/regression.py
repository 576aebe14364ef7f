"""Regression of sequences, or of their steps."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from statewise.data.labelled_batches import LabelledBatch
from statewise.evaluate.labelled.regression import evaluate_regressor, squared_error
from statewise.models.regressor import SequenceRegressor, SequenceRegressorConfig
from statewise.training.tasks.sequences import SequenceTask


class RegressionTask(SequenceTask[SequenceRegressor]):
    """Mean squared error, which also says which checkpoint is best."""

    models = (SequenceRegressorConfig,)
    metric = "mse"
    higher_is_better = False
    progress_line = "mse {loss:.4g}"
    evaluation_line = "mse {mse:.4g}, mae {mae:.4g}"

    def loss(self, model: SequenceRegressor, batch: LabelledBatch, state: Any) -> tuple[Tensor, Any]:
        """The mean squared error; of several outputs whose deviations the model knows each counts alike."""
        outputs, state = model(batch.inputs, state, lengths=batch.lengths)
        deviation = torch.tensor(model.config.target_deviation, device=outputs.device)
        if len(deviation) < 2:
            return squared_error(outputs, batch.targets), state
        scaled = squared_error(outputs / deviation, batch.targets / deviation)
        return scaled * deviation.square().mean(), state

    def evaluate(
        self, model: SequenceRegressor, split: str, *, max_items: int | None = None, **options: Any
    ) -> dict[str, Any]:
        """What there is no figure of (``r2`` of targets that do not vary) is left out."""
        result = evaluate_regressor(
            model, self.data.split(split), batch_size=self.run.train.batch_size, max_sequences=max_items
        )
        found = {name: value for name, value in asdict(result).items() if value is not None}
        found |= {"sequences": found.pop("n_sequences"), "predictions": found.pop("n_predictions")}
        return {"loss": result.mse, **found}
