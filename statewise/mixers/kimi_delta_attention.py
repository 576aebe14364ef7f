"""Kimi Delta Attention: the delta rule with a decay for each channel of a key."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from statewise.configuration.types import Count, NonNegative, Positive, PositiveRange
from statewise.mixers.base import MixerConfig
from statewise.mixers.delta_layer import DecayDynamics, DeltaLayer
from statewise.mixers.projection import Linear, draw_default


@dataclass(frozen=True, kw_only=True)
class KDAConfig(MixerConfig):
    """Kimi Delta Attention, as Kimi Linear has it.

    d_key, d_value:       widths of a head's keys and values
    rank:                 of the projections of the decay and of the gate; None: d_value
    gate_bias:            whether the gate's projection has one
    negative_eigenvalues: beta in 0 .. 2 in place of 0 .. 1
    a_range:              -A is drawn uniformly from it; log_a = -A dt
    dt_range, dt_floor:   dt at initialisation is drawn log-uniformly
    chunk_length:         steps in a chunk, without C

    Source: Kimi Team 2025, arXiv:2510.26692, sec. 3 and 4.
    """

    n_heads: Count
    d_key: Count = 128
    d_value: Count = 128
    rank: Count | None = None
    n_taps: Count = 4
    gate_bias: bool = False
    negative_eigenvalues: bool = False
    norm_eps: NonNegative = 1e-5
    a_range: PositiveRange = (1.0, 16.0)
    dt_range: PositiveRange = (1e-3, 1e-1)
    dt_floor: Positive = 1e-4
    bias: bool = False
    chunk_length: Count = 64

    def build(self, d_model: int) -> KDA:
        return KDA(d_model, self)


class KDA(DeltaLayer):
    """S_t = S_{t-1} diag(a_t) (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t q_t / sqrt(d_key);
    y = W_o (RMSNorm(o) * sigmoid(W_g2 W_g1 x)), with a_t = exp(-A softplus(W_a2 W_a1 x + dt_bias)) a number for each
    channel of a key, A one for each head.

    This is :class:`~statewise.operators.delta_rule.DeltaRule` with a decay a channel.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.mixers.delta_layer.DeltaLayerState`.
             ``in_proj.weight``: the rows of q and k (n_heads d_key each), of v (n_heads d_value), of W_a1 and W_g1
             (rank each), and of beta; ``decay_proj``: W_a2; ``gate_proj``: W_g2
    Cost:    for each token, multiply-adds of the projections, and of the rule, about
             n_heads (chunk_length (d_key + d_value) + 4 d_key d_value)
    Errors:  InputError for shapes or states that do not fit.
    Source:  Kimi Team 2025, arXiv:2510.26692, eq. 1 and sec. 4.

    >>> import torch
    >>> mixer = KDAConfig(n_heads=2, d_key=8, d_value=6).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.memory.S.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 2, 6, 8]))
    """

    def __init__(self, d_model: int, config: KDAConfig) -> None:
        rank = config.d_value if config.rank is None else config.rank
        sizes = {"d_key": config.d_key, "d_value": config.d_value}
        super().__init__(d_model, config, more=[rank, rank], gate_activation="sigmoid", **sizes)
        self.config = config
        n_decays = config.n_heads * config.d_key
        self.decay_proj = Linear(rank, n_decays, bias=False)
        self.gate_proj = Linear(rank, config.n_heads * config.d_value, bias=config.gate_bias)
        self.dynamics = DecayDynamics(config.n_heads, n_decays, config.a_range, config.dt_range, config.dt_floor)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        super().reset_parameters(residual_scale)
        draw_default(self.decay_proj, self.gate_proj)

    def controls(self, *more: Tensor) -> tuple[Tensor | None, Tensor | None]:
        decay, gate = more
        assert self.dynamics is not None
        log_a = self.dynamics(self.decay_proj(decay))
        return log_a.unflatten(-1, (self.n_heads, self.d_key)), self.gate_proj(gate)
