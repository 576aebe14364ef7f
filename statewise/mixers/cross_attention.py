"""Attention to another sequence, the memory: by a softmax or by features. What was read of the memory is the state."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.configuration.types import Count, Fraction, Positive
from statewise.errors import ConfigError, InputError
from statewise.mixers.base import Mixer, MixerConfig, check_input, check_weight
from statewise.mixers.full_attention import Seen, attend_fully
from statewise.mixers.linear_attention import FeatureMapConfig, divided_by_weight
from statewise.mixers.prepared import wide
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.operators.head_patterns import share_heads
from statewise.operators.masks import Masks, build_masks, mask_time
from statewise.operators.state_shape import COUNT, leaf
from statewise.precision import without_autocast


@dataclass(frozen=True, kw_only=True)
class CrossAttentionConfig(MixerConfig):
    """Softmax attention to another sequence, with ``n_heads`` query heads of width ``d_head``.

    n_kv_heads: heads of keys and values, each shared by n_heads / n_kv_heads query heads (default: n_heads)
    d_head:     default d_model / n_heads
    d_memory:   the width of the other sequence (default: d_model)
    bias:       of all projections
    dropout:    of the attention weights, in training
    weight_std: standard deviation of the projections' weights at the start
    """

    n_heads: Count
    n_kv_heads: Count | None = None
    d_head: Count | None = None
    d_memory: Count | None = None
    bias: bool = False
    dropout: Fraction = 0.0
    weight_std: Positive = WEIGHT_STD

    def __post_init__(self) -> None:
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"CrossAttentionConfig.n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}; "
                "use a divisor"
            )

    def build(self, d_model: int) -> CrossAttention:
        return CrossAttention(d_model, self)


@dataclass(frozen=True, kw_only=True)
class LinearCrossAttentionConfig(FeatureMapConfig):
    """Linear attention to another sequence. The other fields are those of
    :class:`~statewise.mixers.linear_attention.FeatureMapConfig`.

    d_memory: the width of the other sequence (default: d_model)
    """

    d_memory: Count | None = None

    def build(self, d_model: int) -> LinearCrossAttention:
        return LinearCrossAttention(d_model, self)


class CrossAttentionState(NamedTuple):
    """The keys and values of a memory.

    keys, values: (batch, n_keys, n_kv_heads, d_head); at rest there are none
    document:     (batch, n_keys) int64, the number of the document that each belongs to, from 0; -1 in the padding
    n_documents:  (batch,) int64, how many the memory has; at rest 0
    n_begun:      (batch,) int64, how many have begun among the queries
    """

    keys: Tensor
    values: Tensor
    document: Tensor
    n_documents: Tensor
    n_begun: Tensor


class LinearCrossAttentionState(NamedTuple):
    """The sums over a memory.

    sums:        (batch, documents of the row with most, n_heads, d_head + 1, n_features), of each document that of the
                 products of values and features of keys, and last of the features; without ``normalize`` d_head rows;
                 at rest there are none
    n_documents: (batch,) int64, how many the memory has; at rest 0
    n_begun:     (batch,) int64, how many have begun among the queries
    """

    sums: Tensor
    n_documents: Tensor
    n_begun: Tensor


class MemoryReader(Mixer):
    """A layer whose queries come from x and whose keys and values come from another sequence, the memory.

    ``read`` makes the state of a memory, and calls hand it on: ``y, state = layer(x, layer.read(memory))``. At rest the
    memory is empty, and y is what a sum over nothing gives: 0, and the bias. A step looks at the whole memory and at no
    other step, so that a layer cuts, pads and decodes as every other one.

    Packed rows: the i-th document of x sees the i-th of the memory, in each row. The first begins at the first step,
    whether ``starts`` say so or not, and each other one where they say so, those of ``read`` for the memory. Under
    torch.compile nobody counts them: a document of x that the memory has none for sees nothing there.
    """

    reads_memory = True
    d_memory: int
    memory_proj: Linear

    @abc.abstractmethod
    def _remember(self, projected: Tensor, document: Tensor, counts: tuple[Tensor, Tensor]) -> Any:
        """The state of keys and values side by side (batch, n_keys, ...), whose documents are numbered.

        counts: ``n_documents`` and ``n_begun``, with which each state ends
        """

    def read(self, memory: Tensor, *, lengths: Tensor | None = None, starts: Tensor | None = None) -> Any:
        """The state in which this memory was read.

        Shapes:  memory: (batch, n_keys, d_memory), of any length   lengths: (batch,), of each right-padded row
                 starts: (batch, n_keys) bool, True where a packed document begins
        Cost:    of ``memory_proj``, one time for all steps that look at the memory.
        Errors:  InputError for shapes, dtypes and lengths that do not fit.
        """
        name = f"{type(self).__name__}.read"
        check_input(memory, self.d_memory, name, "memory")
        check_weight(memory, self.memory_proj.weight, name, "memory")
        masks = build_masks(memory, lengths, starts)
        document = torch.zeros(memory.shape[:2], dtype=torch.int64, device=memory.device)
        if masks.starts is not None and masks.segments is not None:
            document = masks.segments - masks.starts[:, :1].long()
        if masks.valid is not None:
            document = document.masked_fill(~masks.valid, -1)
        n_documents = F.pad(document, (1, 0), value=-1).amax(1) + 1  # of no keys: 0
        counts = (n_documents, torch.zeros_like(n_documents))
        return self._remember(wide(self.memory_proj(mask_time(memory, masks.valid))), document, counts)

    def with_memory(self, state: Any, memory: Tensor, **masks: Tensor | None) -> Any:
        return self.read(memory, **masks)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        """As attention: normal of standard deviation ``weight_std``, biases zero, the output's scaled."""
        draw_normal(self.config.weight_std, self.in_proj, self.memory_proj, self.out_proj)  # type: ignore[union-attr, arg-type]
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)  # type: ignore[union-attr, operator]

    def _documents(self, x: Tensor, state: Any, masks: Masks) -> tuple[Tensor, Any]:
        """The number of the document of each query, (batch, length), or (batch, 1) where none begins behind the first
        step, and the state behind the call.

        Errors:  InputError for a row of x with more documents than its memory, unless that is empty.
        """
        begun = state.n_begun
        if x.shape[1] == 0:
            return (begun - 1).clamp(min=0)[:, None], state
        first = begun == 0  # a row's first step begins a document
        if masks.valid is not None:
            first = first & masks.valid[:, 0]
        if masks.starts is None or masks.segments is None:
            begun = begun + first
            return (begun - 1).clamp(min=0)[:, None], state._replace(n_begun=begun)
        begun = (begun + (first & ~masks.starts[:, 0]))[:, None] + masks.segments
        state = state._replace(n_begun=begun[:, -1])
        self._refuse_more(state)
        return (begun - 1).clamp(min=0), state

    def _refuse_more(self, state: Any) -> None:
        if torch.compiler.is_compiling() or state.n_begun.is_meta:
            return
        more = (state.n_begun > state.n_documents) & (state.n_documents > 0)
        if not bool(more.any()):
            return
        row = int(more.int().argmax())
        raise InputError(
            f"{type(self).__name__} has {int(state.n_begun[row])} documents in row {row} of x, and "
            f"{int(state.n_documents[row])} in its memory: the last would see nothing; read the memory with starts of "
            "its own, one for each document of x"
        )


class CrossAttention(MemoryReader):
    """y = W_o softmax(Q K^T / sqrt(d_head)) V with Q = W_q x, and K, V = W_kv memory.

    Shapes:  x: (batch, length, d_model) -> y the same. State: :class:`CrossAttentionState`, from :meth:`read`
    Cost:    O(length * n_keys); a mask of a number a key, or with packed documents one of MASK_ELEMENTS at a time. With
             dropout all weights are kept for the gradients.
    Errors:  ConfigError if n_heads does not divide d_model; InputError for shapes or states that do not fit, and for a
             row of x with more documents than its memory.
    Source:  Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2.3 (encoder-decoder attention).

    >>> layer = CrossAttentionConfig(n_heads=2).build(d_model=16)
    >>> y, state = layer(torch.randn(1, 5, 16), layer.read(torch.randn(1, 30, 16)))
    >>> y.shape, state.keys.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 30, 2, 8]))
    """

    def __init__(self, d_model: int, config: CrossAttentionConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_memory = d_model if config.d_memory is None else config.d_memory
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_heads if config.n_kv_heads is None else config.n_kv_heads
        if config.d_head is None and d_model % config.n_heads:
            raise ConfigError(
                f"d_model={d_model} is not a multiple of CrossAttentionConfig.n_heads={config.n_heads}; "
                "set d_head, or another n_heads"
            )
        self.d_head = d_model // config.n_heads if config.d_head is None else config.d_head
        d_inner, d_kv = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        self.in_proj = Linear(d_model, d_inner, bias=config.bias)  # q
        self.memory_proj = Linear(self.d_memory, 2 * d_kv, bias=config.bias, parts=(d_kv, d_kv))  # k, v
        self.out_proj = Linear(d_inner, d_model, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    def state_shape(self) -> CrossAttentionState:
        buffer = leaf(None, self.n_kv_heads, self.d_head)
        return CrossAttentionState(buffer, buffer, leaf(None, dtype=torch.int64), COUNT, COUNT)

    def check_state(self, state: Any, x: Tensor) -> None:
        super().check_state(state, x)
        sizes = {part.shape[1] for part in state[:3]}
        if len(sizes) > 1 or state.keys.dtype != state.values.dtype:
            raise InputError(
                "CrossAttention needs keys, values and documents of one length, and keys and values of one dtype, in "
                f"its state; got {', '.join(f'{part.dtype} {tuple(part.shape)}' for part in state[:3])}"
            )

    def _remember(self, projected: Tensor, document: Tensor, counts: tuple[Tensor, Tensor]) -> CrossAttentionState:
        keys, values = projected.unflatten(-1, (2, self.n_kv_heads, self.d_head)).unbind(2)
        return CrossAttentionState(keys, values, document, *counts)

    def mix(
        self, x: Tensor, state: CrossAttentionState | None, masks: Masks
    ) -> tuple[Tensor, CrossAttentionState | None]:
        q = self.in_proj(x)
        dtype = q.dtype
        if state is None:
            return self.out_proj(torch.zeros_like(q)), None
        q = q.unflatten(-1, (self.n_heads, self.d_head)).to(state.keys.dtype)
        number, state = self._documents(x, state, masks)
        is_one = number.shape[1] == 1
        seen = Seen(valid=state.document == number) if is_one else Seen(documents=(number, state.document))
        y = q * 0.0  # of no rows, steps or keys
        if y.numel() and state.keys.shape[1]:
            dropout = self.dropout if self.training and self.dropout.p > 0.0 else None
            y = attend_fully(q, state.keys, state.values, seen, dropout=dropout)
        return self.out_proj(y.to(dtype).flatten(2)), state


class LinearCrossAttention(MemoryReader):
    """o_t = S phi(q_t) / (z . phi(q_t)) for each head, with S = sum_s v_s phi(k_s)^T and z = sum_s phi(k_s) over the
    memory; y = W_o o, with q = W_q x, and k, v = W_kv memory. Without ``normalize`` there is neither z nor the
    division.

    Shapes:   x: (batch, length, d_model) -> y the same. State: :class:`LinearCrossAttentionState`, from
              :meth:`read`, of one size whatever the length of the memory
    Cost:     O(n_keys) to read the memory, and O(length) for all queries; times n_documents where documents are packed
    Numerics: as :class:`~statewise.mixers.linear_attention.LinearAttention`
    Errors:   ConfigError if n_heads does not divide d_model; InputError for shapes or states that do not fit, and for a
              row of x with more documents than its memory.
    Source:   Katharopoulos et al. 2020, arXiv:2006.16236, sec. 3.2 (eq. 5 and 6), keys and queries of two sequences.

    >>> layer = LinearCrossAttentionConfig(n_heads=2).build(d_model=16)
    >>> y, state = layer(torch.randn(1, 5, 16), layer.read(torch.randn(1, 30, 16)))
    >>> y.shape, state.sums.shape
    (torch.Size([1, 5, 16]), torch.Size([1, 1, 2, 9, 8]))
    """

    def __init__(self, d_model: int, config: LinearCrossAttentionConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.d_memory = d_model if config.d_memory is None else config.d_memory
        self.n_heads, self.heads, self.d_head = config.n_heads, config.heads, config.head_width(d_model)
        self.d_feature = self.d_head if config.d_feature is None else config.d_feature
        self.feature_map = config.build_map()
        self.n_features = self.feature_map.width(self.d_feature)
        parts = (self.heads.keys * self.d_feature, self.heads.values * self.d_head)
        self.in_proj = Linear(d_model, self.heads.queries * self.d_feature, bias=config.bias)  # q
        self.memory_proj = Linear(self.d_memory, sum(parts), bias=config.bias, parts=parts)  # k, v
        self.out_proj = Linear(d_model, d_model, bias=config.bias)
        self.reset_parameters()

    def state_shape(self) -> LinearCrossAttentionState:
        sums = leaf(None, self.n_heads, self.d_head + self.config.normalize, self.n_features)
        return LinearCrossAttentionState(sums, COUNT, COUNT)

    def _remember(
        self, projected: Tensor, document: Tensor, counts: tuple[Tensor, Tensor]
    ) -> LinearCrossAttentionState:
        k, v = projected.split(self.memory_proj.parts, -1)
        k = share_heads(self.feature_map.apply(k.unflatten(-1, (self.heads.keys, self.d_feature))), self.n_heads)
        v = share_heads(v.unflatten(-1, (self.heads.values, self.d_head)), self.n_heads)
        if self.config.normalize:
            v = F.pad(v, (0, 1), value=1.0)
        n_documents = 1 if document.numel() == 0 else max(1, int(document.max()) + 1)
        sums = []
        with without_autocast(v.device):
            for number in range(n_documents):
                sums.append(torch.einsum("bshp,bshn->bhpn", mask_time(v, document == number), k))
        return LinearCrossAttentionState(torch.stack(sums, 1), *counts)

    def mix(
        self, x: Tensor, state: LinearCrossAttentionState | None, masks: Masks
    ) -> tuple[Tensor, LinearCrossAttentionState | None]:
        projected = wide(self.in_proj(x))
        q = self.feature_map.apply(projected.unflatten(-1, (self.heads.queries, self.d_feature)))
        q = share_heads(q, self.n_heads)
        y = q.new_zeros(*q.shape[:3], self.d_head + self.config.normalize)
        if state is not None:
            number, state = self._documents(x, state, masks)
            with without_autocast(x.device):
                for i, sums in enumerate(state.sums.unbind(1)):
                    own = (number == i)[..., None, None].to(q.dtype)
                    y = y + own * torch.einsum("blhn,bhpn->blhp", q.to(sums.dtype), sums)
        if self.config.normalize:
            y = divided_by_weight(y, self.config.eps, not self.feature_map.nonnegative)
        return self.out_proj(y.to(x.dtype).flatten(2)), state
