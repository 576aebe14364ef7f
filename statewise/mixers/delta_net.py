"""DeltaNet and Gated DeltaNet: layers whose memory is corrected by the delta rule."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from statewise.configuration.types import Count, NonNegative, Positive, PositiveRange
from statewise.errors import ConfigError
from statewise.mixers.base import MixerConfig
from statewise.mixers.delta_layer import DecayDynamics, DeltaLayer


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(MixerConfig):
    """DeltaNet with ``n_heads`` heads, as published: short convolutions of q, k and v, unit keys, a norm a head.

    d_key, d_value:       widths of a head's keys and values; None: d_model / n_heads
    gate:                 whether the outputs are gated by SiLU of a projection
    negative_eigenvalues: beta in 0 .. 2 in place of 0 .. 1
    chunk_length:         steps in a chunk, without C

    Source: Yang et al. 2024, arXiv:2406.06484, sec. 2.2 and 3.3; Grazzi et al. 2025, arXiv:2411.12537.
    """

    n_heads: Count
    d_key: Count | None = None
    d_value: Count | None = None
    n_taps: Count = 4
    gate: bool = False
    negative_eigenvalues: bool = False
    norm_eps: NonNegative = 1e-5
    bias: bool = False
    chunk_length: Count = 64

    def build(self, d_model: int) -> DeltaNet:
        return DeltaNet(d_model, self)


class DeltaNet(DeltaLayer):
    """S_t = S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t q_t / sqrt(d_key); y = W_o RMSNorm(o), with
    q, k, v = SiLU(conv(W x)), q and k of length 1, and beta = sigmoid(W_b x).

    This is :class:`~statewise.operators.delta_rule.DeltaRule` without a decay.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.mixers.delta_layer.DeltaLayerState`.
             ``in_proj.weight``: the rows of q, k, v, of the gate if there is one, and of beta, each head by head
    Cost:    for each token, multiply-adds of the projections, and of the rule, about
             n_heads (chunk_length (d_key + d_value) + 4 d_key d_value)
    Errors:  ConfigError if n_heads does not divide d_model and a width is left out; InputError for shapes or states
             that do not fit.
    Source:  Yang et al. 2024, arXiv:2406.06484, sec. 2.2 and 3.3.

    >>> import torch
    >>> mixer = DeltaNetConfig(n_heads=2).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.memory.S.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 2, 8, 8]))
    """

    def __init__(self, d_model: int, config: DeltaNetConfig) -> None:
        if d_model % config.n_heads and None in (config.d_key, config.d_value):
            raise ConfigError(
                f"d_model={d_model} is not a multiple of DeltaNetConfig.n_heads={config.n_heads}; use a number of "
                "heads that divides it, or give d_key and d_value"
            )
        d_head = d_model // config.n_heads
        d_key, d_value = (d_head if width is None else width for width in (config.d_key, config.d_value))
        more = [config.n_heads * d_value] if config.gate else []
        super().__init__(d_model, config, d_key=d_key, d_value=d_value, more=more)
        self.config = config
        self.reset_parameters()

    def controls(self, *more: Tensor) -> tuple[Tensor | None, Tensor | None]:
        return None, more[0] if more else None


@dataclass(frozen=True, kw_only=True)
class GatedDeltaNetConfig(MixerConfig):
    """Gated DeltaNet, as published and as Qwen3-Next, Qwen3.5 and OLMo-Hybrid have it.

    n_heads:              of values, each with a beta and a decay
    n_key_heads:          of queries and keys, each shared by n_heads / n_key_heads consecutive heads; None: n_heads
    d_key, d_value:       widths of a head's keys and values
    gate:                 whether the outputs are gated by SiLU of a projection
    negative_eigenvalues: beta in 0 .. 2 in place of 0 .. 1
    a_range:              -A is drawn uniformly from it; log_a = -A dt
    dt_range, dt_floor:   dt at initialisation is drawn log-uniformly
    chunk_length:         steps in a chunk, without C

    Source: Yang et al. 2025, arXiv:2412.06464, sec. 3.4 and fig. 1.
    """

    n_heads: Count
    n_key_heads: Count | None = None
    d_key: Count = 128
    d_value: Count = 128
    n_taps: Count = 4
    gate: bool = True
    negative_eigenvalues: bool = False
    norm_eps: NonNegative = 1e-5
    a_range: PositiveRange = (0.01, 16.0)
    dt_range: PositiveRange = (1e-3, 1e-1)
    dt_floor: Positive = 1e-4
    bias: bool = False
    chunk_length: Count = 64

    def build(self, d_model: int) -> GatedDeltaNet:
        return GatedDeltaNet(d_model, self)


class GatedDeltaNet(DeltaLayer):
    """S_t = a_t S_{t-1} (I - beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t q_t / sqrt(d_key);
    y = W_o (RMSNorm(o) * SiLU(W_z x)), with a_t = exp(-A softplus(W_a x + dt_bias)) a number for each head.

    This is :class:`~statewise.operators.delta_rule.DeltaRule` with a decay a head.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.mixers.delta_layer.DeltaLayerState`.
             ``in_proj.weight``: the rows of q and k (n_key_heads d_key each), of v and z (n_heads d_value each; z if
             there is a gate), of a, and of beta. Qwen3-Next's ``in_proj_qkvz`` has the rows of q, k, v and z of one key
             head side by side, and then the next head's; its ``in_proj_ba`` those of beta and a.
    Cost:    for each token, multiply-adds of the projections, and of the rule, about
             n_heads (chunk_length (d_key + d_value) + 4 d_key d_value)
    Errors:  ConfigError if n_key_heads does not divide n_heads; InputError for shapes or states that do not fit.
    Source:  Yang et al. 2025, arXiv:2412.06464, eq. 10 and sec. 3.4.

    >>> import torch
    >>> mixer = GatedDeltaNetConfig(n_heads=4, n_key_heads=2, d_key=8, d_value=6).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.memory.S.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 4, 6, 8]))
    """

    def __init__(self, d_model: int, config: GatedDeltaNetConfig) -> None:
        gate = [config.n_heads * config.d_value] if config.gate else []
        super().__init__(
            d_model,
            config,
            d_key=config.d_key,
            d_value=config.d_value,
            more=[*gate, config.n_heads],
            n_key_heads=config.n_key_heads,
        )
        self.config = config
        self.dynamics = DecayDynamics(config.n_heads, config.n_heads, config.a_range, config.dt_range, config.dt_floor)
        self.reset_parameters()

    def controls(self, *more: Tensor) -> tuple[Tensor | None, Tensor | None]:
        *gate, raw = more
        assert self.dynamics is not None
        return self.dynamics(raw), gate[0] if gate else None
