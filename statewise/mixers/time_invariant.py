"""What S4, S4D and LSSL share: a time-invariant system for each channel, its skip, several heads, both directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Fraction, OneOf, PositiveRange
from statewise.errors import ConfigError
from statewise.kernels import pairs
from statewise.mixers.activations import ACTIVATIONS
from statewise.mixers.base import Dynamics, MixerConfig
from statewise.mixers.output import OutputHalf
from statewise.mixers.prepared import PreparableMixer, wide
from statewise.operators.bidirectional import bidirectional
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import without_autocast


@dataclass(frozen=True, kw_only=True)
class TimeInvariantConfig(MixerConfig):
    """Fields that S4, S4D and LSSL have in common.

    d_state:       N, the order of each channel's system
    n_heads:       outputs of each channel's one state, each by its own C: n_heads * d_model features enter the output
    bidirectional: a second C reads the same systems run backwards in time; then it has no state and cannot decode
    dt_range:      dt is drawn log-uniformly from it
    tied_dt:       one dt for all channels
    tied_dropout:  dropout takes whole features, at all steps alike: :class:`~statewise.mixers.dropout.TiedDropout`
    activation, dropout, gated_output: see :class:`~statewise.mixers.output.OutputHalf`
    """

    d_state: Count = 64
    n_heads: Count = 1
    bidirectional: bool = False
    dt_range: PositiveRange = (1e-3, 1e-1)
    tied_dt: bool = False
    activation: Annotated[str, OneOf(ACTIVATIONS)] = "gelu"
    dropout: Fraction = 0.0
    tied_dropout: bool = False
    gated_output: bool = True

    def require_pairs(self) -> None:
        """ConfigError for an odd d_state, where A is complex."""
        if self.d_state % 2:
            raise ConfigError(
                f"{type(self).__name__}.d_state={self.d_state}; a complex A comes in conjugate pairs: use an even "
                "number"
            )


class StepSizes(Dynamics):
    """dt = exp(log_dt) * rate, one for each channel or one for all. Parent of the dynamics of S4, S4D and LSSL."""

    step_sizes: ClassVar[tuple[str, ...]] = ("log_dt",)

    def __init__(self, d_model: int, config: TimeInvariantConfig) -> None:
        super().__init__()
        self.d_model = d_model
        self.dt_range = config.dt_range
        self.log_dt = nn.Parameter(torch.empty(1 if config.tied_dt else d_model))

    def reset_parameters(self) -> None:
        low, high = self.dt_range
        nn.init.uniform_(self.log_dt, math.log(low), math.log(high))

    def dt(self, rate: float) -> Tensor:
        """(d_model,), in float32 or wider."""
        return wide(self.log_dt).exp().mul(rate).expand(self.d_model)


class Readout(nn.Module):
    """C and the skip D: what is read from the states, (d_model, n_heads, n) numbers a direction, complex if the
    systems are (then stored with a last axis of 2)."""

    def __init__(
        self, d_model: int, n: int, *, n_heads: int = 1, bidirectional: bool = False, is_complex: bool
    ) -> None:
        super().__init__()
        shape = (d_model, n_heads, n, 2) if is_complex else (d_model, n_heads, n)
        self.is_complex = is_complex
        self.C = nn.Parameter(torch.empty(shape))
        self.C_backward = nn.Parameter(torch.empty(shape)) if bidirectional else None
        self.D = nn.Parameter(torch.empty(d_model, n_heads))

    def reset_parameters(self) -> None:
        """All normal of variance 1; for complex C half of it in each part."""
        for C in (self.C, self.C_backward):
            if C is not None:
                nn.init.normal_(C, std=math.sqrt(0.5) if self.is_complex else 1.0)
        nn.init.normal_(self.D)

    def directions(self) -> list[Tensor]:
        """C of each direction, (d_model, n_heads, n), float32 or complex64 or wider."""
        stored = (self.C,) if self.C_backward is None else (self.C, self.C_backward)
        return [as_complex(C) if self.is_complex else wide(C) for C in stored]


class TimeInvariantMixer(PreparableMixer):
    """y = output(C x + D u), x' = A x + B u, a system of its own for each channel of u.

    ``build_operators`` gives one with the outputs (batch, length, d_model, n_heads), or two, the second of which reads
    backwards.

    Shapes:  u: (batch, length, d_model) -> y the same. State: the operator's own, ``state_type``, of one tensor.
    """

    state_type: ClassVar[type[Any]]
    config: TimeInvariantConfig
    dynamics: StepSizes
    readout: Readout

    def __init__(self, d_model: int, config: TimeInvariantConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.is_causal = not config.bidirectional
        self.output = OutputHalf(
            config.n_heads * d_model,
            d_model,
            activation=config.activation,
            dropout=config.dropout,
            tied_dropout=config.tied_dropout,
            gated=config.gated_output,
        )

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        self._refuse_if_frozen("cannot draw its parameters again")
        self.dynamics.reset_parameters()
        self.readout.reset_parameters()
        self.output.reset_parameters(residual_scale)

    def state_shape(self) -> Any:
        d_model, _, *n = self.readout.C.shape  # C tells, so that no system has to be discretised
        return self.state_type(leaf(d_model, *n))

    def _like(self) -> Tensor:
        return self.output.linear.weight

    def mix(self, x: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        with without_autocast(x.device):
            operators = self.operators
            if len(operators) == 2:
                y = bidirectional(operators[0], operators[1]).apply(x, masks)
            else:
                y, state = operators[0].apply(x, state, masks)
        y = torch.addcmul(y, x.unsqueeze(-1), self.readout.D.to(y.dtype))
        return self.output(y.flatten(-2)), state


def least_decay(A: Tensor) -> Tensor:
    """-Re(A), at least 1e-4: it is stored as a logarithm, and some measures have poles on the imaginary axis."""
    real = A.real if A.is_complex() else A
    return (-real).clamp(min=1e-4)


def as_complex(x: Tensor) -> Tensor:
    """(..., 2) real -> (...) complex, complex64 or wider."""
    return pairs.as_complex(wide(x))
