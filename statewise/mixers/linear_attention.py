"""Linear attention: attention whose history is a sum, so its state never grows; causal, or in both directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.configuration.types import Count, OneOf, Positive
from statewise.errors import ConfigError
from statewise.kernels.linear import linear
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.feature_maps import FEATURE_MAPS, FeatureMap, taylor_map
from statewise.mixers.prepared import wide
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.operators.bidirectional import bidirectional
from statewise.operators.head_patterns import HEAD_PATTERNS, Heads, heads_of, share_heads
from statewise.operators.masks import Masks, mask_time
from statewise.operators.ssd import SSD, SSDState
from statewise.operators.state_shape import leaf
from statewise.precision import without_autocast


@dataclass(frozen=True, kw_only=True)
class FeatureMapConfig(MixerConfig):
    """Fields that layers of linear attention have in common: ``n_heads`` heads, values of width d_model / n_heads.

    feature_map:  "elu" (elu + 1), "relu", "identity" or "taylor", see :mod:`~statewise.mixers.feature_maps`
    taylor_order: of the map "taylor", which then makes 1 + d + ... + d^order features of d; with ``normalize`` an even
                  one, since an odd one has weights below 0
    normalize:    divide by phi(q) . z, the sum of the weights; False gives the sum of weighted values
    d_feature:    width of a head's queries and keys before the feature map; None: as wide as its values. The Taylor
                  map makes 1 + d + d^2 features of d, and was published with 16 (Based)
    eps:          the smallest denominator, see :class:`LinearAttention`
    bias:         whether all projections have one
    weight_std:   standard deviation of the projections' weights at the start
    head_pattern: what each head has for itself: "multi_head" all, "multi_query", "multi_key" or "multi_value" only
                  that; ``n_groups`` groups of heads share the rest, see
                  :func:`~statewise.operators.head_patterns.heads_of`
    """

    n_heads: Count
    feature_map: Annotated[str, OneOf(FEATURE_MAPS)] = "elu"
    normalize: bool = True
    d_feature: Count | None = None
    eps: Positive = 1e-6
    bias: bool = False
    weight_std: Positive = WEIGHT_STD
    taylor_order: Count = 2
    head_pattern: Annotated[str, OneOf(HEAD_PATTERNS)] = "multi_head"
    n_groups: Count = 1

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.taylor_order != 2 and self.feature_map != "taylor":
            raise ConfigError(
                f"{name}.taylor_order={self.taylor_order} with feature_map={self.feature_map!r}; it is of "
                '"taylor" alone'
            )
        if self.taylor_order % 2 and self.normalize:
            raise ConfigError(
                f"{name}.taylor_order={self.taylor_order} is odd, so that weights may be below 0 and their sum near 0; "
                "use an even one, or normalize=False"
            )
        self.heads  # noqa: B018  refuses what does not divide

    @property
    def heads(self) -> Heads:
        """How many different queries, keys and values a step has."""
        return heads_of(self.head_pattern, self.n_heads, self.n_groups, type(self).__name__)

    def head_width(self, d_model: int) -> int:
        """The width of a head's values.

        Errors:  ConfigError if n_heads does not divide d_model.
        """
        if d_model % self.n_heads:
            raise ConfigError(
                f"d_model={d_model} is not a multiple of {type(self).__name__}.n_heads={self.n_heads}; "
                "use a number of heads that divides it"
            )
        return d_model // self.n_heads

    def build_map(self) -> FeatureMap:
        return taylor_map(self.taylor_order) if self.feature_map == "taylor" else FEATURE_MAPS[self.feature_map]


@dataclass(frozen=True, kw_only=True)
class LinearAttentionConfig(FeatureMapConfig):
    """Linear attention, causal unless ``bidirectional``. The other fields are those of :class:`FeatureMapConfig`.

    chunk_length:  steps in a chunk, which is computed as attention; the state is carried between chunks
    bidirectional: a query also sees the keys behind it; then there is no state and the layer cannot decode
    """

    chunk_length: Count = 64
    bidirectional: bool = False

    def build(self, d_model: int) -> LinearAttention:
        return LinearAttention(d_model, self)


class LinearAttention(Mixer):
    """S_t = S_{t-1} + v_t phi(k_t)^T, z_t = z_{t-1} + phi(k_t), o_t = S_t phi(q_t) / (z_t . phi(q_t)) for each head;
    y = W_o o, with q, k, v = W_i x. Without ``normalize`` there is neither z nor the division.

    This is :class:`~statewise.operators.ssd.SSD` with log_a = 0, keys, queries and values for B, C and its input; a
    column of ones beside the values gives z.

    Bidirectional, the sums are over all steps of the document, and each counts once.

    Shapes:   x: (batch, length, d_model) -> y the same. State: :class:`~statewise.operators.ssd.SSDState`, h (batch,
              n_heads, d_head + 1, n_features): the rows of S and, last, z; without ``normalize`` d_head rows.
              ``in_proj.weight``: the rows of q, then of k (n_heads d_feature each), then of v, head by head; of what
              heads share, group by group
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
        super().__init__()
        self.d_model, self.config = d_model, config
        self.is_causal = not config.bidirectional
        self.n_heads, self.heads, self.d_head = config.n_heads, config.heads, config.head_width(d_model)
        self.d_feature = self.d_head if config.d_feature is None else config.d_feature
        self.feature_map = config.build_map()
        self.n_features = self.feature_map.width(self.d_feature)
        widths = (self.d_feature, self.d_feature, self.d_head)  # q, k, v
        parts = tuple(n * width for n, width in zip(self.heads, widths))
        self.in_proj = Linear(d_model, sum(parts), bias=config.bias, parts=parts)
        self.out_proj = Linear(d_model, d_model, bias=config.bias)
        self._build_decay()
        self.reset_parameters()

    def _build_decay(self) -> None:
        """Makes the parameters of :meth:`_log_decay`: here there are none."""

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As attention: normal of standard deviation ``weight_std``, biases zero, the output's scaled."""
        draw_normal(self.config.weight_std, self.in_proj, self.out_proj)
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)

    def state_shape(self) -> SSDState:
        return SSDState(leaf(self.n_heads, self.d_head + self.config.normalize, self.n_features))

    def mix(self, x: Tensor, state: SSDState | None, masks: Masks) -> tuple[Tensor, SSDState | None]:
        q, k, v = self._heads(x, x)
        log_a = self._log_decay(x)
        if self.config.bidirectional:
            with without_autocast(x.device):
                y = self._both_directions(q, k, v, log_a, masks)
        else:
            operator = SSD(v.new_zeros(v.shape[:3]) if log_a is None else log_a, k, q, self.config.chunk_length)
            y, state = operator.apply(v, state, masks)
        return self._read_out(y, x.dtype), state

    def _log_decay(self, x: Tensor) -> Tensor | None:
        """How much of the sums each head keeps at each step, (batch, length, n_heads); None: all."""
        return None

    def _heads(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Features of queries of x, and of keys of ``memory`` with its values and their column of ones, (batch, length,
        heads, width); queries and keys as their heads are shared, values for every head."""
        sizes = self.in_proj.parts
        if memory is x:
            projected = wide(self.in_proj(x))
            q, k, v = projected.split(sizes, -1)
        else:
            q, k, v = (wide(part) for part in self._projected_apart(x, memory))
        q, k = (self.feature_map.apply(m.unflatten(-1, (-1, self.d_feature))) for m in (q, k))
        v = share_heads(v.unflatten(-1, (self.heads.values, self.d_head)), self.n_heads)
        return q, k, F.pad(v, (0, 1), value=1.0) if self.config.normalize else v

    def _projected_apart(self, x: Tensor, memory: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of x; keys and values of another sequence."""
        n_queries, *others = self.in_proj.parts
        weight, bias = self.in_proj.weight, self.in_proj.bias
        q = linear(x, weight[:n_queries], None if bias is None else bias[:n_queries])
        k, v = linear(memory, weight[n_queries:], None if bias is None else bias[n_queries:]).split(others, -1)
        return q, k, v

    def _both_directions(self, q: Tensor, k: Tensor, v: Tensor, log_a: Tensor | None, masks: Masks) -> Tensor:
        """The sum over all steps of a document; by a sum forwards and one backwards, less the present step, where there
        are several documents in a row or a decay."""
        if log_a is None and masks.starts is None:
            v = mask_time(v, masks.valid)
            q, k = (share_heads(m, self.n_heads) for m in (q, k))
            return torch.einsum("blhn,bhnp->blhp", q, torch.einsum("blhn,blhp->bhnp", k, v))
        operator = SSD(v.new_zeros(v.shape[:3]) if log_a is None else log_a, k, q, self.config.chunk_length)
        own = (share_heads(q, self.n_heads) * share_heads(k, self.n_heads)).sum(-1, keepdim=True)
        return bidirectional(operator).apply(v, masks) - own * v

    def _read_out(self, y: Tensor, dtype: torch.dtype, *, any_sign: bool = False) -> Tensor:
        """any_sign: whether sums of the weights may be below 0, whatever the feature map"""
        if self.config.normalize:
            y = divided_by_weight(y, self.config.eps, any_sign or not self.feature_map.nonnegative)
        return self.out_proj(y.to(dtype).flatten(2))


def divided_by_weight(y: Tensor, eps: float, any_sign: bool) -> Tensor:
    """Sums of weighted values (..., d + 1), of which the last is that of the weights: the others divided by it.

    A sum of the weights is taken to be at least eps in size. any_sign: it may be below 0.
    """
    return y[..., :-1] / denominator(y[..., -1:], eps, any_sign)


def denominator(weight: Tensor, eps: float, any_sign: bool) -> Tensor:
    """The sum of the weights, at least eps in size, with its sign."""
    if not any_sign:
        return weight.clamp(min=eps)
    return torch.where(weight.abs() < eps, torch.full_like(weight, eps).copysign(weight), weight)
