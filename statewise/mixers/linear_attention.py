"""Causal linear attention: attention whose history is a sum, so its state never grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.configuration.types import Count, OneOf, Positive
from statewise.errors import ConfigError
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.feature_maps import FEATURE_MAPS
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.operators.masks import Masks
from statewise.operators.ssd import SSD, SSDState
from statewise.operators.state_shape import leaf


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(MixerConfig):
    """Linear attention with ``n_heads`` heads, values of width d_model / n_heads.

    feature_map:  "elu" (elu + 1), "relu", "identity" or "taylor", see :mod:`~statewise.mixers.feature_maps`
    normalize:    divide by phi(q) . z, the sum of the weights; False gives the sum of weighted values
    d_feature:    width of a head's queries and keys before the feature map; None: as wide as its values. The Taylor
                  map makes 1 + d + d^2 features of d, and was published with 16 (Based)
    eps:          the smallest denominator, see :class:`LinearAttention`
    bias:         whether both projections have one
    chunk_length: steps in a chunk, which is computed as attention; the state is carried between chunks
    weight_std:   standard deviation of the projections' weights at the start
    """

    n_heads: Count
    feature_map: Annotated[str, OneOf(FEATURE_MAPS)] = "elu"
    normalize: bool = True
    d_feature: Count | None = None
    eps: Positive = 1e-6
    bias: bool = False
    chunk_length: Count = 64
    weight_std: Positive = WEIGHT_STD

    def build(self, d_model: int) -> LinearAttention:
        return LinearAttention(d_model, self)


class LinearAttention(Mixer):
    """S_t = S_{t-1} + v_t phi(k_t)^T, z_t = z_{t-1} + phi(k_t), o_t = S_t phi(q_t) / (z_t . phi(q_t)) for each head;
    y = W_o o, with q, k, v = W_i x. Without ``normalize`` there is neither z nor the division.

    This is :class:`~statewise.operators.ssd.SSD` with log_a = 0, keys, queries and values for B, C and its input; a
    column of ones beside the values gives z.

    Shapes:   x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.ssd.SSDState`, h (batch,
              n_heads, d_head + 1, n_features): the rows of S and, last, z; without ``normalize`` d_head rows.
              ``in_proj.weight``: the rows of q, then of k (n_heads d_feature each), then of v, head by head
    Cost:     for each token, multiply-adds of the projections, 2 d_model (d_model + n_heads d_feature), and of the
              system, about n_heads (n_features + d_head) chunk_length + 2 d_model n_features
    Numerics: from the feature map to the division in float32 or wider. A denominator smaller than ``eps`` in size
              becomes eps, with its sign. With "elu", "relu" and "taylor", which have no negative weights, a query that
              finds nothing (all weights 0, as "relu" has it, or "elu" far below 0) so gives 0. With "identity"
              weights of both signs may cancel, and outputs are then as large as 1 / eps: it is meant for
              ``normalize=False``, where y = W_o (mask * (Q K^T)) V. No weight is scaled by 1/sqrt(d_feature), but
              in "taylor".
    Errors:   ConfigError if n_heads does not divide d_model; InputError for shapes or states that do not fit.
    Source:   Katharopoulos et al. 2020, arXiv:2006.16236, sec. 3.2 and 3.3 (eq. 9 to 12).

    >>> mixer = LinearAttentionConfig(n_heads=2).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.h.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 2, 9, 8]))
    """

    def __init__(self, d_model: int, config: LinearAttentionConfig) -> None:
        if d_model % config.n_heads:
            raise ConfigError(
                f"d_model={d_model} is not a multiple of LinearAttentionConfig.n_heads={config.n_heads}; "
                "use a number of heads that divides it"
            )
        super().__init__()
        self.d_model, self.config = d_model, config
        self.n_heads, self.d_head = config.n_heads, d_model // config.n_heads
        self.d_feature = self.d_head if config.d_feature is None else config.d_feature
        self.feature_map = FEATURE_MAPS[config.feature_map]
        self.n_features = self.feature_map.width(self.d_feature)
        parts = (self.n_heads * self.d_feature, self.n_heads * self.d_feature, d_model)  # q, k, v
        self.in_proj = Linear(d_model, sum(parts), bias=config.bias, parts=parts)
        self.out_proj = Linear(d_model, d_model, bias=config.bias)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As attention: normal of standard deviation ``weight_std``, biases zero, the output's scaled."""
        draw_normal(self.config.weight_std, self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)

    def state_shape(self) -> SSDState:
        return SSDState(leaf(self.n_heads, self.d_head + self.config.normalize, self.n_features))

    def mix(self, x: Tensor, state: SSDState | None, masks: Masks) -> tuple[Tensor, SSDState | None]:
        projected = self.in_proj(x)
        projected = projected.to(torch.promote_types(projected.dtype, torch.float32))
        qk, v = projected.split((2 * self.n_heads * self.d_feature, self.d_model), -1)
        qk = self.feature_map.apply(qk.unflatten(-1, (2 * self.n_heads, self.d_feature)))
        q, k = qk.chunk(2, 2)
        v = v.unflatten(-1, (self.n_heads, self.d_head))
        if self.config.normalize:
            v = F.pad(v, (0, 1), value=1.0)
        operator = SSD(v.new_zeros(v.shape[:3]), k, q, self.config.chunk_length)
        y, state = operator.apply(v, state, masks)
        if self.config.normalize:
            y = y[..., :-1] / self._denominator(y[..., -1:])
        return self.out_proj(y.to(x.dtype).flatten(2)), state

    def _denominator(self, weight: Tensor) -> Tensor:
        """The sum of the weights, at least eps in size."""
        eps = self.config.eps
        if self.feature_map.nonnegative:
            return weight.clamp(min=eps)
        return torch.where(weight.abs() < eps, torch.full_like(weight, eps).copysign(weight), weight)
