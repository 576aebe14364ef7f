"""What stands for the mixer in a block that has an MLP alone."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.mixers.base import Layer, Mixer
from statewise.operators.masks import Masks


class NoState(NamedTuple):
    """The state of a layer that reads nothing but its own step."""


class NoMixer(Mixer):
    """Gives its input back. Its state is there where others have theirs, and holds nothing."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.d_model = d_model

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """There are none."""

    def _like(self) -> Tensor:
        return torch.empty(0)  # of no parameter, and of a state without numbers

    def state_shape(self) -> NoState:
        return NoState()

    def check_call(self, x: Any, state: Any) -> None:
        Layer.check_call(self, x, state)  # there are no weights that x could differ from
        if state is not None:
            self.check_state(state, x)

    def mix(self, x: Tensor, state: NoState | None, masks: Masks) -> tuple[Tensor, NoState | None]:
        return x, state
