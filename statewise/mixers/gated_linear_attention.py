"""Gated linear attention: linear attention whose memory fades, each channel of a key by itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.configuration.types import Count, NonNegative, Positive
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.delta_layer import HeadNorm
from statewise.mixers.head_widths import head_widths
from statewise.mixers.projection import Linear, draw_default
from statewise.operators.delta_rule import DeltaRuleState, DiagonalPlusRankOne
from statewise.operators.masks import Masks
from statewise.operators.state_shape import leaf
from statewise.precision import full_precision


@dataclass(frozen=True, kw_only=True)
class GLAConfig(MixerConfig):
    """Gated linear attention with its published defaults.

    d_key, d_value: widths of a head's keys and values; None: d_model / (2 n_heads) and d_model / n_heads
    rank:           of the projection of the decay
    temperature:    log a = log sigmoid(raw) / temperature
    chunk_length:   steps in a chunk, without C

    Source: Yang et al. 2024, arXiv:2312.06635, sec. 4.4.
    """

    n_heads: Count = 4
    d_key: Count | None = None
    d_value: Count | None = None
    rank: Count = 16
    temperature: Positive = 16.0
    norm_eps: NonNegative = 1e-5
    bias: bool = False
    chunk_length: Count = 64

    def build(self, d_model: int) -> GLA:
        return GLA(d_model, self)


class GLA(Mixer):
    """S_t = S_{t-1} diag(a_t) + v_t k_t^T, o_t = S_t q_t / sqrt(d_key); y = W_o (RMSNorm(o) * SiLU(W_z x)), with
    a_t = sigmoid(W_a2 W_a1 x + b)^(1 / temperature) a number for each channel of a key.

    This is :class:`~statewise.operators.delta_rule.DiagonalPlusRankOne` that looks nothing up.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.delta_rule.DeltaRuleState`,
             S (batch, n_heads, d_value, d_key). ``in_proj.weight``: the rows of q and k (n_heads d_key each), of v and
             z (n_heads d_value each), each head by head, and of W_a1; ``decay_proj``: W_a2 and b
    Cost:    for each token, multiply-adds of the projections, and of the memory, about
             n_heads (chunk_length (d_key + d_value) + 4 d_key d_value)
    Errors:  ConfigError if d_model does not divide and a width is left out; InputError for shapes or states that do not
             fit.
    Source:  Yang et al. 2024, arXiv:2312.06635, eq. 3 and sec. 4.4.

    >>> mixer = GLAConfig(n_heads=2).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.S.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 2, 8, 4]))
    """

    def __init__(self, d_model: int, config: GLAConfig) -> None:
        super().__init__()
        self.d_model, self.config, self.n_heads = d_model, config, config.n_heads
        self.d_key, self.d_value = head_widths(config, d_model)
        keys, values = config.n_heads * self.d_key, config.n_heads * self.d_value
        self.sizes = [keys, keys, values, values, config.rank]
        self.in_proj = Linear(d_model, sum(self.sizes), bias=config.bias, parts=self.sizes)
        self.decay_proj = Linear(config.rank, keys)
        self.norm = HeadNorm(self.d_value, config.norm_eps)
        self.out_proj = Linear(values, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """PyTorch's default for the projections (biases zero), the output's scaled."""
        draw_default(self.in_proj, self.decay_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)
        self.norm.reset_parameters()

    def state_shape(self) -> DeltaRuleState:
        return DeltaRuleState(leaf(self.n_heads, self.d_value, self.d_key))

    def mix(self, x: Tensor, state: DeltaRuleState | None, masks: Masks) -> tuple[Tensor, DeltaRuleState | None]:
        q, k, v, z, raw = self.in_proj(x).split(self.sizes, -1)
        raw = self.decay_proj(raw)
        dtype = full_precision(x.dtype)
        q, k, v, z, raw = (m.to(dtype).unflatten(-1, (self.n_heads, -1)) for m in (q, k, v, z, raw))
        log_a = F.logsigmoid(raw) / self.config.temperature
        nothing = torch.zeros_like(k)
        operator = DiagonalPlusRankOne(log_a, k, q * self.d_key**-0.5, nothing, chunk_length=self.config.chunk_length)
        y, state = operator.apply(v, state, masks)
        return self.out_proj(self.norm(y, z).flatten(-2).to(x.dtype)), state
