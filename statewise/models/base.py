"""What every model is: built from a frozen config, with layers, a state, and parameters that can be drawn anew."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from statewise.configuration import Config
from statewise.mixers.base import Freezable
from statewise.models.block import Block
from statewise.models.freezing import freeze


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """A frozen description of a model. Its class is named in ``registry.CONFIG_TYPES``, and by "type" in JSON."""

    @abc.abstractmethod
    def build(self) -> Model:
        """The model, its parameters drawn from torch's global generator."""

    def in_full(self) -> ModelConfig:
        """The same model with nothing abbreviated, as a bare mixer is for a block: to be compared by field."""
        return self


class Model(Freezable, abc.ABC):
    """A model that can be trained, saved, loaded and described, whatever it reads and gives.

    It is called as everything here is: ``y, state = model(x, state, lengths=..., starts=...)``. What x and y are is
    the model's own; the task that trains it knows.
    """

    config: ModelConfig
    gradient_checkpointing: bool = False  # set True to recompute each block in the backward pass

    layers: nn.ModuleList

    @property
    def blocks(self) -> Sequence[Block]:
        """The layers, in order, typed."""
        return cast("list[Block]", list(self.layers))

    def _reset_blocks(self) -> None:
        """Draws the layers' parameters anew; branches into the residual stream are scaled by 1/sqrt(their number)."""
        scale = sum(block.config.n_branches for block in self.blocks) ** -0.5
        for block in self.blocks:
            block.reset_parameters(scale)

    @abc.abstractmethod
    def reset_parameters(self) -> None:
        """Draw all parameters anew from torch's global generator."""

    @abc.abstractmethod
    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """The state before the first input.

        Errors: InputError where a layer reads in both directions and so has none.
        """

    def freeze(self) -> Self:
        """A copy for inference that shares the parameters; see :func:`statewise.models.freezing.freeze`."""
        return freeze(self)


def advance(position: Tensor, x: Tensor, lengths: Tensor | None, starts: Tensor | None) -> Tensor:
    """The position after these steps: counted from the last start, if there was one, and only over real steps."""
    length = x.shape[1]
    end = torch.full_like(position, length) if lengths is None else lengths.to(position)
    if starts is None:
        return position + end
    time = torch.arange(length, device=x.device)
    last = torch.where(starts & (time < end[:, None]), time, -1).amax(1) if length else torch.full_like(end, -1)
    return torch.where(last >= 0, end - last, position + end)
