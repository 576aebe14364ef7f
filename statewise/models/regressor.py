"""A regressor of sequences: real numbers of a whole sequence, or of every step."""

from __future__ import annotations

from dataclasses import dataclass

from statewise.configuration.types import Count
from statewise.models.encoder import SequenceModel, SequenceModelConfig


@dataclass(frozen=True, kw_only=True)
class SequenceRegressorConfig(SequenceModelConfig):
    """A regressor. ``layers`` holds blocks or bare mixer configs; the other fields are in ``SequenceModelConfig``."""

    d_output: Count

    @property
    def n_outputs(self) -> int:
        return self.d_output

    def build(self) -> SequenceRegressor:
        """The model, its parameters drawn from torch's global generator."""
        return SequenceRegressor(self)


class SequenceRegressor(SequenceModel):
    """x -> y (batch, d_output), or (batch, length, d_output) without pooling; and the state if one was given."""

    config: SequenceRegressorConfig
