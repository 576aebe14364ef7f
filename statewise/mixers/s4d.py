"""S4D: a diagonal state-space model for each channel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statewise import hippo
from statewise.mixers.prepared import wide
from statewise.mixers.time_invariant import (
    Readout,
    StepSizes,
    TimeInvariantConfig,
    TimeInvariantMixer,
    as_complex,
    least_decay,
)
from statewise.operators.diagonal import DiagonalLTI
from statewise.operators.time_invariant import TimeInvariant
from statewise.systems import discretize_diagonal

INITIALIZATIONS = ("legs", "legt", "fourier", "lin", "inv", "inv2", "quad", "real", "random")
METHODS = ("zoh", "bilinear")


@dataclass(frozen=True, kw_only=True)
class S4DConfig(TimeInvariantConfig):
    """S4D. The other fields are those of :class:`~statewise.mixers.time_invariant.TimeInvariantConfig`.

    initialization: of A, see :func:`statewise.hippo.initialize.diagonal`. With "real" A is d_state real numbers, with
                    all others d_state / 2 complex pairs
    method:         the discretisation, "zoh" or "bilinear"
    learn_B:        B is learned, from 1; if False, it stays 1
    """

    initialization: str = "legs"
    method: str = "zoh"
    learn_B: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._require_one_of("initialization", INITIALIZATIONS)
        self._require_one_of("method", METHODS)
        if self.is_complex:
            self._require_pairs()

    @property
    def is_complex(self) -> bool:
        return self.initialization != "real"

    @property
    def n_stored(self) -> int:
        """The numbers of A that are stored for a channel: one of each conjugate pair."""
        return self.d_state // 2 if self.is_complex else self.d_state

    def build(self, d_model: int) -> S4D:
        return S4D(d_model, self)


class S4DDynamics(StepSizes):
    """A = -exp(log_decay) + i frequency, without the second if A is real; and B, if it is learned.

    Shapes:  log_decay, frequency: (d_model, n), n being d_state, or d_state / 2 complex pairs
             B: (d_model, n), (d_model, n, 2) if complex   log_dt: (d_model,) or (1,)
    """

    def __init__(self, d_model: int, config: S4DConfig) -> None:
        super().__init__(d_model, config)
        self.config = config
        n = config.n_stored
        self.log_decay = nn.Parameter(torch.empty(d_model, n))
        self.frequency = nn.Parameter(torch.empty(d_model, n)) if config.is_complex else None
        self.B = None
        if config.learn_B:
            self.B = nn.Parameter(torch.empty((d_model, n, 2) if config.is_complex else (d_model, n)))

    def reset_parameters(self) -> None:
        super().reset_parameters()
        config = self.config
        with torch.no_grad():
            for channel in range(self.d_model):
                if channel == 0 or config.initialization == "random":
                    A, _ = hippo.diagonal(config.initialization, config.d_state)
                self.log_decay[channel] = least_decay(A).log()
                if self.frequency is not None:
                    self.frequency[channel] = A.imag
            if self.B is not None:
                self.B.fill_(1.0)
                if config.is_complex:
                    self.B[..., 1] = 0.0

    def forward(self, rate: float) -> tuple[Tensor, Tensor]:
        """The discrete A and B, (d_model, n)."""
        A = -wide(self.log_decay).exp()
        if self.frequency is not None:
            A = torch.complex(A, wide(self.frequency))
        if self.B is None:
            B = torch.ones_like(A)
        else:
            B = wide(self.B) if self.frequency is None else as_complex(self.B)
        return discretize_diagonal(A, B, self.dt(rate), self.config.method, check_dt=False)


class S4D(TimeInvariantMixer):
    """x' = A x + B u, y = C x + D u (2 Re(C x) if complex) with a diagonal A for each channel, in steps of dt; then
    activation, dropout and the gated linear output.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.diagonal.DiagonalState`,
             (batch, d_model, d_state / 2, 2), or (batch, d_model, d_state) if A is real
    Cost:    see :class:`~statewise.operators.diagonal.DiagonalLTI`; the output multiplies n_heads d_model by d_model
             (2 d_model if gated) numbers a step. ``freeze()`` before decoding.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Gu et al. 2022 (S4D), arXiv:2206.11893, sec. 3 and 4.

    >>> mixer = S4DConfig(d_state=8, initialization="lin").build(d_model=4)
    >>> y, state = mixer(torch.randn(1, 20, 4), mixer.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 20, 4]), torch.Size([1, 4, 4, 2]))
    """

    config: S4DConfig
    dynamics: S4DDynamics

    def __init__(self, d_model: int, config: S4DConfig) -> None:
        super().__init__(d_model, config)
        self.dynamics = S4DDynamics(d_model, config)
        self.readout = Readout(
            d_model,
            config.n_stored,
            n_heads=config.n_heads,
            bidirectional=config.bidirectional,
            is_complex=config.is_complex,
        )
        self.reset_parameters()

    def build_operators(self) -> list[TimeInvariant]:
        A, B = self.dynamics(self.rate)
        return [DiagonalLTI(A, B, C) for C in self.readout.directions()]
