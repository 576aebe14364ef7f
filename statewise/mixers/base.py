"""What every mixer is: a module from (x, state) to (y, state), whatever is inside."""

from __future__ import annotations

import abc
import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from statewise.errors import InputError

ModuleT = TypeVar("ModuleT", bound=nn.Module)


class Dynamics(nn.Module):
    """Parent of the parameters that set a system's time scales: A, B, dt in their stored form.

    They live in a submodule of their own, so that the optimiser can give them their own group (no weight
    decay, often a smaller rate) and so that autocast and sharding can leave them in float32.
    """


class Freezable(nn.Module):
    """A module that may be frozen: an inference copy, in evaluation mode for good.

    What it computes once was computed from parameters that it shares with the module it was made from; training it,
    drawing its parameters anew or loading others would change these and not what was computed from them.
    """

    is_frozen: bool = False

    def train(self, mode: bool = True) -> Self:
        if mode:
            self._refuse_if_frozen("cannot be trained")
        return super().train(mode)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        self._refuse_if_frozen("cannot load parameters")
        return super().load_state_dict(state_dict, *args, **kwargs)

    def _refuse_if_frozen(self, what: str) -> None:
        if self.is_frozen:
            raise InputError(
                f"a frozen {type(self).__name__} {what}: it shares its parameters with the one it was made from; "
                "use that one, and freeze() it again afterwards"
            )


class Mixer(Freezable, abc.ABC):
    """Mixes information along time. One call trains, prefills, resumes and decodes.

    Shapes:  x: (batch, length, d_model)   ->   y: (batch, length, d_model)
             lengths: (batch,) integer, the length of each right-padded row
             starts:  (batch, length) bool, True where a packed document begins
    State:   ``state=None`` starts from rest and returns None in its place. A state is a NamedTuple of real
             tensors, batch first; it is returned, never mutated.
    """

    d_model: int
    bounded_state: bool = True  # False where the state grows with the tokens read, as full attention's does
    is_causal: bool = True  # False where an output depends on later inputs: then there is no state
    rate: float | None = None  # how many steps of the training data one step here spans; None: it has no dt

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

    def freeze(self) -> Mixer:
        """A mixer for inference: what does not depend on the input is computed once. By default the mixer itself.

        Where there is something to compute it is a copy, which shares the memory of all parameters, records no gradient
        for them, and belongs to this moment: after a change of the parameters freeze again.
        """
        return self


def set_rate(module: nn.Module, rate: float) -> None:
    """Run a model at another sampling rate than it was trained at.

    rate: how many steps of the training data one step now spans: 2 for every second sample, 0.5 for twice as many.
          Each call sets it anew; 1 undoes it.

    It multiplies dt in S4, S4D and LSSL and divides the LMU's window theta. Mixers without a dt, and the LMU cell's
    hidden recurrence, know steps only and stay as they are. The rate is not saved with the parameters.

    Errors:  InputError if no mixer in ``module`` has a rate, if it is frozen, or if ``rate`` is not above 0.
    Source:  Gu et al. 2022 (S4), arXiv:2111.00396, sec. 4 (speech at half its sampling rate).
    """
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate < math.inf:
        raise InputError(f"rate={rate!r}; expected a number above 0, such as 2 for every second sample")
    mixers = [m for m in module.modules() if isinstance(m, Mixer) and m.rate is not None]
    if not mixers:
        raise InputError(
            f"no mixer in this {type(module).__name__} has a rate; S4, S4D, LSSL and LMU have one, set by their dt"
        )
    for mixer in mixers:
        mixer._refuse_if_frozen("cannot change its rate")
    for mixer in mixers:
        mixer.rate = float(rate)


def shared_copy(module: ModuleT) -> ModuleT:
    """A copy of the modules whose parameters and buffers share memory with the original's and record no gradient."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=False)
    for buffer in module.buffers():
        memo[id(buffer)] = buffer
    return copy.deepcopy(module, memo)


@dataclass(frozen=True, kw_only=True)
class MixerConfig(abc.ABC):
    """A frozen description of a mixer; ``build`` makes the module for a width."""

    @abc.abstractmethod
    def build(self, d_model: int) -> Mixer: ...
