"""Mamba-2: a scalar-identity state-space model (SSD) between two projections, with a gate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import Count, Finite, NonNegative, OneOf, OpenRange, Positive, PositiveRange
from statewise.errors import ConfigError
from statewise.kernels.backend import reads_narrow
from statewise.mixers.base import Dynamics, Mixer, MixerConfig
from statewise.mixers.gated_norm import GatedRMSNorm
from statewise.mixers.projection import Linear, draw_default
from statewise.mixers.short_convolution import ShortConvolution
from statewise.operators.bidirectional import COMBINE, combine, reverse, reversed_order
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.head_patterns import HEAD_PATTERNS, Heads, heads_of, share_heads
from statewise.operators.masks import NO_MASKS, Masks
from statewise.operators.ssd import SSD, SSDState
from statewise.operators.state_shape import leaf
from statewise.precision import as_dtype, full_precision


class Mamba2State(NamedTuple):
    """convolution: the last inputs of the short convolution; ssm: (batch, n_heads, d_head, d_state)."""

    convolution: ConvolutionState
    ssm: SSDState


@dataclass(frozen=True, kw_only=True)
class Mamba2Config(MixerConfig):
    """Mamba-2 with its published defaults, except that a chunk has 64 steps instead of 256.

    n_heads:          None: expand d_model / d_head; else the inner width is n_heads d_head, whatever ``expand`` is
    norm:             GatedRMSNorm(y, z) behind the system; if False, y * SiLU(z), as in Falcon-H1
    output_bias:      of the output's projection, if that differs from ``bias``
    projection_scales: by which the parts z, x, B, C, dt of the input's projection are multiplied; None: by 1
    head_pattern:     what each head has for itself: "multi_value", as published, its input; "multi_query" its C,
                      "multi_key" its B, "multi_head" all three. ``n_groups`` groups of heads share the rest, see
                      :func:`~statewise.operators.head_patterns.heads_of`
    bidirectional:    the system also reads the sequence from its end; then it has no state and cannot decode
    tied_directions:  one set of weights for both directions; if False, each has its own convolution, A, D, bias of dt
                      and norm
    combine:          how the two directions enter the output: their "sum", or both ("concatenate")
    Source: Dao & Gu 2024, arXiv:2405.21060, sec. 7, and the Mamba2 module of ``mamba_ssm``.
    """

    d_state: Count = 128
    d_head: Count = 64
    expand: Count = 2
    n_heads: Count | None = None
    n_groups: Count = 1
    n_taps: Count = 4
    chunk_length: Count = 64
    norm: bool = True
    norm_before_gate: bool = False
    norm_groups: Count | None = None  # groups of the gated norm; None: as many as n_groups
    norm_eps: NonNegative = 1e-5
    a_range: PositiveRange = (1.0, 16.0)  # -A is drawn uniformly from it
    dt_range: PositiveRange = (1e-3, 1e-1)  # dt at initialisation is drawn log-uniformly from it
    dt_floor: Positive = 1e-4
    dt_limit: OpenRange = (0.0, math.inf)  # dt is clamped to it after the softplus
    bias: bool = False
    convolution_bias: bool = True
    head_pattern: Annotated[str, OneOf(HEAD_PATTERNS)] = "multi_value"
    bidirectional: bool = False
    tied_directions: bool = True
    combine: Annotated[str, OneOf(COMBINE)] = "sum"
    output_bias: bool | None = None
    projection_scales: tuple[Finite, Finite, Finite, Finite, Finite] | None = None

    def __post_init__(self) -> None:
        if not self.norm and (self.norm_before_gate or self.norm_groups is not None):
            raise ConfigError(
                "Mamba2Config.norm_before_gate and norm_groups are of a norm; leave them out, or norm=True"
            )
        if not self.bidirectional and (not self.tied_directions or self.combine != "sum"):
            raise ConfigError(
                "Mamba2Config.tied_directions and combine only matter with bidirectional=True; leave them out"
            )

    def heads(self, d_model: int) -> int:
        """How many there are.

        Errors:  ConfigError if the heads' width does not divide the inner width.
        """
        if self.n_heads is not None:
            return self.n_heads
        d_inner = self.expand * d_model
        if d_inner % self.d_head:
            raise ConfigError(
                f"Mamba2Config.d_head={self.d_head} does not divide expand * d_model = {d_inner}; "
                "use a head width that does"
            )
        return d_inner // self.d_head

    def build(self, d_model: int) -> Mamba2:
        return Mamba2(d_model, self)


class Mamba2Dynamics(Dynamics):
    """A = -exp(A_log), the bias of dt before its softplus, and the skip D, one number a head each."""

    step_sizes: ClassVar[tuple[str, ...]] = ("dt_bias",)

    def __init__(self, n_heads: int, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.dt_bias = nn.Parameter(torch.empty(n_heads))
        self.D = nn.Parameter(torch.empty(n_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        config = self.config
        with torch.no_grad():
            self.A_log.copy_(torch.empty_like(self.A_log).uniform_(*config.a_range).log())
            log_low, log_high = (math.log(dt) for dt in config.dt_range)
            dt = torch.empty_like(self.dt_bias).uniform_(log_low, log_high).exp().clamp(min=config.dt_floor)
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
            self.D.fill_(1.0)

    def forward(self, dt: Tensor) -> tuple[Tensor, Tensor]:
        """Raw dt (batch, length, n_heads) -> the step sizes and log_a = dt A, in float32 or wider."""
        dtype = full_precision(self.dt_bias.dtype)
        dt = F.softplus(as_dtype(dt, dtype) + as_dtype(self.dt_bias, dtype))
        low, high = self.config.dt_limit
        if low > 0 or high < math.inf:
            dt = dt.clamp(low, high)
        return dt, -dt * as_dtype(self.A_log, dtype).exp()


class Mamba2Direction(nn.Module):
    """What lies between the two projections of a Mamba-2 layer, for one direction of reading: x, B, C pass a
    convolution and SiLU; the system; GatedRMSNorm(y, z)."""

    def __init__(self, n_heads: int, heads: Heads, config: Mamba2Config) -> None:
        super().__init__()
        self.config, self.n_heads, self.heads = config, n_heads, heads
        d_inner = n_heads * config.d_head
        norm_groups = config.n_groups if config.norm_groups is None else config.norm_groups
        if config.norm and d_inner % norm_groups:
            raise ConfigError(f"Mamba2Config.norm_groups={norm_groups} does not divide {d_inner}; use one that does")
        d_values, d_keys, d_queries = (
            heads.values * config.d_head,
            heads.keys * config.d_state,
            heads.queries * config.d_state,
        )
        self.convolved_sizes = [d_values, d_keys, d_queries]  # x; B; C
        self.sizes = [d_inner, sum(self.convolved_sizes), n_heads]  # z; x, B, C; dt
        self.convolution = ShortConvolution(
            self.sizes[1], config.n_taps, bias=config.convolution_bias, activation="silu"
        )
        self.dynamics = Mamba2Dynamics(n_heads, config)
        self.norm = None
        if config.norm:
            self.norm = GatedRMSNorm(
                d_inner, n_groups=norm_groups, norm_before_gate=config.norm_before_gate, eps=config.norm_eps
            )

    def reset_direction(self) -> None:
        self.convolution.reset_parameters()
        self.dynamics.reset_parameters()
        if self.norm is not None:
            self.norm.reset_parameters()

    def select(
        self, projected: Tensor, state: ConvolutionState | None = None, masks: Masks = NO_MASKS
    ) -> tuple[SSD, Tensor, Tensor, ConvolutionState | None]:
        """The system that z, x, B, C, dt side by side (batch, length, ...) select, with its skip; the values
        (batch, length, n_heads, d_head) that it reads, in its dtype, or on a GPU as they are stored; the gate z (batch,
        length, d_inner); and the short convolution's state.
        """
        config = self.config
        z, xBC, dt = self._scaled(projected).split(self.sizes, -1)
        xBC, convolution = self.convolution(xBC, state, masks=masks)
        values, B, C = xBC.split(self.convolved_sizes, -1)
        values = share_heads(values.unflatten(-1, (self.heads.values, config.d_head)), self.n_heads)
        B, C = (m.unflatten(-1, (-1, config.d_state)) for m in (B, C))
        dt, log_a = self.dynamics(dt)
        operator = SSD(log_a, B, C, config.chunk_length, dt=dt, D=self.dynamics.D)
        return operator, values if reads_narrow(values.device) else values.to(dt.dtype), z, convolution

    def read(self, projected: Tensor, state: Mamba2State | None, masks: Masks) -> tuple[Tensor, Mamba2State | None]:
        """What ``in_proj`` gave -> the normed outputs (batch, length, d_inner)."""
        before, before_ssm = (None, None) if state is None else state
        operator, values, z, convolution = self.select(projected, before, masks)
        y, ssm = operator.apply(values, before_ssm, masks)
        y = y.flatten(-2)
        y = y * F.silu(z.to(y.dtype)) if self.norm is None else self.norm(y, z)
        return y, None if convolution is None else Mamba2State(convolution, ssm)

    def _scaled(self, projected: Tensor) -> Tensor:
        """Each part of what ``in_proj`` gave by its number."""
        scales = self.projection_scales()
        return projected if scales is None else projected * scales.to(projected)

    def projection_scales(self) -> Tensor | None:
        """By which each output of ``in_proj`` is multiplied."""
        scales = self.config.projection_scales
        if scales is None:
            return None
        sizes = (self.sizes[0], *self.convolved_sizes, self.sizes[2])
        return torch.cat([torch.full((size,), scale) for size, scale in zip(sizes, scales)])


class Mamba2(Mamba2Direction, Mixer):
    """[z, x, B, C, dt] = W_in u; x, B, C pass a short convolution and SiLU; h_t = e^{dt_t A} h_{t-1} + dt_t x_t B_t^T,
    y_t = h_t C_t + D x_t; W_out GatedRMSNorm(y, z).

    Bidirectional, all between W_in and W_out is done for the reversed sequence as well, the convolution included. A
    mixer is its own forward direction; ``backward_direction`` holds the other's weights, if they are not tied.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`Mamba2State`
    Cost:    for each token, multiply-adds of the projections, d_model (3 d_inner + 2 n_groups d_state + n_heads),
             and of the system, about d_inner (chunk_length + 2 d_state). The state holds d_inner d_state numbers,
             and n_taps - 1 inputs of d_inner + 2 n_groups d_state. Other head patterns project other widths.
    Errors:  ConfigError if the sizes do not divide; InputError for shapes that disagree.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 7.1, fig. 6 (the parallel block), and 7.2 (head patterns).
    """

    def __init__(self, d_model: int, config: Mamba2Config) -> None:
        n_heads = config.heads(d_model)
        d_inner = n_heads * config.d_head
        heads = heads_of(config.head_pattern, n_heads, config.n_groups, "Mamba2Config")
        super().__init__(n_heads, heads, config)
        self.d_model, self.d_inner = d_model, d_inner
        self.is_causal = not config.bidirectional
        parts = (d_inner, *self.convolved_sizes, n_heads)  # z; x; B; C; dt
        self.in_proj = Linear(d_model, sum(self.sizes), bias=config.bias, parts=parts)
        for name in ("convolution", "dynamics", "norm"):  # behind in_proj: the order in which gradients are added up
            if name in self._modules:
                self._modules[name] = self._modules.pop(name)
        width = 2 * d_inner if config.combine == "concatenate" else d_inner
        self.out_proj = Linear(width, d_model, bias=config.bias if config.output_bias is None else config.output_bias)
        own = config.bidirectional and not config.tied_directions
        self.backward_direction = Mamba2Direction(n_heads, heads, config) if own else None
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As published: PyTorch's default for the projections (biases zero), the output's scaled."""
        draw_default(self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
        self.reset_direction()
        if self.backward_direction is not None:
            self.backward_direction.reset_direction()

    def state_shape(self) -> Mamba2State:
        ssm = SSDState(leaf(self.n_heads, self.config.d_head, self.config.d_state))
        return Mamba2State(self.convolution.operator.state_shape(), ssm)

    def mix(self, x: Tensor, state: Mamba2State | None, masks: Masks) -> tuple[Tensor, Mamba2State | None]:
        projected = self.in_proj(x)
        y, state = self.read(projected, state, masks)
        if self.config.bidirectional:
            order = reversed_order(x, masks)
            other = self.backward_direction or self
            behind, _ = other.read(reverse(projected, order), None, masks)
            y = combine(y, reverse(behind, order), self.config.combine)
        return self.out_proj(y.to(x.dtype)), state
