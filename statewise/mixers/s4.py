"""S4: a diagonal-plus-low-rank state-space model for each channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import Count, OneOf
from statewise.errors import ConfigError
from statewise.mixers.prepared import wide
from statewise.mixers.time_invariant import (
    Readout,
    StepSizes,
    TimeInvariantConfig,
    TimeInvariantMixer,
    as_complex,
    least_decay,
)
from statewise.operators.diagonal_low_rank import DiagonalPlusLowRank, LowRankState
from statewise.operators.time_invariant import TimeInvariant

# The rank that each initialisation needs at least.
INITIALIZATIONS = {"legs": 1, "legt": 2, "lagt": 1, "fourier": 1, "fourier_diag": 1, "random": 1}
EXTRA_STD = 0.03  # of the rows of P that the initialisation leaves at zero


@dataclass(frozen=True, kw_only=True)
class S4Config(TimeInvariantConfig):
    """S4. The other fields are those of :class:`~statewise.mixers.time_invariant.TimeInvariantConfig`.

    initialization: of A, B and P, see :func:`statewise.hippo.dplr`; "legt" needs rank 2
    rank:           of the correction P P*. Rows of P that the initialisation leaves at zero (all of "fourier_diag", and
                    those beyond the rank that it needs) are drawn from a complex normal distribution with a standard
                    deviation of 0.03 instead: P P* is quadratic in P, so a row of zeros would never get a gradient.
                    So A begins close to its measure; the filter changes by about 0.1 %, that of "lagt" by about 3 %
    n_systems:      how many A, B, P there are; channel h uses number h modulo n_systems. A divisor of d_model, or
                    None for as many as channels
    """

    initialization: Annotated[str, OneOf(INITIALIZATIONS)] = "legs"
    rank: Count = 1
    n_systems: Count | None = 1

    def __post_init__(self) -> None:
        self.require_pairs()
        least = INITIALIZATIONS[self.initialization]
        if self.rank < least:
            raise ConfigError(f"S4Config.rank={self.rank}; {self.initialization} needs at least {least}")

    def build(self, d_model: int) -> S4:
        return S4(d_model, self)


class S4Dynamics(StepSizes):
    """A = Lambda - P P* with Lambda = -exp(log_decay) + i frequency, so that it is stable whatever is learned; and B.

    Shapes:  log_decay, frequency: (n_systems, d_state / 2)   P: (n_systems, rank, d_state / 2, 2)
             B: (n_systems, d_state / 2, 2)   log_dt: (d_model,) or (1,)
    """

    def __init__(self, d_model: int, config: S4Config) -> None:
        super().__init__(d_model, config)
        self.config = config
        n_systems, n = config.n_systems or d_model, config.d_state // 2
        if d_model % n_systems:
            raise ConfigError(
                f"S4Config.n_systems={n_systems} does not divide d_model={d_model}; use a divisor, or None for as "
                "many as channels"
            )
        self.log_decay = nn.Parameter(torch.empty(n_systems, n))
        self.frequency = nn.Parameter(torch.empty(n_systems, n))
        self.P = nn.Parameter(torch.empty(n_systems, config.rank, n, 2))
        self.B = nn.Parameter(torch.empty(n_systems, n, 2))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        config = self.config
        with torch.no_grad():
            for system in range(len(self.B)):
                if system == 0 or config.initialization == "random":
                    Lambda, P, B = hippo.dplr(config.initialization, config.d_state, config.rank)
                self.log_decay[system] = least_decay(Lambda).log()
                self.frequency[system] = Lambda.imag
                zero = (P == 0).all(-1)
                extra = P.clone()
                if not P.is_meta:  # where there are no values to find zeros in
                    extra[zero] = EXTRA_STD * torch.randn_like(P[zero])
                self.P[system] = torch.view_as_real(extra)
                self.B[system] = torch.view_as_real(B)

    def forward(self, rate: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Lambda (d_model, n), P (d_model, rank, n), B (d_model, n), complex, and dt (d_model,)."""
        Lambda = torch.complex(-wide(self.log_decay).exp(), wide(self.frequency))
        copies = self.d_model // len(self.B)
        return (
            Lambda.repeat(copies, 1),
            as_complex(self.P).repeat(copies, 1, 1),
            as_complex(self.B).repeat(copies, 1),
            self.dt(rate),
        )


class S4(TimeInvariantMixer):
    """x' = (Lambda - P P*) x + B u, y = 2 Re(C x) + D u in bilinear steps of dt for each channel; then activation,
    dropout and the gated linear output.

    The impulse response is computed for the length at hand, from C itself: nothing is stored that depends on a length.

    Shapes:  x: (batch, length, d_model) -> y the same. State:
             :class:`~statewise.operators.diagonal_low_rank.LowRankState`, (batch, d_model, d_state / 2, 2)
    Cost:    see :class:`~statewise.operators.diagonal_low_rank.DiagonalPlusLowRank`; the output multiplies
             n_heads d_model by d_model (2 d_model if gated) numbers a step. ``freeze()`` before decoding.
    Errors:  ConfigError if n_systems does not divide d_model; InputError for shapes or states that do not fit.
    Source:  Gu et al. 2022, arXiv:2111.00396, sec. 3; A as Lambda - P P*: Goel et al. 2022, arXiv:2202.09729, sec. 4.

    >>> mixer = S4Config(d_state=8).build(d_model=4)
    >>> y, state = mixer(torch.randn(1, 20, 4), mixer.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 20, 4]), torch.Size([1, 4, 4, 2]))
    """

    state_type = LowRankState
    config: S4Config
    dynamics: S4Dynamics

    def __init__(self, d_model: int, config: S4Config) -> None:
        super().__init__(d_model, config)
        self.dynamics = S4Dynamics(d_model, config)
        self.readout = Readout(
            d_model,
            config.d_state // 2,
            n_heads=config.n_heads,
            bidirectional=config.bidirectional,
            is_complex=True,
        )
        self.reset_parameters()

    def build_operators(self) -> list[TimeInvariant]:
        Lambda, P, B, dt = self.dynamics(self.rate)
        return [DiagonalPlusLowRank(Lambda, P, B, C, dt, check_values=False) for C in self.readout.directions()]
