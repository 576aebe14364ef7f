"""Mamba: a selective state-space model for each channel, between two projections, with a gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise import hippo
from statewise.configuration.types import Count, OneOf, Positive, PositiveRange
from statewise.errors import ConfigError
from statewise.mixers.base import (
    Dynamics,
    Mixer,
    MixerConfig,
)
from statewise.mixers.prepared import wide
from statewise.mixers.projection import Linear, draw_default
from statewise.mixers.short_convolution import ShortConvolution
from statewise.operators.bidirectional import COMBINE, combine, reverse, reversed_order
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.masks import Masks
from statewise.operators.selective import METHODS, SelectiveDiagonal, SelectiveState
from statewise.operators.state_shape import leaf

INITIALIZATIONS = ("real", "lin")
NORMED = ("dt", "B", "C")


class MambaState(NamedTuple):
    """convolution: the last inputs of the short convolution; ssm: (batch, d_inner, d_state), or, if A is complex,
    (batch, d_inner, d_state / 2, 2)."""

    convolution: ConvolutionState
    ssm: SelectiveState


@dataclass(frozen=True, kw_only=True)
class MambaConfig(MixerConfig):
    """Mamba with its published defaults.

    d_state:          N, the order of each channel's system
    dt_rank:          the inner width of the map that computes dt; None: d_model / 16, rounded up
    dt_range:         dt at initialisation is drawn log-uniformly from it, and is at least ``dt_floor``
    method:           "mamba", Delta B as published, or "zoh", exact zero-order hold
    initialization:   of A: "real", -1 ... -N; or "lin", -1/2 + i pi n as S4D-Lin: then A, B and C are d_state / 2
                      complex numbers, one of each conjugate pair
    bidirectional:    the system also reads the sequence from its end; then it has no state and cannot decode
    tied_directions:  one set of weights for both directions; if False, each has its own convolution, x_proj, dt_proj, A
        and D
    combine:          how the two directions enter the output: their "sum", or both ("concatenate")
    norm_dt_b_c:      dt before W_dt, B and C are each divided by their root mean square, as in Falcon-Mamba, without
                      weights
    norm_weights:     these norms multiply by weights, as in Jamba
    norm_eps:         added to the mean square
    Source:           Gu & Dao 2023, arXiv:2312.00752, sec. 3.4 and 3.6, and the Mamba module of ``mamba_ssm``; the
                      norms: Zuo et al. 2024 (Falcon Mamba), arXiv:2410.05355, sec. 2; Lieber et al.
                      2024 (Jamba), arXiv:2403.19887, sec. 3.
    """

    d_state: Count = 16
    expand: Count = 2
    n_taps: Count = 4
    dt_rank: Count | None = None
    dt_range: PositiveRange = (1e-3, 1e-1)
    dt_floor: Positive = 1e-4
    method: Annotated[str, OneOf(METHODS)] = "mamba"
    initialization: Annotated[str, OneOf(INITIALIZATIONS)] = "real"
    bias: bool = False
    convolution_bias: bool = True
    bidirectional: bool = False
    tied_directions: bool = True
    combine: Annotated[str, OneOf(COMBINE)] = "sum"
    norm_dt_b_c: bool = False
    norm_weights: bool = False
    norm_eps: Positive = 1e-6

    def __post_init__(self) -> None:
        if self.norm_weights and not self.norm_dt_b_c:
            raise ConfigError("MambaConfig.norm_weights are those of norm_dt_b_c; set it, or leave them out")
        if self.is_complex and self.d_state % 2:
            raise ConfigError(
                f"MambaConfig.d_state={self.d_state}; a complex A comes in conjugate pairs: use an even d_state"
            )
        if not self.bidirectional and (not self.tied_directions or self.combine != "sum"):
            raise ConfigError(
                "MambaConfig.tied_directions and combine only matter with bidirectional=True; leave them out"
            )

    @property
    def is_complex(self) -> bool:
        return self.initialization != "real"

    @property
    def n_stored(self) -> int:
        """How many numbers of A are stored for a channel: one of each conjugate pair."""
        return self.d_state // 2 if self.is_complex else self.d_state

    def build(self, d_model: int) -> Mamba:
        return Mamba(d_model, self)


class MambaDynamics(Dynamics):
    """A = -exp(A_log) + i frequency, without the second if A is real; the bias of dt before its softplus; the skip D.

    Shapes:  A_log, frequency: (d_inner, n), n being d_state, or d_state / 2 complex pairs   dt_bias, D: (d_inner,)
    """

    step_sizes: ClassVar[tuple[str, ...]] = ("dt_bias",)

    def __init__(self, d_inner: int, config: MambaConfig) -> None:
        super().__init__()
        self.config = config
        self.A_log = nn.Parameter(torch.empty(d_inner, config.n_stored))
        self.frequency = nn.Parameter(torch.empty(d_inner, config.n_stored)) if config.is_complex else None
        self.dt_bias = nn.Parameter(torch.empty(d_inner))
        self.D = nn.Parameter(torch.empty(d_inner))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        config = self.config
        A, _ = hippo.diagonal(config.initialization, config.d_state)
        with torch.no_grad():
            self.A_log.copy_((-A.real).log().expand_as(self.A_log))
            if self.frequency is not None:
                self.frequency.copy_(A.imag.expand_as(self.frequency))
            log_low, log_high = (math.log(dt) for dt in config.dt_range)
            dt = torch.empty_like(self.dt_bias).uniform_(log_low, log_high).exp().clamp(min=config.dt_floor)
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
            self.D.fill_(1.0)

    def forward(self) -> Tensor:
        """A, (d_inner, n), in float32 or wider, or complex."""
        A = -wide(self.A_log).exp()
        return A if self.frequency is None else torch.complex(A, wide(self.frequency))


class MambaDirection(nn.Module):
    """What lies between the two projections of a Mamba layer, for one direction of reading:
    x = SiLU(convolution(u)); [dt, B, C] = W_x x; the selective system, with W_dt dt for its step sizes; times SiLU(z).
    """

    def __init__(self, d_inner: int, dt_rank: int, config: MambaConfig) -> None:
        super().__init__()
        self.config = config
        self.sizes = [dt_rank, config.d_state, config.d_state]  # dt; B; C
        self.convolution = ShortConvolution(d_inner, config.n_taps, bias=config.convolution_bias, activation="silu")
        self.x_proj = Linear(d_inner, sum(self.sizes), bias=False, parts=self.sizes)
        self.dt_proj = Linear(dt_rank, d_inner, bias=False)  # its bias is dynamics.dt_bias
        sizes = zip(NORMED, self.sizes) if config.norm_weights else ()
        self.norm_weights = nn.ParameterDict({name: torch.ones(size) for name, size in sizes})
        self.dynamics = MambaDynamics(d_inner, config)
        self.reset_direction()

    def reset_direction(self) -> None:
        self.convolution.reset_parameters()
        draw_default(self.x_proj)
        bound = self.dt_proj.in_features**-0.5
        nn.init.uniform_(self.dt_proj.weight, -bound, bound)
        for weight in self.norm_weights.values():
            nn.init.ones_(weight)
        self.dynamics.reset_parameters()

    def read(self, u: Tensor, z: Tensor, state: MambaState | None, masks: Masks) -> tuple[Tensor, MambaState | None]:
        """u, z: (batch, length, d_inner) -> the same."""
        before, before_ssm = (None, None) if state is None else state
        x, convolution = self.convolution(u, before, masks=masks)
        y, ssm = self.operator(x, z).apply(x, before_ssm, masks)
        return y, None if state is None else MambaState(convolution, ssm)

    def operator(self, x: Tensor, z: Tensor | None = None) -> SelectiveDiagonal:
        """The system that the convolved input x selects; z is its gate."""
        dt, B, C = self.x_proj(x).split(self.sizes, -1)
        if self.config.norm_dt_b_c:
            dt, B, C = (self._normed(name, m) for name, m in zip(NORMED, (dt, B, C)))
        if self.config.is_complex:  # the real and the imaginary part of each number side by side
            B, C = (torch.complex(*wide(m).unflatten(-1, (-1, 2)).unbind(-1)) for m in (B, C))
        return SelectiveDiagonal(
            self.dt_proj(dt),
            self.dynamics(),
            B.unsqueeze(2),
            C.unsqueeze(2),
            D=self.dynamics.D,
            gate=z,
            dt_bias=self.dynamics.dt_bias,
            softplus=True,
            method=self.config.method,
        )

    def _normed(self, name: str, m: Tensor) -> Tensor:
        """Over the last axis, in float32 or wider."""
        weight = wide(self.norm_weights[name]) if self.config.norm_weights else None
        return F.rms_norm(wide(m), m.shape[-1:], weight, self.config.norm_eps).to(m.dtype)


class Mamba(MambaDirection, Mixer):
    """[u, z] = W_in x; u = SiLU(convolution(u)); [dt, B, C] = W_x u; Delta = softplus(W_dt dt + b);
    h_t = exp(Delta A) h_{t-1} + Delta B u_t, y_t = C h_t + D u_t; W_out (y * SiLU(z)).

    Bidirectional, all between W_in and W_out is done for the reversed sequence as well, the convolution included. A
    mixer is its own forward direction; ``backward_direction`` holds the other's weights, if they are not tied.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`MambaState`
    Cost:    for each token, multiply-adds of the projections, d_inner (3 d_model + 2 dt_rank + 2 d_state), and of the
             system, about 6 d_inner d_state. The state holds d_inner d_state numbers, and n_taps - 1 inputs of d_inner.
    Errors:  ConfigError for a width that is not a count; InputError for shapes, dtypes or states that do not fit.
    Source:  Gu & Dao 2023, arXiv:2312.00752, sec. 3.4, fig. 3.

    >>> mixer = MambaConfig(d_state=4).build(d_model=8)
    >>> y, state = mixer(torch.randn(1, 20, 8), mixer.initial_state(batch=1))
    >>> y.shape, state.ssm.h.shape
    (torch.Size([1, 20, 8]), torch.Size([1, 16, 4]))
    """

    def __init__(self, d_model: int, config: MambaConfig) -> None:
        d_inner = config.expand * d_model
        dt_rank = math.ceil(d_model / 16) if config.dt_rank is None else config.dt_rank
        super().__init__(d_inner, dt_rank, config)
        self.d_model, self.d_inner, self.dt_rank = d_model, d_inner, dt_rank
        self.is_causal = not config.bidirectional
        own = config.bidirectional and not config.tied_directions
        self.backward_direction = MambaDirection(d_inner, dt_rank, config) if own else None
        self.in_proj = Linear(d_model, 2 * d_inner, bias=config.bias, parts=(d_inner, d_inner))
        width = 2 * d_inner if config.combine == "concatenate" else d_inner
        self.out_proj = Linear(width, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As published: PyTorch's default for the projections (biases zero), the output's scaled."""
        draw_default(self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
        self.reset_direction()
        if self.backward_direction is not None:
            self.backward_direction.reset_direction()

    def state_shape(self) -> MambaState:
        pair = (2,) if self.config.is_complex else ()
        h = leaf(self.d_inner, self.config.n_stored, *pair)
        return MambaState(self.convolution.operator.state_shape(), SelectiveState(h))

    def mix(self, x: Tensor, state: MambaState | None, masks: Masks) -> tuple[Tensor, MambaState | None]:
        u, z = self.in_proj(x).chunk(2, -1)
        y, state = self.read(u, z, state, masks)
        if self.config.bidirectional:
            order = reversed_order(x, masks)
            other = self.backward_direction or self
            behind, _ = other.read(reverse(u, order), reverse(z, order), None, masks)
            y = combine(y, reverse(behind, order), self.config.combine)
        return self.out_proj(y.to(x.dtype)), state
