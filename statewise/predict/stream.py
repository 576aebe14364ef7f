"""Signals that are read as they arrive: the state is carried on, and each answer is for all that was read so far."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.models.encoder import SequenceModel
from statewise.models.freezing import freeze
from statewise.predict.answers import Answers
from statewise.predict.rows import as_batch, as_rows


class Answer(Protocol):
    """Outputs as answers, with the numbers of their rows, and how many steps of each are real."""

    def __call__(self, outputs: Tensor, numbers: np.ndarray, steps: np.ndarray | None = None) -> Answers: ...


class Stream:
    """``stream(piece)`` reads the next steps of each signal.

    n_read: the steps read so far

    >>> import numpy as np, statewise as sw
    >>> layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    >>> model = sw.SequenceRegressorConfig(d_output=1, d_input=2, d_model=16, layers=layers).build()
    >>> stream = sw.predictor(model).stream()
    >>> for piece in (np.zeros((1, 30, 2)), np.ones((1, 4, 2))):
    ...     answers = stream(piece)
    >>> stream.n_read, answers.values.shape
    (34, (1, 1))
    """

    def __init__(self, model: SequenceModel, answer: Answer, batch: int) -> None:
        self.model, self.n_read = freeze(model), 0
        self._answer = answer
        self._state = self.model.initial_state(batch)
        self._batch = batch

    def __call__(self, piece: Any) -> Answers | None:
        """The answers to all that was read; of a model that answers at every step, those to these steps.

        piece: (batch, length, d_input), or (batch, length) for tokens and for d_input=1
        Returns None while there is nothing to answer yet: a model with frames needs its first whole frame.

        Errors:  InputError for another shape; for answers that are not finite.
        """
        config, weight = self.model.config, self.model.head.weight
        rows = as_rows(piece, None, config, pieces=True)
        if len(rows) != self._batch or len({len(row) for row in rows}) != 1:
            raise InputError(
                f"a piece has {len(rows)} rows; expected {self._batch} of the same length, one for each signal"
            )
        x, _ = as_batch(rows, config, weight.dtype)
        with torch.no_grad():
            outputs, self._state = self.model(x.to(weight.device), self._state)
        before = self.n_read
        self.n_read += x.shape[1]
        if self.n_read < config.frame_length:
            return None
        steps = np.full(self._batch, x.shape[1]) if config.pooling is None else None
        found = self._answer(outputs, np.arange(self._batch), steps)
        if found.step is not None:
            found.step[:] += before
        return found
