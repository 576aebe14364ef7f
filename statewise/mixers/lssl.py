"""LSSL: a dense state-space model for each channel, the forerunner of S4."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import OneOf, Ratio
from statewise.errors import ConfigError
from statewise.mixers.prepared import wide
from statewise.mixers.time_invariant import Readout, StepSizes, TimeInvariantConfig, TimeInvariantMixer
from statewise.operators.dense import DenseLTI, DenseState
from statewise.operators.time_invariant import TimeInvariant
from statewise.systems import discretize_dense

INITIALIZATIONS = ("legs", "legt", "lagt", "fourier", "fourier_diag", "random")


@dataclass(frozen=True, kw_only=True)
class LSSLConfig(TimeInvariantConfig):
    """LSSL. The other fields are those of :class:`~statewise.mixers.time_invariant.TimeInvariantConfig`.

    initialization: the measure whose A and B (:func:`statewise.hippo.transition`) each channel begins with; or
                    "random", one draw of :func:`statewise.hippo.random_transition` for all channels
    alpha:          of the generalised bilinear transform: 0.5 is bilinear, 0 forward and 1 backward Euler
    learn_A:        learn A, d_state^2 numbers a channel; if False, all channels keep the measure's
    """

    initialization: Annotated[str, OneOf(INITIALIZATIONS)] = "legs"
    alpha: Ratio = 0.5
    learn_A: bool = True

    def __post_init__(self) -> None:
        if self.initialization.startswith("fourier") and self.d_state % 2:
            raise ConfigError(
                f"LSSLConfig.d_state={self.d_state}; {self.initialization} has a cosine for each sine: use an even "
                "number"
            )

    def build(self, d_model: int) -> LSSL:
        return LSSL(d_model, self)


class LSSLDynamics(StepSizes):
    """Shapes: A: (d_model, d_state, d_state), or (d_state, d_state) if it is not learned   B: (d_model, d_state)"""

    A: Tensor

    def __init__(self, d_model: int, config: LSSLConfig) -> None:
        super().__init__(d_model, config)
        self.config = config
        n = config.d_state
        if config.learn_A:
            self.A = nn.Parameter(torch.empty(d_model, n, n))
        else:
            self.register_buffer("A", torch.empty(n, n))
        self.B = nn.Parameter(torch.empty(d_model, n))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        name, n = self.config.initialization, self.config.d_state
        A, B = hippo.random_transition(n) if name == "random" else hippo.transition(name, n)
        with torch.no_grad():
            self.A.copy_(A.expand_as(self.A))
            self.B.copy_(B.expand_as(self.B))

    def forward(self, rate: float) -> tuple[Tensor, Tensor]:
        """The discrete A (d_model, n, n) and B (d_model, n)."""
        A, B = wide(self.A).expand(self.d_model, -1, -1), wide(self.B)
        return discretize_dense(A, B, self.dt(rate), "gbt", alpha=self.config.alpha, check_dt=False)


class LSSL(TimeInvariantMixer):
    """x' = A x + B u, y = C x + D u with a dense A for each channel, discretised by the generalised bilinear
    transform with a learned dt; then activation, dropout and the linear output.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.dense.DenseState`,
             (batch, d_model, d_state)
    Cost:    see :class:`~statewise.operators.dense.DenseLTI`, and a solve of order d_state for each channel and call:
             about d_state^2 times what S4D costs. ``freeze()`` before decoding.
    Limits:  nothing keeps a learned A stable.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Gu et al. 2021, arXiv:2110.13985, sec. 3 and 5.
    """

    state_type = DenseState
    config: LSSLConfig
    dynamics: LSSLDynamics

    def __init__(self, d_model: int, config: LSSLConfig) -> None:
        super().__init__(d_model, config)
        self.dynamics = LSSLDynamics(d_model, config)
        self.readout = Readout(
            d_model,
            config.d_state,
            n_heads=config.n_heads,
            bidirectional=config.bidirectional,
            is_complex=False,
        )
        self.reset_parameters()

    def build_operators(self) -> list[TimeInvariant]:
        A, B = self.dynamics(self.rate)
        return [DenseLTI(A, B, C) for C in self.readout.directions()]
