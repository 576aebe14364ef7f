"""What DeltaNet, Gated DeltaNet and Kimi Delta Attention have in common: the delta rule between two projections."""

from __future__ import annotations

import abc
import math
from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import Positive, PositiveRange
from statewise.errors import ConfigError
from statewise.kernels.gated_rms_norm import gated_rms_norm
from statewise.kernels.rms_norm import rms_norm
from statewise.mixers.base import Dynamics, Mixer
from statewise.mixers.projection import Linear, draw_default
from statewise.mixers.short_convolution import ShortConvolution
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.delta_rule import DeltaRule, DeltaRuleState
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import full_precision

UNIT_EPS = 1e-6  # beside the squared length of a query or key, as published


class DeltaLayerState(NamedTuple):
    """convolution: the last inputs of the short convolution; memory: (batch, n_heads, d_value, d_key)."""

    convolution: ConvolutionState
    memory: DeltaRuleState


class DecayDynamics(Dynamics):
    """log_a = -exp(A_log) softplus(raw + dt_bias): A_log a number a head, dt_bias a number for each decay."""

    step_sizes: ClassVar[tuple[str, ...]] = ("dt_bias",)

    def __init__(
        self, n_heads: int, n_decays: int, a_range: PositiveRange, dt_range: PositiveRange, dt_floor: Positive
    ) -> None:
        super().__init__()
        self.a_range, self.dt_range, self.dt_floor = a_range, dt_range, dt_floor
        self.n_heads = n_heads
        self.A_log = nn.Parameter(torch.empty(n_heads))
        self.dt_bias = nn.Parameter(torch.empty(n_decays))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.A_log.copy_(torch.empty_like(self.A_log).uniform_(*self.a_range).log())
            log_low, log_high = (math.log(dt) for dt in self.dt_range)
            dt = torch.empty_like(self.dt_bias).uniform_(log_low, log_high).exp().clamp(min=self.dt_floor)
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus

    def forward(self, raw: Tensor) -> Tensor:
        """(batch, length, n_decays) -> log_a of that shape, <= 0, in float32 or wider."""
        dtype = full_precision(self.dt_bias.dtype, raw.dtype)
        A = self.A_log.to(dtype).exp().repeat_interleave(self.dt_bias.shape[0] // self.n_heads)
        return -A * F.softplus(raw.to(dtype) + self.dt_bias.to(dtype))


class HeadNorm(nn.Module):
    """RMSNorm over the width of a head, the same weight for all heads, times a gate where there is one.

    activation: of the gate, "silu" or "sigmoid"
    """

    def __init__(self, d_head: int, eps: float, activation: str = "silu") -> None:
        super().__init__()
        self.eps, self.activation = eps, activation
        self.weight = nn.Parameter(torch.ones(d_head))

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, gate: Tensor | None) -> Tensor:
        """x, gate (batch, length, n_heads, d_head) -> the same"""
        if gate is not None and self.activation == "silu":
            return gated_rms_norm(x, gate, self.weight, self.eps, norm_before_gate=True)
        normed = rms_norm(x, self.weight, self.eps)
        return normed if gate is None else normed * gate.to(normed.dtype).sigmoid()


def unit(x: Tensor, eps: float = UNIT_EPS) -> Tensor:
    """x / sqrt(|x|^2 + eps), over the last axis."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + eps)


class DeltaLayerConfig(Protocol):
    """What the configs of these layers have in common."""

    @property
    def n_heads(self) -> int: ...
    @property
    def n_taps(self) -> int: ...
    @property
    def negative_eigenvalues(self) -> bool: ...
    @property
    def norm_eps(self) -> float: ...
    @property
    def bias(self) -> bool: ...
    @property
    def chunk_length(self) -> int: ...


class DeltaLayer(Mixer):
    """Projection, short convolution with SiLU of q, k and v, unit keys and queries, the delta rule, a norm a head,
    projection. A child says where its decay and its gate come from.

    Parameters: ``in_proj.weight`` has the rows of q, then k (n_key_heads d_key each), v (n_heads d_value), and then
    what the child has more, the last ones for beta; ``convolution`` the channels of q, k, v in that order.
    """

    def __init__(
        self,
        d_model: int,
        config: DeltaLayerConfig,
        *,
        d_key: int,
        d_value: int,
        more: Sequence[int],
        n_key_heads: int | None = None,
        gate_activation: str = "silu",
    ) -> None:
        super().__init__()
        self.dynamics: DecayDynamics | None = None
        self.most_beta, self.chunk_length = 2 if config.negative_eigenvalues else 1, config.chunk_length
        n_heads, name = config.n_heads, type(config).__name__
        self.d_model, self.n_heads, self.d_key, self.d_value = d_model, n_heads, d_key, d_value
        self.n_key_heads = n_heads if n_key_heads is None else n_key_heads
        if n_heads % self.n_key_heads:
            raise ConfigError(f"{name}.n_key_heads={n_key_heads} does not divide n_heads={n_heads}; use one that does")
        self.convolved_sizes = [self.n_key_heads * d_key, self.n_key_heads * d_key, n_heads * d_value]
        self.sizes = [sum(self.convolved_sizes), *more, n_heads]
        parts = (*self.convolved_sizes, *self.sizes[1:])
        self.in_proj = Linear(d_model, sum(self.sizes), bias=config.bias, parts=parts)
        self.convolution = ShortConvolution(self.sizes[0], config.n_taps, bias=False, activation="silu")
        self.norm = HeadNorm(d_value, config.norm_eps, gate_activation)
        self.out_proj = Linear(n_heads * d_value, d_model, bias=config.bias)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default for the projections (biases zero), the output's scaled; the decays as Mamba-2's."""
        draw_default(self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
        self.convolution.reset_parameters()
        self.norm.reset_parameters()
        if self.dynamics is not None:
            self.dynamics.reset_parameters()

    @abc.abstractmethod
    def controls(self, *more: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """log_a as :class:`DeltaRule` takes it, and the gate (batch, length, n_heads d_value), of the further rows."""

    def state_shape(self) -> DeltaLayerState:
        memory = DeltaRuleState(leaf(self.n_heads, self.d_value, self.d_key))
        return DeltaLayerState(self.convolution.operator.state_shape(), memory)

    def mix(self, x: Tensor, state: DeltaLayerState | None, masks: Masks) -> tuple[Tensor, DeltaLayerState | None]:
        before, before_memory = (None, None) if state is None else state
        qkv, *more, raw_beta = self.in_proj(x).split(self.sizes, -1)
        qkv, convolution = self.convolution(qkv, before, masks=masks)
        q, k, v = qkv.to(full_precision(qkv.dtype)).split(self.convolved_sizes, -1)
        q, k = (unit(m.unflatten(-1, (self.n_key_heads, self.d_key))) for m in (q, k))
        beta = self.most_beta * raw_beta.to(q.dtype).sigmoid()
        log_a, gate = self.controls(*more)
        operator = DeltaRule(q * self.d_key**-0.5, k, beta, log_a, self.chunk_length)
        y, memory = operator.apply(v.unflatten(-1, (self.n_heads, self.d_value)), before_memory, masks)
        y = self.norm(y, None if gate is None else gate.unflatten(-1, (self.n_heads, self.d_value)))
        y = self.out_proj(y.flatten(-2).to(x.dtype))
        return y, None if state is None else DeltaLayerState(convolution, memory)
