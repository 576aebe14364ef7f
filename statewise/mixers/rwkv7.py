"""RWKV-7's time mixing: a state that erases along one key and writes along another, with a decay a channel.

``channel_mix`` is the other half of a layer of the published model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import Count, NonNegative
from statewise.errors import ConfigError
from statewise.mixers.base import Dynamics, Mixer, MixerConfig
from statewise.mixers.delta_layer import unit
from statewise.mixers.projection import Linear, draw_default
from statewise.mixers.token_shift import between, token_shift
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.delta_rule import DeltaRuleState, DiagonalPlusRankOne
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import full_precision

MIXES = ("r", "w", "k", "v", "a", "g")  # what is made of the present input and the one before
LEAST_LOG_DECAY = -0.6065306597126334  # -exp(-1/2)
UNIT_EPS = 1e-24  # beside the squared length of a key


class RWKV7State(NamedTuple):
    """shift: the last input; memory: (batch, n_heads, d_head, d_head), values by keys."""

    shift: ConvolutionState
    memory: DeltaRuleState


@dataclass(frozen=True, kw_only=True)
class RWKV7Config(MixerConfig):
    """RWKV-7's time mixing with heads of ``d_head``.

    decay_rank, rate_rank, gate_rank: of the small networks that give the decay w, the rate a and the gate g
    value_rank:   of the one by which a layer mixes its values with those of the nearest layer before it that has none;
                  None: the first layer of a model, or of a group of layers
    norm_eps:     of the norm a head, times d_head, as published
    chunk_length: steps in a chunk, without C

    Source: Peng et al. 2025, arXiv:2503.14456, sec. 3 and app. E.
    """

    d_head: Count = 64
    decay_rank: Count = 64
    rate_rank: Count = 64
    gate_rank: Count = 128
    value_rank: Count | None = None
    norm_eps: NonNegative = 1e-5
    chunk_length: Count = 64

    def build(self, d_model: int) -> RWKV7:
        return RWKV7(d_model, self)


class RWKV7Dynamics(Dynamics):
    """log w = -exp(-1/2) sigmoid(raw + bias): a decay a channel, between 0.545 and 1."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.empty(d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """From slow to fast channels, as published for the first layer: -5.5 .. 0.5."""
        with torch.no_grad():
            self.bias.copy_(torch.linspace(-5.5, 0.5, len(self.bias)))

    def forward(self, raw: Tensor) -> Tensor:
        dtype = full_precision(raw.dtype, self.bias.dtype)
        return LEAST_LOG_DECAY * (raw.to(dtype) + self.bias.to(dtype)).sigmoid()


class SmallNetwork(nn.Module):
    """W_2 f(W_1 x), with a bias where its output is not the decay's, which has its own in the dynamics."""

    def __init__(self, d_model: int, rank: int, *, bias: bool) -> None:
        super().__init__()
        self.down, self.up = Linear(d_model, rank, bias=False), Linear(rank, d_model, bias=bias)


class RWKV7(Mixer):
    """S_t = S_{t-1} (diag(w_t) - kappa_t (a_t * kappa_t)^T) + v_t k_t^T, o_t = S_t r_t for each head;
    y = W_o (g * (GroupNorm(o) + (sum of r * rho * k) v)).

    x is mixed with the input before it, x_t + mu_c * (x_{t-1} - x_t), for each of c = r, w, k, v, a, g. kappa is the
    key times xi, at length 1; the key that is written is k (1 + (a - 1) alpha). With a value_rank v becomes
    v + sigmoid(V_2 V_1 x + b) (v' - v), where v' are the values of the first layer; a model hands them on, and without
    one around it the layer is a first layer itself, and v' is v.

    This is :class:`~statewise.operators.delta_rule.DiagonalPlusRankOne` with read = kappa and erase = a * kappa.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`RWKV7State`
    Cost:    for each token, multiply-adds of the projections, 4 d_model^2 + 2 d_model (the three ranks), and of the
             state, about d_model (3 chunk_length + 4 d_head)
    Errors:  ConfigError if d_head does not divide d_model; InputError for shapes or states that do not fit.
    Source:  Peng et al. 2025, arXiv:2503.14456, eq. 3 to 22.

    >>> mixer = RWKV7Config(d_head=8).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.memory.S.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 2, 8, 8]))
    """

    def __init__(self, d_model: int, config: RWKV7Config) -> None:
        super().__init__()
        if d_model % config.d_head:
            raise ConfigError(
                f"RWKV7Config.d_head={config.d_head} does not divide d_model={d_model}; use one that does"
            )
        self.d_model, self.config, self.n_heads = d_model, config, d_model // config.d_head
        self.mu = nn.ParameterDict({name: nn.Parameter(torch.empty(d_model)) for name in MIXES})
        self.r_proj, self.k_proj, self.v_proj, self.out_proj = (Linear(d_model, d_model, bias=False) for _ in range(4))
        self.decay_net = SmallNetwork(d_model, config.decay_rank, bias=False)
        self.rate_net = SmallNetwork(d_model, config.rate_rank, bias=True)
        self.gate_net = SmallNetwork(d_model, config.gate_rank, bias=False)
        rank = config.value_rank
        self.value_net = None if rank is None else SmallNetwork(d_model, rank, bias=True)
        self.gives_values, self.reads_values = rank is None, rank is not None
        self.dynamics = RWKV7Dynamics(d_model)
        self.xi, self.alpha, self.rho = (nn.Parameter(torch.empty(d_model)) for _ in range(3))
        self.norm = nn.GroupNorm(self.n_heads, d_model, eps=config.d_head * config.norm_eps)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default for the projections, the output's scaled; the rest as published for the first layer."""
        nets = [net for net in (self.decay_net, self.rate_net, self.gate_net, self.value_net) if net is not None]
        draw_default(self.r_proj, self.k_proj, self.v_proj, self.out_proj)
        draw_default(*(layer for net in nets for layer in (net.down, net.up)))
        place = torch.arange(self.d_model, device=self.xi.device) / self.d_model
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
            for name, power in zip(MIXES, (0.2, 0.9, 0.7, 0.7, 0.9, 0.2)):
                self.mu[name].copy_(1 - place**power)
            self.xi.copy_(0.76 - 0.1 * place)
            self.alpha.fill_(1.02)
            self.rho.fill_(-0.04)
            if self.value_net is not None:
                self.value_net.up.bias.copy_(0.73 - 0.4 * (place - 0.5))
        self.dynamics.reset_parameters()
        self.norm.reset_parameters()

    def _like(self) -> Tensor:
        return self.r_proj.weight

    def state_shape(self) -> RWKV7State:
        d_head = self.config.d_head
        shift = token_shift(self.d_model, self._like()).state_shape()
        return RWKV7State(shift, DeltaRuleState(leaf(self.n_heads, d_head, d_head)))

    def mix(self, x: Tensor, state: RWKV7State | None, masks: Masks) -> tuple[Tensor, RWKV7State | None]:
        before, before_memory = (None, None) if state is None else state
        last, shift = token_shift(self.d_model, self._like()).apply(x, before, masks)
        r, w, k, v, a, g = (between(x, last, self.mu[name]) for name in MIXES)
        log_w = self.dynamics(self.decay_net.up(self.decay_net.down(w).tanh()))
        rate = self.rate_net.up(self.rate_net.down(a)).sigmoid()
        gate = self.gate_net.up(self.gate_net.down(g).sigmoid())
        dtype = log_w.dtype
        r, k, rate = (m.to(dtype) for m in (self.r_proj(r), self.k_proj(k), rate))
        v = self._values(v, masks, dtype)
        kappa = unit(self._heads(k * self.xi.to(dtype)), UNIT_EPS)
        k = torch.addcmul(k, k * (rate - 1), self.alpha.to(dtype))
        r, k, v, rate, log_w, rho = (self._heads(m) for m in (r, k, v, rate, log_w, self.rho.to(dtype)))
        operator = DiagonalPlusRankOne(log_w, k, r, kappa, rate * kappa, self.config.chunk_length)
        o, memory = operator.apply(v, before_memory, masks)
        o = self._normed(o) + ((r * rho * k).sum(-1, keepdim=True) * v).flatten(-2)
        y = self.out_proj((o * gate.to(dtype)).to(x.dtype))
        return y, None if state is None else RWKV7State(shift, memory)

    def _values(self, x: Tensor, masks: Masks, dtype: torch.dtype) -> Tensor:
        """v of each step, mixed with the first layer's, or handed on as these."""
        v: Tensor = self.v_proj(x).to(dtype)
        if masks.handed is None:
            return v
        if self.value_net is None:
            masks.handed.values = v
            return v
        if masks.handed.values is None:
            return v
        share = self.value_net.up(self.value_net.down(x)).to(dtype).sigmoid()
        return torch.addcmul(v, share, masks.handed.values.to(dtype) - v)

    def _heads(self, m: Tensor) -> Tensor:
        return m.unflatten(-1, (self.n_heads, self.config.d_head))

    def _normed(self, o: Tensor) -> Tensor:
        """GroupNorm of (batch, length, n_heads, d_head), each step by itself -> (batch, length, d_model)"""
        weight, bias = self.norm.weight.to(o.dtype), self.norm.bias.to(o.dtype)
        normed = F.layer_norm(o, (self.config.d_head,), eps=self.norm.eps)
        return torch.addcmul(bias, normed.flatten(-2), weight)
