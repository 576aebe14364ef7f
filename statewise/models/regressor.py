"""A regressor of sequences: real numbers of a whole sequence, or of every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from statewise.configuration.types import Count, Finite, Positive
from statewise.errors import ConfigError
from statewise.mixers.projection import Linear
from statewise.models.encoder import SequenceModel, SequenceModelConfig
from statewise.models.raw_input import widest


@dataclass(frozen=True, kw_only=True)
class SequenceRegressorConfig(SequenceModelConfig):
    """A regressor. ``layers`` holds blocks or bare mixer configs; the other fields are in ``SequenceModelConfig``.

    target_mean, target_deviation: of each output, what the head's numbers are multiplied by and moved to: what the
    targets are in training, so that prices of 200,000 are learned like numbers around 0. (): 0 and 1.
    """

    d_output: Count
    target_mean: tuple[Finite, ...] = ()
    target_deviation: tuple[Positive, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        n = len(self.target_mean)
        if n != len(self.target_deviation) or n not in (0, self.d_output):
            raise ConfigError(
                f"{type(self).__name__} has {n} target_mean and {len(self.target_deviation)} target_deviation for "
                f"d_output={self.d_output}; give one of each for every output, or leave both out"
            )

    @property
    def n_outputs(self) -> int:
        return self.d_output

    def build(self) -> SequenceRegressor:
        """The model, its parameters drawn from torch's global generator."""
        return SequenceRegressor(self)


class SequenceRegressor(SequenceModel):
    """x -> y (batch, d_output), or (batch, length, d_output) without pooling; and the state if one was given."""

    config: SequenceRegressorConfig

    def _build_head(self) -> Linear:
        config = self.config
        if not config.target_mean:
            return super()._build_head()
        return TargetHead(config.d_model, config.target_mean, config.target_deviation)


class TargetHead(Linear):
    """A linear map whose outputs have the targets' units: y * deviation + mean, in float32 or wider.

    The two are the config's, keep their digits in every dtype, and are in no file of tensors.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, d_model: int, mean: tuple[float, ...], deviation: tuple[float, ...]) -> None:
        super().__init__(d_model, len(mean))
        self._given = {"mean": mean, "deviation": deviation}
        self._make(torch.get_default_device())

    def _make(self, device: torch.device) -> None:
        for name, numbers in self._given.items():
            table = torch.tensor(numbers, dtype=widest(device), device=device)
            self.register_buffer(name, table, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        self._make(self.weight.device)
        return self

    def forward(self, input: Tensor) -> Tensor:
        y = super().forward(input)
        kind = torch.promote_types(y.dtype, torch.float32)
        return y.to(kind) * self.deviation.to(kind) + self.mean.to(kind)
