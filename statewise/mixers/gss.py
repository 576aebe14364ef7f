"""GSS: a diagonal state-space model of few channels, expanded and gated by a wide feedforward branch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import Count, EvenCount
from statewise.errors import ConfigError
from statewise.mixers.base import Dynamics, MixerConfig
from statewise.mixers.prepared import PreparableMixer, wide
from statewise.mixers.projection import Linear
from statewise.mixers.time_invariant import Readout, least_decay
from statewise.operators.bidirectional import bidirectional
from statewise.operators.diagonal import DiagonalLTI, DiagonalState
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import without_autocast

LEAST = 1e-15  # of the decay: beside 1 it is nothing, and its square is no zero to divide by


@dataclass(frozen=True, kw_only=True)
class GSSConfig(MixerConfig):
    """Gated state spaces (GSS).

    d_state:    N, the order of each channel's system: d_state / 2 complex pairs, of which one of each is kept
    expand:     the gate, and what it multiplies, are expand * d_model wide
    bottleneck: the system has d_model / bottleneck channels
    bias:       of the projections
    norm:       a LayerNorm in front of the system
    n_systems:  how many A there are; channel h has number h modulo n_systems. A divisor of the channels, or None for as
                many as those; the paper has 1
    random_decay: real parts of A begin as -e^g, g from the normal distribution, and not at -1/2
    bidirectional: a second C reads the same systems run backwards in time; then it has no state and cannot decode
    """

    d_state: EvenCount = 64
    expand: Count = 4
    bottleneck: Count = 4
    bias: bool = True
    norm: bool = False
    n_systems: Count | None = None
    random_decay: bool = False
    bidirectional: bool = False

    def build(self, d_model: int) -> GSS:
        return GSS(d_model, self)


class GSSDynamics(Dynamics):
    """A = -exp(log_decay) + i exp(log_frequency), both (n_systems, d_state / 2); B and dt are 1 and not learned."""

    def __init__(self, d_ssm: int, config: GSSConfig) -> None:
        super().__init__()
        n_systems = config.n_systems or d_ssm
        if d_ssm % n_systems:
            raise ConfigError(
                f"GSSConfig.n_systems={n_systems} does not divide the system's {d_ssm} channels; use a divisor, or None"
            )
        self.d_ssm, self.d_state, self.random_decay = d_ssm, config.d_state, config.random_decay
        self.log_decay = nn.Parameter(torch.empty(n_systems, config.d_state // 2))
        self.log_frequency = nn.Parameter(torch.empty(n_systems, config.d_state // 2))

    def reset_parameters(self) -> None:
        """A = -1/2 + i e^g, g from the normal distribution: S4D's "random", drawn for each system."""
        with torch.no_grad():
            for decay, frequency in zip(self.log_decay, self.log_frequency):
                A, _ = hippo.diagonal("random", self.d_state)
                decay.copy_(least_decay(A).log())
                frequency.copy_(A.imag.log())
            if self.random_decay:
                self.log_decay.normal_()

    def forward(self, rate: float) -> tuple[Tensor, Tensor]:
        """The discrete A and B, (d_ssm, d_state / 2): e^(rate A) and (e^(rate A) - 1) / A.

        The zero-order hold written out: with a step of 1 there is no product of dt and A whose rounding would count.
        """
        A = self.continuous()
        gain = torch.expm1(A if rate == 1.0 else A * rate)
        return gain + 1, gain / A

    def continuous(self) -> Tensor:
        """A before it is made discrete, (d_ssm, d_state / 2)."""
        decay = wide(self.log_decay).exp().clamp(min=LEAST)
        A = torch.complex(-decay, wide(self.log_frequency).exp())
        return A.repeat(self.d_ssm // len(A), 1) if len(A) < self.d_ssm else A


class GSS(PreparableMixer):
    """u = GELU(W_1 x), v = GELU(W_2 x); y = W_4 (u * W_3 DSS(v)), the residual being the block's.

    DSS is, for each of the d_ssm = d_model / bottleneck channels of v, x_t = e^A x_{t-1} + (e^A - 1) / A v_t, read as
    2 Re(C x_t) + D v_t with a diagonal A = -exp(log_decay) + i exp(log_frequency).

    Published: the equations, the widths 4 d_model and d_model / 4, exp for both parts of A, B = 1 and a step of 1 that
    are not learned. The paper has one A for all channels, a d_state of 512, random real parts of A too, and a norm in
    front of the system: ``GSSConfig(d_state=512, norm=True, n_systems=1, random_decay=True)``. Usually, as in the
    options by which the code of S4 says it has GSS: an A for each channel, real parts of -1/2, random imaginary ones,
    no norm. Our choice: a d_state of 64, the exact GELU, projections that begin as ``nn.Linear`` does, with biases. The
    settings of H3's GSS baseline are not published.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.diagonal.DiagonalState`,
             (batch, d_ssm, d_state / 2, 2). ``in_proj.weight``: the rows of W_1, then those of W_2
    Cost:    for each token, multiply-adds of the projections, 2 expand d_model^2 + d_model d_ssm (1 + expand), and a
             convolution over d_ssm channels. ``freeze()`` before decoding.
    Errors:  ConfigError if bottleneck does not divide d_model; InputError for shapes or states that do not fit.
    Source:  Mehta et al. 2022, arXiv:2206.13947, sec. 3.1 and 3.2; DSS: Gupta et al. 2022, arXiv:2203.14343.

    >>> mixer = GSSConfig(d_state=8).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 20, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 20, 16]), torch.Size([1, 4, 4, 2]))
    """

    def __init__(self, d_model: int, config: GSSConfig) -> None:
        if d_model % config.bottleneck:
            raise ConfigError(
                f"d_model={d_model} is not a multiple of GSSConfig.bottleneck={config.bottleneck}; use a divisor"
            )
        super().__init__()
        self.d_model, self.config = d_model, config
        self.is_causal = not config.bidirectional
        self.d_inner, self.d_ssm = config.expand * d_model, d_model // config.bottleneck
        self.in_proj = Linear(d_model, self.d_inner + self.d_ssm, bias=config.bias, parts=(self.d_inner, self.d_ssm))
        self.norm = nn.LayerNorm(self.d_ssm) if config.norm else None
        self.dynamics = GSSDynamics(self.d_ssm, config)
        self.readout = Readout(self.d_ssm, config.d_state // 2, bidirectional=config.bidirectional, is_complex=True)
        self.up_proj = Linear(self.d_ssm, self.d_inner, bias=config.bias)
        self.out_proj = Linear(self.d_inner, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """The projections as ``nn.Linear``, the output's scaled."""
        self._refuse_if_frozen("cannot draw its parameters again")
        for projection in (self.in_proj, self.up_proj, self.out_proj):
            projection.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()
        with torch.no_grad():
            for parameter in self.out_proj.parameters():
                parameter.mul_(residual_scale)
        self.dynamics.reset_parameters()
        self.readout.reset_parameters()

    def build_operators(self) -> list[DiagonalLTI]:
        """The discrete system with its skip, and without it the one that reads backwards, if there is one."""
        A, B = self.dynamics(self.rate)
        C, *backward = (m.squeeze(1) for m in self.readout.directions())
        ahead = DiagonalLTI(A, B, C, wide(self.readout.D).squeeze(1))
        return [ahead, *(DiagonalLTI(A, B, m) for m in backward)]

    def state_shape(self) -> DiagonalState:
        return DiagonalState(leaf(self.d_ssm, self.config.d_state // 2, 2))

    def mix(self, x: Tensor, state: DiagonalState | None, masks: Masks) -> tuple[Tensor, DiagonalState | None]:
        u, v = F.gelu(self.in_proj(x)).split((self.d_inner, self.d_ssm), -1)
        if self.norm is not None:
            v = self.norm(v)
        with without_autocast(x.device):
            operators = self.operators
            if len(operators) == 2:
                y = bidirectional(operators[0], operators[1]).apply(wide(v), masks)
            else:
                y, state = operators[0].apply(wide(v), state, masks)
        return self.out_proj(u * self.up_proj(y.to(u.dtype))), state
