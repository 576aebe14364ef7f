"""S5: one diagonal state-space model that reads all channels and feeds all outputs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import Count, EvenCount, Fraction, OneOf, PositiveRange
from statewise.errors import ConfigError
from statewise.mixers.base import Dynamics, MixerConfig
from statewise.mixers.dropout import build_dropout
from statewise.mixers.prepared import PreparableMixer, wide
from statewise.mixers.projection import Linear
from statewise.mixers.time_invariant import Readout, as_complex, least_decay
from statewise.operators.bidirectional import bidirectional
from statewise.operators.diagonal import DiagonalState
from statewise.operators.diagonal_mimo import DiagonalMIMO
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import without_autocast
from statewise.systems import discretize_diagonal

METHODS = ("zoh", "bilinear")
GATES = ("half_glu1", "half_glu2")


@dataclass(frozen=True, kw_only=True)
class S5Config(MixerConfig):
    """S5, with the names of its code.

    d_state:       P, the size of the one state: d_state / 2 complex pairs, of which one of each is kept
    n_blocks:      J: A begins as this many HiPPO matrices of order d_state / J, side by side on its diagonal
    method:        the discretisation, "zoh" or "bilinear"
    dt_range:      dt of each pair of the state is drawn log-uniformly from it
    gate:          the system's output y becomes v * sigmoid(W GELU(y) + b), the layer's output: v is GELU(y) with
                   "half_glu1", y itself with "half_glu2"
    dropout:       of GELU(y), and of the output
    tied_dropout:  dropout drops whole features, the same at all steps: :class:`~statewise.mixers.dropout.TiedDropout`
    bidirectional: a second C reads the same system run backwards in time; then it has no state and cannot decode
    """

    d_state: EvenCount = 64
    n_blocks: Count = 1
    method: Annotated[str, OneOf(METHODS)] = "zoh"
    dt_range: PositiveRange = (1e-3, 1e-1)
    gate: Annotated[str, OneOf(GATES)] = "half_glu1"
    dropout: Fraction = 0.0
    tied_dropout: bool = False
    bidirectional: bool = False

    def __post_init__(self) -> None:
        if self.d_state % (2 * self.n_blocks):
            raise ConfigError(
                f"S5Config.n_blocks={self.n_blocks} blocks of conjugate pairs do not fill d_state={self.d_state}; use "
                "a d_state that is a multiple of 2 n_blocks"
            )

    def build(self, d_model: int) -> S5:
        return S5(d_model, self)


class S5Dynamics(Dynamics):
    """A = -exp(log_decay) + i frequency, B, and dt = exp(log_dt) rate, one for each pair of the state.

    Shapes:  log_decay, frequency, log_dt: (d_state / 2,)   B: (d_state / 2, d_model, 2), complex
    """

    step_sizes: ClassVar[tuple[str, ...]] = ("log_dt",)

    def __init__(self, d_model: int, config: S5Config) -> None:
        super().__init__()
        self.config = config
        n = config.d_state // 2
        self.log_decay = nn.Parameter(torch.empty(n))
        self.frequency = nn.Parameter(torch.empty(n))
        self.B = nn.Parameter(torch.empty(n, d_model, 2))
        self.log_dt = nn.Parameter(torch.empty(n))

    def reset_parameters(self) -> None:
        """In each block the eigenvalues of HiPPO-N; B complex normal of variance 1 / d_state.

        Published is B = V* G with the eigenvectors V and a real normal G of that variance. V and its conjugate are
        unitary together, so that V* G has independent normal parts, each of half the variance: it is drawn as such.
        """
        A, _ = hippo.diagonal("legs", self.config.d_state // self.config.n_blocks)
        with torch.no_grad():
            self.log_decay.copy_(least_decay(A).log().repeat(self.config.n_blocks))
            self.frequency.copy_(A.imag.repeat(self.config.n_blocks))
        nn.init.normal_(self.B, std=math.sqrt(0.5 / self.config.d_state))
        low, high = self.config.dt_range
        nn.init.uniform_(self.log_dt, math.log(low), math.log(high))

    def forward(self, rate: float) -> tuple[Tensor, Tensor]:
        """The discrete A (n,) and B (n, d_model): n systems of one pair, since each has a dt of its own."""
        A, dt = self.continuous(rate)
        A, B = discretize_diagonal(
            A.unsqueeze(-1), as_complex(self.B).unsqueeze(-2), dt, self.config.method, check_dt=False
        )
        return A.squeeze(-1), B.squeeze(-2)

    def continuous(self, rate: float) -> tuple[Tensor, Tensor]:
        """A before it is made discrete, and dt, each (n,)."""
        return torch.complex(-wide(self.log_decay).exp(), wide(self.frequency)), wide(self.log_dt).exp().mul(rate)


class S5(PreparableMixer):
    """h_t = A h_{t-1} + B x_t, y_t = 2 Re(C h_t) + D x_t with one state for all channels; then the gate.

    Published: the system, HiPPO-N in blocks, a dt for each state, B and C drawn in the basis of HiPPO and turned into
    that of its eigenvectors, D of variance 1, both gates. Our choice: -exp(.) for the real part of A, which the code of
    the paper stores itself and may clip; normal numbers for C where its code truncates them; the exact GELU. A model
    whose residual stream is scaled has C and D scaled, since no projection follows.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.diagonal.DiagonalState`,
             (batch, d_state / 2, 2)
    Cost:    2 d_model d_state multiply-adds a step for the system and d_model^2 for the gate, and a scan over
             d_state / 2 complex numbers, with all states in memory. ``freeze()`` before decoding.
    Errors:  InputError for shapes or states that do not fit.
    Source:  Smith, Warrington & Linderman 2023, arXiv:2208.04933, sec. 3 and 4, appendix B, and its code.

    >>> mixer = S5Config(d_state=8).build(d_model=4)
    >>> y, state = mixer(torch.randn(1, 20, 4), mixer.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 20, 4]), torch.Size([1, 4, 2]))
    """

    def __init__(self, d_model: int, config: S5Config) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.is_causal = not config.bidirectional
        self.dynamics = S5Dynamics(d_model, config)
        self.readout = Readout(d_model, config.d_state // 2, bidirectional=config.bidirectional, is_complex=True)
        self.gate = Linear(d_model, d_model)
        self.dropout = build_dropout(config.dropout, tied=config.tied_dropout)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """Both parts of C normal of variance 1 / d_state, as are those of G V for such a G; D normal; the gate as
        ``nn.Linear``."""
        self._refuse_if_frozen("cannot draw its parameters again")
        self.dynamics.reset_parameters()
        self.gate.reset_parameters()
        self.readout.reset_parameters()  # both parts of C of variance 1/2
        with torch.no_grad():
            for name, parameter in self.readout.named_parameters():
                parameter.mul_(residual_scale * (1.0 if name == "D" else math.sqrt(2 / self.config.d_state)))

    def _like(self) -> Tensor:
        return self.gate.weight

    def build_operators(self) -> list[DiagonalMIMO]:
        """The discrete system with its skip; if there are two, the second reads backwards."""
        A, B = self.dynamics(self.rate)
        D = wide(self.readout.D).squeeze(1)
        return [
            DiagonalMIMO(A, B, C.squeeze(1), D if i == 0 else None) for i, C in enumerate(self.readout.directions())
        ]

    def state_shape(self) -> DiagonalState:
        return DiagonalState(leaf(self.config.d_state // 2, 2))

    def mix(self, x: Tensor, state: DiagonalState | None, masks: Masks) -> tuple[Tensor, DiagonalState | None]:
        with without_autocast(x.device):
            operators = self.operators
            if len(operators) == 2:
                y = bidirectional(operators[0], operators[1]).apply(wide(x), masks)
            else:
                y, state = operators[0].apply(wide(x), state, masks)
        y = y.to(x.dtype)
        activated = self.dropout(F.gelu(y))
        kept = activated if self.config.gate == "half_glu1" else y
        return self.dropout(kept * torch.sigmoid(self.gate(activated))), state
