"""Mamba-3: a trapezoidal rule instead of the short convolution, and a state that rotates, of one input or several."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import Count, OneOf, Positive, PositiveRange, Share
from statewise.errors import ConfigError
from statewise.mixers.base import Dynamics, Mixer, MixerConfig
from statewise.mixers.gated_norm import GatedRMSNorm
from statewise.mixers.mamba3_ranks import Ranks, system_of_ranks
from statewise.mixers.prepared import wide
from statewise.mixers.projection import Linear, draw_default
from statewise.operators.masks import NO_MASKS, Masks, mask_time
from statewise.operators.ssd import SSD, SSDState
from statewise.operators.state_shape import leaf


class Mamba3State(NamedTuple):
    """ssm: (batch, n_heads, d_head, d_state), seen from the last step, whose angle counts as 0 (see :class:`Mamba3`);
    value: (batch, n_heads, d_head) and key: (batch, n_heads, d_state), those of the last step, for the next one's
    trapezoid. With ``mimo_rank`` the key is (batch, n_heads, mimo_rank, d_state)."""

    ssm: SSDState
    value: Tensor
    key: Tensor


def heavy_tail(a: Tensor) -> Tensor:
    """1 + a above 0, 1 / (1 - a) below: positive and smooth, and it falls slower than softplus."""
    return a.clamp(min=0) + (1 - a.clamp(max=0)).reciprocal()


DECAYS: dict[str, Callable[[Tensor], Tensor]] = {"softplus": F.softplus, "heavy_tail": heavy_tail}


@dataclass(frozen=True, kw_only=True)
class Mamba3Config(MixerConfig):
    """Mamba-3 with its published defaults.

    rope_fraction: how much of d_state rotates, in pairs of neighbours, from the first; at least one pair
    a_floor:       the decay -A, which depends on the input, is at least this
    decay:         what makes -A of a projection a: "softplus", or "heavy_tail", 1 + a above 0 and 1 / (1 - a) below, as
                   ``mamba_ssm`` has it since June 2026
    mimo_rank:     how many inputs and outputs the state of a head has (MIMO); None: one, without scalings of their own
    output_norm:   an RMSNorm of each head's output, before its gate
    chunk_length:  steps in a chunk; with ``mimo_rank`` each rank of a step counts as one
    Source:        arXiv:2603.15569, and the Mamba3 module of ``mamba_ssm``.
    """

    d_state: Count = 128
    d_head: Count = 64
    expand: Count = 2
    n_groups: Count = 1
    mimo_rank: Count | None = None
    output_norm: bool = False
    decay: Annotated[str, OneOf(tuple(DECAYS))] = "softplus"
    rope_fraction: Share = 0.5
    chunk_length: Count = 64
    norm_eps: Positive = 1e-5
    a_floor: Positive = 1e-4
    dt_range: PositiveRange = (1e-3, 1e-1)  # dt at initialisation is drawn log-uniformly from it
    dt_floor: Positive = 1e-4

    def __post_init__(self) -> None:
        if self.n_angles < 1:
            raise ConfigError(
                f"Mamba3Config.rope_fraction={self.rope_fraction!r} of d_state={self.d_state} gives {self.n_angles} "
                "pairs; expected a fraction that gives at least one"
            )

    @property
    def n_angles(self) -> int:
        """How many pairs of the state rotate."""
        return int(self.d_state * self.rope_fraction) // 2

    @property
    def ranks(self) -> tuple[int, ...]:
        """The axis of the ranks, where there is one."""
        return () if self.mimo_rank is None else (self.mimo_rank,)

    def build(self, d_model: int) -> Mamba3:
        return Mamba3(d_model, self)


class Mamba3Dynamics(Dynamics):
    """The bias of dt before its softplus and the skip D, (n_heads,); the biases of B and C, (n_heads, d_state), with
    ``mimo_rank`` (n_heads, mimo_rank, d_state)."""

    step_sizes: ClassVar[tuple[str, ...]] = ("dt_bias",)

    def __init__(self, n_heads: int, config: Mamba3Config) -> None:
        super().__init__()
        self.config = config
        self.dt_bias = nn.Parameter(torch.empty(n_heads))
        self.D = nn.Parameter(torch.empty(n_heads))
        self.B_bias = nn.Parameter(torch.empty(n_heads, *config.ranks, config.d_state))
        self.C_bias = nn.Parameter(torch.empty(n_heads, *config.ranks, config.d_state))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        config = self.config
        with torch.no_grad():
            log_low, log_high = (math.log(dt) for dt in config.dt_range)
            dt = torch.empty_like(self.dt_bias).uniform_(log_low, log_high).exp().clamp(min=config.dt_floor)
            self.dt_bias.copy_(dt + torch.log(-torch.expm1(-dt)))  # the inverse of softplus
        for parameter in (self.D, self.B_bias, self.C_bias):
            nn.init.ones_(parameter)


class Mamba3Coefficients(NamedTuple):
    """Those of each step: value (b, l, h, p); key, query (b, l, h, n), with ranks (b, l, h, r, n), before they are
    turned; turn (b, l, h, angles) float64, from the step before; decay, own, before (b, l, h): alpha, gamma and beta
    below."""

    value: Tensor
    key: Tensor
    query: Tensor
    turn: Tensor
    log_decay: Tensor
    own: Tensor
    before: Tensor


class Mamba3(Mixer):
    """[z, v, B, C, dt, A, lambda, angle] = W_in x; k = RMSNorm(B) + b_B, q = RMSNorm(C) + b_C, each pair of their first
    entries turned by theta_t = theta_{t-1} + pi tanh(angle_t) Delta_t; alpha = exp(Delta A), gamma = lambda Delta,
    beta = (1 - lambda) Delta: S_t = alpha_t S_{t-1} + beta_t alpha_t v_{t-1} k_{t-1}^T + gamma_t v_t k_t^T,
    y_t = S_t q_t + D v_t; W_out (y * SiLU(z)).

    In chunks: P_t = S_t - gamma_t v_t k_t^T obeys P_t = alpha_t (P_{t-1} + (gamma_{t-1} + beta_t) v_{t-1} k_{t-1}^T),
    an SSD whose input is that of the step before; what a step adds itself is (k_t . q_t) gamma_t v_t.

    With ``mimo_rank`` R (MIMO) B and C are R vectors a group, rank by rank, and with scalings m a number a channel:
    v_r = m^x_r v, z_r = m^z_r z, S_t as above with the sums over r of v_r k_r^T, y_r = S_t q_r + D v_r, and
    W_out (sum over r of m^o_r y_r SiLU(z_r)). The state is as large as with one input; see
    :func:`~statewise.mixers.mamba3_ranks.system_of_ranks`. With ``output_norm`` y, or each y_r, is normed a head.

    Outputs depend on differences of theta only. So the state is kept as the last step sees it, turned back by its
    theta, and no angle is carried from call to call: nothing grows with the number of steps. The published state is
    this one turned by theta.

    Shapes:  x: (batch, length, d_model) -> y the same; state: :class:`Mamba3State`
    Cost:    for each token, multiply-adds of the projections, d_model (3 d_inner + 2 n_groups d_state + 3 n_heads +
             n_angles), and of the system, about d_inner (chunk_length + 2 d_state), its keys and queries being those of
             each head. The state holds d_inner (d_state + 1) + n_heads d_state numbers. With mimo_rank R there are R
             times as many rows of B and C, R times the cost of the system, and n_heads R d_state numbers of keys.
    Errors:  ConfigError if the sizes do not divide; InputError for shapes that disagree.
    Source:  arXiv:2603.15569.
    """

    exact_by_steps = True  # the state is turned by what a call has read

    def __init__(self, d_model: int, config: Mamba3Config) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_inner = config.expand * d_model
        if self.d_inner % config.d_head:
            raise ConfigError(
                f"Mamba3Config.d_head={config.d_head} does not divide expand * d_model = {self.d_inner}; "
                "use a head width that does"
            )
        self.n_heads = self.d_inner // config.d_head
        if self.n_heads % config.n_groups:
            raise ConfigError(f"Mamba3Config.n_groups={config.n_groups} does not divide {self.n_heads} heads")
        d_groups = math.prod(config.ranks) * config.n_groups * config.d_state
        self.sizes = [self.d_inner, self.d_inner, d_groups, d_groups, *[self.n_heads] * 3, config.n_angles]
        # z, v, B, C (rank by rank, of each its groups), dt, A, lambda, angle
        self.in_proj = Linear(d_model, sum(self.sizes), bias=False, parts=self.sizes)
        self.B_norm = nn.RMSNorm(config.d_state, eps=config.norm_eps)
        self.C_norm = nn.RMSNorm(config.d_state, eps=config.norm_eps)
        self.dynamics = Mamba3Dynamics(self.n_heads, config)
        self.mimo = None if config.mimo_rank is None else Ranks(self.n_heads, config.mimo_rank, config.d_head)
        self.norm: GatedRMSNorm | None = None
        if config.output_norm:
            options = {"n_groups": self.n_heads, "norm_before_gate": True, "eps": config.norm_eps}
            self.norm = GatedRMSNorm(self.d_inner, **options)  # type: ignore[arg-type]
        self.out_proj = Linear(self.d_inner, d_model, bias=False)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As published: PyTorch's default for the projections, the output's scaled."""
        draw_default(self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
        for module in (self.B_norm, self.C_norm, self.dynamics, self.mimo, self.norm):
            if module is not None:
                module.reset_parameters()

    def state_shape(self) -> Mamba3State:
        h, d_head, d_state = self.n_heads, self.config.d_head, self.config.d_state
        return Mamba3State(SSDState(leaf(h, d_head, d_state)), leaf(h, d_head), leaf(h, *self.config.ranks, d_state))

    def mix(self, x: Tensor, state: Mamba3State | None, masks: Masks) -> tuple[Tensor, Mamba3State | None]:
        z, coefficients = self.select(x, masks)
        before = self.initial_state(x.shape[0]) if state is None else state
        if masks.starts is not None and x.shape[1]:  # where a document begins at once, even NaN before it is forgotten
            begins = masks.starts[:, 0]
            value, key = (m.masked_fill(begins.reshape(-1, *[1] * (m.ndim - 1)), 0) for m in before[1:])
            before = before._replace(value=value, key=key)
        theta = coefficients.turn.cumsum(1)
        angles = theta if self.mimo is None else theta.unsqueeze(-2)
        key, query = turned(coefficients.key, angles), turned(coefficients.query, angles)
        key, shifted = _delayed(key, before.key), self._shifted(coefficients, before, masks)
        given = None if state is None else state.ssm
        y, ssm = self._read(coefficients, z, key, query, shifted, given, masks)
        y = self.out_proj(y.to(x.dtype))
        return y, None if state is None else self._final(coefficients, theta, before, ssm, masks.lengths)

    def _read(
        self,
        now: Mamba3Coefficients,
        z: Tensor,
        key: Tensor,
        query: Tensor,
        shifted: Tensor,
        state: SSDState | None,
        masks: Masks,
    ) -> tuple[Tensor, SSDState]:
        """What is read from the states, gated, (batch, length, d_inner). key: of the step before, turned; query:
        turned; shifted: what the SSD reads, before a rank's scaling."""
        D, chunk_length = wide(self.dynamics.D), self.config.chunk_length
        if self.mimo is None:
            y, state = SSD(now.log_decay, key, query, chunk_length).apply(shifted, state, masks)
            own = now.own * (now.key * now.query).sum(-1) + D
            y = (y + own.unsqueeze(-1) * now.value).flatten(-2)
            return self._gated(y, wide(z)), state
        value, shifted = self.mimo.values(now.value), self.mimo.values(shifted)
        y, state = system_of_ranks(now.log_decay, key, query, shifted, state, masks, chunk_length)
        scores = now.own[..., None, None] * (now.query @ now.key.mT)
        y = y + scores @ value + D[:, None, None] * value
        gates = self.mimo.gates(z.unflatten(-1, (self.n_heads, self.config.d_head)))
        y, gates = (m.transpose(-2, -3).flatten(-2) for m in (y, gates))  # rank by rank, each as wide as d_inner
        y = self._gated(y, gates).unflatten(-1, (self.n_heads, self.config.d_head)).transpose(-2, -3)
        return self.mimo.joined(y).flatten(-2), state

    def _gated(self, y: Tensor, z: Tensor) -> Tensor:
        """(..., d_inner), each head normed where there is a norm."""
        return y * F.silu(z) if self.norm is None else self.norm(y, z)

    def select(self, x: Tensor, masks: Masks = NO_MASKS) -> tuple[Tensor, Mamba3Coefficients]:
        """The gate z (batch, length, d_inner), and the coefficients that x selects."""
        config, dynamics = self.config, self.dynamics
        z, value, B, C, dt, A, trapezoid, angle = self.in_proj(x).split(self.sizes, -1)
        value = wide(value).unflatten(-1, (self.n_heads, config.d_head))
        per_group = self.n_heads // config.n_groups

        def per_head(m: Tensor, norm: nn.RMSNorm, bias: Tensor) -> Tensor:
            groups = norm(m.unflatten(-1, (*config.ranks, config.n_groups, config.d_state)))
            heads = wide(groups).repeat_interleave(per_group, -2)
            return (heads if self.mimo is None else heads.transpose(2, 3)) + wide(bias)

        dt = F.softplus(wide(dt) + wide(dynamics.dt_bias))
        decay = DECAYS[config.decay](wide(A)).clamp(min=config.a_floor)
        share = torch.sigmoid(wide(trapezoid))  # of the step's own end in the trapezoid
        turn = math.pi * torch.tanh(angle.double()).unsqueeze(2) * dt.double().unsqueeze(-1)
        turn = torch.fmod(turn, 2 * math.pi)  # else one large step takes the digits of every sum behind it
        return z, Mamba3Coefficients(
            value,
            per_head(B, self.B_norm, dynamics.B_bias),
            per_head(C, self.C_norm, dynamics.C_bias),
            mask_time(turn, masks.valid),
            -dt * decay,
            share * dt,
            (1 - share) * dt,
        )

    def _shifted(self, now: Mamba3Coefficients, before: Mamba3State, masks: Masks) -> Tensor:
        """alpha_t (gamma_{t-1} + beta_t) v_{t-1}: what the SSD reads. gamma_0 v_0 k_0^T is in the state already."""
        own_before = _delayed(now.own, torch.zeros_like(now.own[:, :1]).squeeze(1) if now.own.shape[1] else None)
        weight = now.log_decay.exp() * (own_before + now.before)
        if masks.starts is not None:  # nothing comes from before a document
            weight = weight.masked_fill(masks.starts.unsqueeze(-1), 0)
        return weight.unsqueeze(-1) * _delayed(now.value, before.value)

    def _final(
        self, all_: Mamba3Coefficients, theta: Tensor, before: Mamba3State, ssm: SSDState, lengths: Tensor | None
    ) -> Mamba3State:
        """S_T = P_T + gamma_T v_T k_T^T, seen from T; rows that read nothing keep what they had."""

        def last(steps: Tensor, otherwise: Tensor) -> Tensor:
            steps = torch.cat([otherwise.unsqueeze(1).to(steps.dtype), steps], 1)
            if lengths is None:
                return steps[:, -1]
            return steps[torch.arange(steps.shape[0], device=steps.device), lengths]

        nothing = torch.zeros_like(before.value[..., 0])
        no_angle = theta.new_zeros(theta.shape[0], *theta.shape[2:])
        value, key = last(all_.value, before.value), last(all_.key, before.key)
        own = last(all_.own, nothing)
        h = turned(ssm.h, -last(theta, no_angle).unsqueeze(2))
        if self.mimo is None:
            h = h + torch.einsum("bh,bhp,bhn->bhpn", own, value, key).to(h.dtype)
        else:
            h = h + (own[..., None, None] * (self.mimo.values(value).mT @ key)).to(h.dtype)
        return Mamba3State(SSDState(h), value.to(h.dtype), key.to(h.dtype))


def turned(x: Tensor, theta: Tensor) -> Tensor:
    """x (..., n) with each of its first pairs (x_2i, x_2i+1) turned by theta_i; theta: (..., angles), float64."""
    n_turned = 2 * theta.shape[-1]
    cosine, sine = theta.cos().to(x.dtype), theta.sin().to(x.dtype)
    first, second = x[..., :n_turned:2], x[..., 1:n_turned:2]
    pairs = torch.stack([first * cosine - second * sine, first * sine + second * cosine], -1)
    return torch.cat([pairs.flatten(-2), x[..., n_turned:]], -1)


def _delayed(steps: Tensor, before: Tensor | None) -> Tensor:
    """(batch, length, ...) one step later; ``before``, (batch, ...), comes first."""
    if before is None or steps.shape[1] == 0:
        return steps
    return torch.cat([before.unsqueeze(1).to(steps.dtype), steps[:, :-1]], 1)
