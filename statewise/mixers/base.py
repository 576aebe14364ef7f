"""What every mixer is: a module from (x, state) to (y, state), whatever is inside."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


class Dynamics(nn.Module):
    """Parent of the parameters that set a system's time scales: A, B, dt in their stored form.

    They live in a submodule of their own, so that the optimiser can give them their own group (no weight
    decay, often a smaller rate) and so that autocast and sharding can leave them in float32.
    """


class Mixer(nn.Module, abc.ABC):
    """Mixes information along time. One call trains, prefills, resumes and decodes.

    Shapes:  x: (batch, length, d_model)   ->   y: (batch, length, d_model)
             lengths: (batch,) integer, the length of each right-padded row
             starts:  (batch, length) bool, True where a packed document begins
    State:   ``state=None`` starts from rest and returns None in its place. A state is a NamedTuple of real
             tensors, batch first; it is returned, never mutated.
    """

    d_model: int
    bounded_state: bool = True  # False where the state grows with the tokens read, as full attention's does

    @abc.abstractmethod
    def forward(
        self, x: Tensor, state: Any = None, *, lengths: Tensor | None = None, starts: Tensor | None = None
    ) -> tuple[Tensor, Any]: ...

    @abc.abstractmethod
    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Any:
        """The state of a sequence that has not begun. ``device`` and ``dtype`` default to the parameters'."""

    @abc.abstractmethod
    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """Draw the parameters anew from torch's global generator.

        ``residual_scale`` multiplies the projection that writes into the residual stream.
        """


@dataclass(frozen=True, kw_only=True)
class MixerConfig(abc.ABC):
    """A frozen description of a mixer; ``build`` makes the module for a width."""

    @abc.abstractmethod
    def build(self, d_model: int) -> Mixer: ...
