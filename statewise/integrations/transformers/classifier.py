"""Classifiers and regressors of sequences as ``transformers`` wants them: padding and loss around ours."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.modeling_outputs import SequenceClassifierOutput

from statewise.errors import ConfigError, InputError
from statewise.integrations.transformers.arguments import IGNORED, refuse
from statewise.integrations.transformers.config import StatewiseConfig
from statewise.integrations.transformers.padding import read_mask, to_right_padded
from statewise.integrations.transformers.pretrained import StatewisePreTrainedModel, wrapped
from statewise.models.classifier import SequenceClassifier, SequenceClassifierConfig
from statewise.models.regressor import SequenceRegressor, SequenceRegressorConfig


class StatewiseForSequenceClassification(StatewisePreTrainedModel):
    """Any Statewise classifier or regressor of whole sequences for ``Trainer`` and ``pipeline``. ``model`` is ours.

    It reads ``input_ids``, or of a model of numbers ``input_values``. Rows may be padded anywhere: a column whose
    ``attention_mask`` is 0 is not read, whatever it holds, and each row says what it would say alone.
    """

    model: SequenceClassifier | SequenceRegressor

    def __init__(self, config: StatewiseConfig) -> None:
        super().__init__(config)
        self.num_labels = self.model.config.n_outputs
        self.main_input_name = "input_values" if self.model.config.vocab_size is None else "input_ids"

    def _config_of(self, config: StatewiseConfig) -> SequenceClassifierConfig | SequenceRegressorConfig:
        ours = config.sequence_model()
        if ours.pooling is None:
            raise ConfigError(
                "model.pooling=null gives an output for each step, but this wrapper is for whole sequences; "
                'set model.pooling="mean", "last" or "attention"'
            )
        return ours

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.model.embedding

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        input_values: Tensor | None = None,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> SequenceClassifierOutput | tuple[Any, ...]:
        """Logits (a regressor's numbers), and the loss if ``labels`` are given.

        labels: (batch,) classes, -100 where there is none: the cross-entropy; of a regressor (batch,) or
                (batch, d_output) numbers: the squared error. Both are means over the labels.

        Shapes:  input_ids: (batch, length); input_values: (batch, length, d_input), or (batch, length) for d_input=1;
                 attention_mask: (batch, length)   ->   logits: (batch, n_classes or d_output)
        Errors:  InputError for arguments that do not fit, and for arguments of theirs that have no meaning here.
        """
        n_items = kwargs.pop("num_items_in_batch", None)
        refuse(kwargs)
        x = self._input(input_ids, input_values)
        real, lengths = read_mask(attention_mask, x), None
        if real is not None:
            lengths, (x,) = to_right_padded(real, x)  # type: ignore[assignment]
        logits, _ = self.model(x, lengths=lengths)
        loss = None if labels is None else self._loss(logits, labels, n_items)
        output = SequenceClassifierOutput(loss=loss, logits=logits)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    def _input(self, input_ids: Tensor | None, input_values: Tensor | None) -> Tensor:
        """What the model reads."""
        reads_numbers = self.model.config.vocab_size is None
        x, other = (input_values, input_ids) if reads_numbers else (input_ids, input_values)
        d_input = self.model.config.d_input
        if reads_numbers and d_input == 1 and isinstance(x, Tensor) and x.ndim == 2:
            x = x[..., None]
        if not isinstance(x, Tensor) or other is not None or x.ndim != 2 + reads_numbers:
            shape = f"input_values (batch, length, {d_input})" if reads_numbers else "input_ids (batch, length)"
            given = [
                name for name, value in (("input_ids", input_ids), ("input_values", input_values)) if value is not None
            ]
            got = f" of shape {tuple(x.shape)}" if isinstance(x, Tensor) and other is None else ""
            raise InputError(f"this model reads {shape}; got {' and '.join(given) or 'neither'}{got}")
        return x

    def _loss(self, outputs: Tensor, labels: Tensor, n_items: Tensor | int | None) -> Tensor:
        """The mean over the labels, or their sum over ``n_items``: how many a step of several batches has."""
        if isinstance(self.model, SequenceRegressor):
            total = (outputs - _numbers(labels, outputs)).square().sum()
            return total / (outputs.numel() if n_items is None else n_items)
        labels = _classes(labels, outputs)
        total = F.cross_entropy(outputs.float(), labels, reduction="sum")
        return total / ((labels != IGNORED).sum().clamp(min=1) if n_items is None else n_items)


def _numbers(labels: Tensor, outputs: Tensor) -> Tensor:
    if labels.ndim == 1 and outputs.shape[1] == 1:
        labels = labels[:, None]
    if labels.shape != outputs.shape:
        raise InputError(
            f"labels have the shape {tuple(labels.shape)}; expected {tuple(outputs.shape)}, like the outputs"
        )
    return labels.to(outputs)


def _classes(labels: Tensor, logits: Tensor) -> Tensor:
    if labels.shape != logits.shape[:1] or labels.is_floating_point() or labels.dtype == torch.bool:
        raise InputError(
            f"labels are {labels.dtype} {tuple(labels.shape)}; expected an integer for each of {len(logits)} rows"
        )
    labels = labels.to(logits.device, torch.int64)
    if not torch.compiler.is_compiling():
        wrong = labels[((labels < 0) | (labels >= logits.shape[1])) & (labels != IGNORED)]
        if wrong.numel():
            raise InputError(f"label {int(wrong[0])} is not a class; expected 0 to {logits.shape[1] - 1}, or {IGNORED}")
    return labels


def wrap_sequence_model(model: SequenceClassifier | SequenceRegressor) -> StatewiseForSequenceClassification:
    """As ``from_statewise``."""
    return wrapped(StatewiseForSequenceClassification, StatewiseConfig(model=model.config), model)
