"""S4D: a diagonal state-space model for each channel."""

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
from statewise.operators.diagonal import DiagonalLTI, DiagonalState
from statewise.operators.time_invariant import TimeInvariant
from statewise.systems import discretize_diagonal

INITIALIZATIONS = ("legs", "legt", "fourier", "lin", "inv", "inv2", "quad", "real", "random")
METHODS = ("zoh", "bilinear")
INITIAL_B = ("ones", "normal")


@dataclass(frozen=True, kw_only=True)
class S4DConfig(TimeInvariantConfig):
    """S4D. The other fields are those of :class:`~statewise.mixers.time_invariant.TimeInvariantConfig`.

    initialization: of A, see :func:`statewise.hippo.initialize.diagonal`. With "real", A is d_state real numbers; with
        all others, d_state / 2 complex pairs
    method:         the discretisation, "zoh" or "bilinear"
    B:              how B begins: "ones", or "normal", drawn from a complex normal distribution (real if A is) and
                    normalised as in :func:`normalised_B`
    learn_B:        learn B; if False, it keeps its initial value
    softmax_length: DSS's softmax: what each mode takes in is divided by A and by the sum of its powers over this many
                    steps, as a softmax over the positions of a sequence of that length would. Best the length trained
                    on; the layer stays a recurrence and reads any length. Needs method="zoh"
    n_systems:      how many A, B there are; channel h uses number h modulo n_systems. A divisor of d_model, or None for
                    as many as channels. C, D and dt are always each channel's own

    The S4D baseline of H3's synthetic languages is ``initialization="inv"``, ``n_systems=1``, ``B="normal"``; its code
    multiplies B into C once and only learns C: ``learn_B=False`` has the same functions of C B.
    """

    initialization: Annotated[str, OneOf(INITIALIZATIONS)] = "legs"
    method: Annotated[str, OneOf(METHODS)] = "zoh"
    learn_B: bool = True
    B: Annotated[str, OneOf(INITIAL_B)] = "ones"
    n_systems: Count | None = None
    softmax_length: Count | None = None

    def __post_init__(self) -> None:
        if self.is_complex:
            self.require_pairs()
        if self.softmax_length is not None and self.method != "zoh":
            raise ConfigError(
                f"S4DConfig.softmax_length={self.softmax_length} needs method='zoh', as DSS has it; got {self.method!r}"
            )

    @property
    def is_complex(self) -> bool:
        return self.initialization != "real"

    @property
    def n_stored(self) -> int:
        """How many numbers of A are stored for a channel: one of each conjugate pair."""
        return self.d_state // 2 if self.is_complex else self.d_state

    def build(self, d_model: int) -> S4D:
        return S4D(d_model, self)


def normalised_B(A: Tensor) -> Tensor:
    """B from the normal distribution, scaled so that to a constant input of 1 the system's output settles at a number
    of variance 1, for a C of variance 1: sum |B/A|^2 = 1 over all poles, those of the conjugate pairs too.

    Shapes:  A: (n,) -> B (n,), complex if A is
    Source:  ``dplr`` with B_init="random" and normalize=True in the code of S4D, and ``random_dplr`` in that of H3.
    """
    B = torch.randn_like(A)
    copies = 2 if A.is_complex() else 1
    return B / (copies * (B / A).abs().square().sum()).sqrt()


class S4DDynamics(StepSizes):
    """A = -exp(log_decay) + i frequency, without the second if A is real; and B. ``d_model`` channels use the n_systems
    of them in turn.

    Shapes:  log_decay, frequency: (n_systems, n), n being d_state, or d_state / 2 complex pairs
             B: (n_systems, n), (n_systems, n, 2) if complex: a buffer if it is drawn and not learned, None if it is
             1 and not learned   log_dt: (d_model,) or (1,)
    """

    def __init__(self, d_model: int, config: S4DConfig) -> None:
        super().__init__(d_model, config)
        self.config = config
        n, n_systems = config.n_stored, config.n_systems or d_model
        if d_model % n_systems:
            raise ConfigError(
                f"S4DConfig.n_systems={n_systems} does not divide d_model={d_model}; use a divisor, or None for as "
                "many as channels"
            )
        self.log_decay = nn.Parameter(torch.empty(n_systems, n))
        self.frequency = nn.Parameter(torch.empty(n_systems, n)) if config.is_complex else None
        B = torch.empty((n_systems, n, 2) if config.is_complex else (n_systems, n))
        self.B: Tensor | None
        if config.learn_B:
            self.B = nn.Parameter(B)
        else:
            self.register_buffer("B", None if config.B == "ones" else B)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        config = self.config
        with torch.no_grad():
            n_systems = len(self.log_decay)
            n_drawn = n_systems if config.initialization == "random" else 1
            drawn = [hippo.diagonal(config.initialization, config.d_state)[0] for _ in range(n_drawn)]
            A = torch.stack(drawn).expand(n_systems, -1)  # one copy for all, and not a copy for each
            self.log_decay.copy_(least_decay(A).log())
            if self.frequency is not None:
                self.frequency.copy_(A.imag)
            if self.B is not None:
                B = torch.ones_like(A) if config.B == "ones" else torch.stack([normalised_B(row) for row in A])
                self.B.copy_(torch.view_as_real(B) if config.is_complex else B)

    def continuous(self) -> tuple[Tensor, Tensor]:
        """A and B before they are made discrete, (d_model, n)."""
        A = -wide(self.log_decay).exp()
        if self.frequency is not None:
            A = torch.complex(A, wide(self.frequency))
        if self.B is None:
            B = torch.ones_like(A)
        else:
            B = wide(self.B) if self.frequency is None else as_complex(self.B)
        if len(A) < self.d_model:
            A, B = (m.repeat(self.d_model // len(m), 1) for m in (A, B))
        return A, B

    def forward(self, rate: float) -> tuple[Tensor, Tensor]:
        """The discrete A and B, (d_model, n)."""
        A, B = self.continuous()
        dt = self.dt(rate)
        A_bar, B_bar = discretize_diagonal(A, B, dt, self.config.method, check_dt=False)
        if self.config.softmax_length is not None:
            B_bar = B_bar / softmax_sum(A, dt, self.config.softmax_length / rate)
        return A_bar, B_bar


def softmax_sum(A: Tensor, dt: Tensor, length: float) -> Tensor:
    """e^(dt A length) - 1: by what DSS's softmax differs from zero-order hold, (d_model, n).

    The sum of e^(k dt A) over k < length is (e^(dt A length) - 1) / (e^(dt A) - 1). The sum is near zero where a mode
    turns a whole number of times in ``length`` steps, so 1 / (x + 1e-7 / conj(x)) stands for 1 / x, with
    x = A (e^(dt A length) - 1).

    Source:  Gupta et al. 2022 (DSS), arXiv:2203.14343, proposition 1 (b) and sec. 3.2; the 1e-7 is that of its code.
    """
    x = A * torch.expm1(dt.unsqueeze(-1) * length * A)
    square = x.abs().square() if x.is_complex() else x.square()
    return (square + 1e-7) / (x.conj() * A)


class S4D(TimeInvariantMixer):
    """x' = A x + B u, y = C x + D u (2 Re(C x) if complex) with a diagonal A for each channel, in steps of dt; then
    activation, dropout and the gated linear output.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.diagonal.DiagonalState`,
             (batch, d_model, d_state / 2, 2), or (batch, d_model, d_state) if A is real
    Cost:    see :class:`~statewise.operators.diagonal.DiagonalLTI`; the output multiplies n_heads d_model by d_model
             (2 d_model if gated) numbers a step. ``freeze()`` before decoding.
    Errors:  ConfigError if n_systems does not divide d_model; InputError for shapes or states that do not fit.
    Source:  Gu et al. 2022 (S4D), arXiv:2206.11893, sec. 3 and 4; ``softmax_length``: Gupta et al. 2022 (DSS),
             arXiv:2203.14343, sec. 3.

    >>> mixer = S4DConfig(d_state=8, initialization="lin").build(d_model=4)
    >>> y, state = mixer(torch.randn(1, 20, 4), mixer.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 20, 4]), torch.Size([1, 4, 4, 2]))
    """

    state_type = DiagonalState
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
