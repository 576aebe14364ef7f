"""Softmax attention as a mixer: causal, its state being its key-value history, or in both directions, without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Fraction, NonNegative, OneOf, Positive
from statewise.errors import ConfigError
from statewise.mixers.attention_state import AttentionState, Context, check_history, with_room
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.full_attention import Seen, attend_fully
from statewise.mixers.positions import LearnedPositions, document_positions
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.mixers.rms_norm import RMSNorm
from statewise.mixers.rotary import rotate
from statewise.mixers.short_convolution import ShortConvolution
from statewise.operators.causal_convolution import ConvolutionState
from statewise.operators.masks import Masks
from statewise.operators.state_shape import COUNT, leaf

POSITIONS = ("rotary", "learned")
NORMED = ("head", "all")


@dataclass(frozen=True, kw_only=True)
class AttentionConfig(MixerConfig):
    """Attention with ``n_heads`` query heads of width ``d_head``, causal unless ``bidirectional``.

    n_kv_heads: heads of keys and values, each shared by n_heads / n_kv_heads query heads (default: n_heads)
    d_head:     default d_model / n_heads
    positions:  "rotary" (the first ``d_rotary`` features of each head, default all; see :mod:`.rotary`),
                "learned" (a table of ``max_positions`` vectors, added to the mixer's input) or None
    scale:      by which the products of queries and keys are multiplied before the softmax (default: 1 / sqrt(d_head))
    window:     a query sees itself and the window - 1 tokens before it (default: all), and as many behind it if
                bidirectional
    qk_norm:    RMSNorm of queries and keys before they are turned: "head", each head by itself, all with one weight;
                "all", all heads together; None: none
    qk_norm_eps: in that norm
    qk_norm_offset: its weights are stored less 1, as in Gemma and Qwen3-Next
    gate:       the heads' outputs are multiplied by sigmoid(W_g x) before the output's projection
    n_taps:     queries, keys and values first pass a depthwise causal convolution of this many taps, with a bias and no
                activation, as in the hybrids of ``mamba_ssm`` (default: none)
    bias:       of both projections
    output_bias: of the output's projection, if that differs from ``bias``
    dropout:    of the attention weights, in training
    weight_std: standard deviation of the projections' weights at the start
    bidirectional: a query also sees the tokens behind it; then there is no state and the layer cannot decode
    """

    n_heads: Count
    n_kv_heads: Count | None = None
    d_head: Count | None = None
    positions: Annotated[str, OneOf(POSITIONS)] | None = "rotary"
    d_rotary: Count | None = None
    rotary_base: Positive = 10_000.0
    max_positions: Count | None = None
    scale: Positive | None = None
    window: Count | None = None
    qk_norm: Annotated[str, OneOf(NORMED)] | None = None
    qk_norm_eps: NonNegative = 1e-5
    qk_norm_offset: bool = False
    gate: bool = False
    n_taps: Count | None = None
    bias: bool = False
    output_bias: bool | None = None
    dropout: Fraction = 0.0
    weight_std: Positive = WEIGHT_STD
    bidirectional: bool = False

    def __post_init__(self) -> None:
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ConfigError(
                f"AttentionConfig.n_kv_heads={self.n_kv_heads} does not divide n_heads={self.n_heads}; use a divisor"
            )
        if self.d_rotary is not None and self.positions != "rotary":
            raise ConfigError(
                f"AttentionConfig.d_rotary={self.d_rotary} with positions={self.positions!r}; leave it None"
            )
        if (self.max_positions is not None) != (self.positions == "learned"):
            raise ConfigError(
                f"AttentionConfig.max_positions={self.max_positions} with positions={self.positions!r}; "
                'set it if, and only if, positions="learned"'
            )
        if self.qk_norm_offset and self.qk_norm is None:
            raise ConfigError("AttentionConfig.qk_norm_offset=True with qk_norm=None; there is no norm, leave it False")
        if self.bidirectional and self.n_taps is not None:
            raise ConfigError(
                f"AttentionConfig.n_taps={self.n_taps} with bidirectional=True; its convolution reads backwards alone: "
                "leave it out"
            )
        if self.d_head is not None:
            self.rotary_width(self.d_head)

    def head_width(self, d_model: int) -> int:
        """d_head, or its default for this d_model."""
        if self.d_head is not None:
            return self.d_head
        if d_model % self.n_heads:
            raise ConfigError(
                f"d_model={d_model} is not a multiple of AttentionConfig.n_heads={self.n_heads}; "
                "set d_head, or another n_heads"
            )
        return d_model // self.n_heads

    def scale_of(self, d_head: int) -> float:
        """scale, or its default for this d_head."""
        return d_head**-0.5 if self.scale is None else self.scale

    def rotary_width(self, d_head: int) -> int:
        """How many features of each head are rotated: 0 without rotary positions."""
        if self.positions != "rotary":
            return 0
        width = d_head if self.d_rotary is None else self.d_rotary
        if width % 2 or width > d_head:
            raise ConfigError(
                f"rotary positions rotate pairs of features: d_rotary={width} of d_head={d_head}; "
                "set AttentionConfig.d_rotary to an even number of at most d_head"
            )
        return width

    def build(self, d_model: int) -> Attention:
        return Attention(d_model, self)


class ConvolvedAttentionState(NamedTuple):
    """convolution: the last queries, keys and values before their convolution; history: those after it."""

    convolution: ConvolutionState
    history: AttentionState


class Attention(Mixer):
    """y = W_o (softmax(scale Q K^T + mask) V), with Q, K, V = W_i (x + learned positions); with ``gate`` what W_o reads
    is times sigmoid(W_g x).

    The mask leaves each query its own document up to itself and, if ``bidirectional``, behind itself too.

    Positions count from the beginning of the document, so padded, packed and single runs agree.

    Shapes:  as :class:`~statewise.mixers.base.Mixer`; ``in_proj.weight``: the rows of queries, keys, values and the
             gate, each head by head
    State:   :class:`~statewise.mixers.attention_state.AttentionState`, float32 or wider; with ``n_taps`` a
             :class:`ConvolvedAttentionState`
    Cost:    O(length * (history + length)); with a window O(length * window), and a state of bounded size. A step of
             one token copies no history. Where gradients are recorded, or a document begins, the history is copied
             once for the call. With a state the host waits for the device, which must tell it the rows' lengths.
             Dropout keeps all weights for the gradients, and makes no use of a window.
    Limits:  The fused attention has no double backward on CPU. A call with a state does not compile to one graph.
    Errors:  InputError for shapes that do not fit, lengths out of range, positions beyond ``max_positions``.
    Source:  Vaswani et al. 2017, arXiv:1706.03762, sec. 3.2; groups: Ainslie et al. 2023, arXiv:2305.13245; norms of
             queries and keys: Henry et al. 2020, arXiv:2010.04245, and Dehghani et al. 2023, arXiv:2302.05442, sec. 2;
             the gate: Qiu et al. 2025, arXiv:2505.06708, sec. 2.2.

    >>> mixer = AttentionConfig(n_heads=2, window=8).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.position
    (torch.Size([1, 5, 16]), tensor([5]))
    """

    def __init__(self, d_model: int, config: AttentionConfig) -> None:
        super().__init__()
        self.d_model, self.config = d_model, config
        self.is_causal = not config.bidirectional
        self.bounded_state = config.window is not None
        self.n_heads = config.n_heads
        self.n_kv_heads = config.n_heads if config.n_kv_heads is None else config.n_kv_heads
        self.d_head = config.head_width(d_model)
        self.d_rotary = config.rotary_width(self.d_head)
        d_inner = self.n_heads * self.d_head
        d_kv = self.n_kv_heads * self.d_head
        self.sizes = (d_inner + 2 * d_kv, d_inner if config.gate else 0)
        parts = (d_inner, d_kv, d_kv, self.sizes[1])
        self.in_proj = Linear(d_model, sum(self.sizes), bias=config.bias, parts=parts)
        self.q_norm, self.k_norm = self._build_norm(d_inner), self._build_norm(d_kv)
        self.convolution = None if config.n_taps is None else ShortConvolution(self.sizes[0], config.n_taps)
        self.out_proj = Linear(d_inner, d_model, bias=config.bias if config.output_bias is None else config.output_bias)
        self.positions = None if config.max_positions is None else LearnedPositions(config.max_positions, d_model)
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    def _build_norm(self, width: int) -> RMSNorm | None:
        config = self.config
        if config.qk_norm is None:
            return None
        width = self.d_head if config.qk_norm == "head" else width
        return RMSNorm(width, eps=config.qk_norm_eps, offset=config.qk_norm_offset)

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        draw_normal(self.config.weight_std, self.in_proj, self.out_proj)
        for norm in (self.q_norm, self.k_norm):
            if norm is not None:
                norm.reset_parameters()
        if self.positions is not None:
            nn.init.normal_(self.positions.weight, std=0.02)
        if self.convolution is not None:
            self.convolution.reset_parameters()
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)

    def state_shape(self) -> AttentionState | ConvolvedAttentionState:
        buffer, count = leaf(None, self.n_kv_heads, self.d_head), COUNT
        history = AttentionState(buffer, buffer, start=count, end=count, position=count, filled=count)
        if self.convolution is None:
            return history
        return ConvolvedAttentionState(self.convolution.operator.state_shape(), history)

    def with_room(
        self, state: AttentionState | ConvolvedAttentionState, length: int
    ) -> AttentionState | ConvolvedAttentionState:
        if self.config.window is not None:  # the history stays short anyway
            return state
        if isinstance(state, ConvolvedAttentionState):
            return state._replace(history=with_room(state.history, length))
        return with_room(state, length)

    def mix(
        self, x: Tensor, state: AttentionState | ConvolvedAttentionState | None, masks: Masks
    ) -> tuple[Tensor, AttentionState | ConvolvedAttentionState | None]:
        before, history = state if isinstance(state, ConvolvedAttentionState) else (None, state)
        batch, length = x.shape[:2]
        n_read = None if history is None else history.position
        position, began = document_positions(length, n_read, masks.starts, device=x.device)
        if self.positions is not None:
            at_most = length if history is None else None  # and without rows no token has a position
            x = x + self.positions(position[:batch], lengths=masks.lengths, at_most=at_most)
        qkv, gate = self.in_proj(x).split(self.sizes, -1)
        if self.convolution is not None:
            qkv, before = self.convolution(qkv, before, masks=masks)
        q, k, v = self._heads(qkv, position)
        if x.numel() == 0:  # no attention, but a graph from x and the parameters
            if isinstance(history, AttentionState):  # which nobody extends, so that nobody else looks at it
                check_history("Attention", history)
            y = q.flatten(2)
            return self.out_proj(y * gate if self.config.gate else y), state

        context = Context(k, v, masks.lengths, began, self.config.window)
        dropout = self.dropout if self.training and self.dropout.p > 0.0 else None
        if self.config.bidirectional:
            y = attend_fully(q, k, v, self._seen(masks), dropout=dropout)
        elif history is None:
            y = context.attend(q, dropout)
        else:
            context, history = history.extend(context)
            y = history.attend(q, context, dropout)
        y = y.to(qkv.dtype).flatten(2)
        y = self.out_proj(y * gate.sigmoid() if self.config.gate else y)
        return y, history if before is None or history is None else ConvolvedAttentionState(before, history)

    def _seen(self, masks: Masks) -> Seen:
        """What a query sees in both directions."""
        if masks.segments is None:
            return Seen(valid=masks.valid, window=self.config.window)
        return Seen(masks.valid, (masks.segments, masks.segments), self.config.window)

    def _heads(self, qkv: Tensor, position: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, (batch, length, heads, d_head); positions turn the first two."""
        n_heads, n_kv_heads = self.n_heads, self.n_kv_heads
        qk, v = qkv.unflatten(-1, (-1, self.d_head)).split((n_heads + n_kv_heads, n_kv_heads), dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk.split((n_heads, n_kv_heads), dim=2)
            qk = torch.cat((self._normed(q, self.q_norm), self._normed(k, self.k_norm)), 2)
        if self.d_rotary:
            qk = rotate(qk, position, d_rotary=self.d_rotary, base=self.config.rotary_base)
        q, k = qk.split((n_heads, n_kv_heads), dim=2)
        if self.config.scale is not None:  # what attends divides by sqrt(d_head)
            q = q * (self.config.scale * self.d_head**0.5)
        return q, k, v

    def _normed(self, heads: Tensor, norm: RMSNorm) -> Tensor:
        if self.config.qk_norm == "head":
            return norm(heads)
        return norm(heads.flatten(2)).unflatten(-1, (-1, self.d_head))
