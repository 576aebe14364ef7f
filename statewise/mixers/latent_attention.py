"""Multi-head latent attention: keys and values are maps of one small vector a token, which is the history."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, Fraction, NonNegative, Positive
from statewise.kernels.exact import is_exact
from statewise.mixers.attention_state import AttentionState, Context, check_history, with_room
from statewise.mixers.base import Mixer, MixerConfig
from statewise.mixers.positions import document_positions
from statewise.mixers.projection import WEIGHT_STD, Linear, draw_normal
from statewise.mixers.rms_norm import RMSNorm
from statewise.operators.masks import Masks
from statewise.operators.state_shape import COUNT, leaf


@dataclass(frozen=True, kw_only=True)
class LatentAttentionConfig(MixerConfig):
    """Causal multi-head latent attention without positions, as Kimi Linear has it.

    d_key, d_value: widths of a head's keys and values, which are maps of the latent
    d_shared:       width of the part of the keys that all heads have in common
    rank:           width of the latent
    query_rank:     of the queries' projection, with a norm in the middle; None: one full map
    norm_eps:       of the norms of the latent and of the queries' middle
    bias:           of all projections but those out of a norm
    dropout:        of the attention weights, in training
    weight_std:     standard deviation of the projections' weights at the start

    Source: DeepSeek-AI 2024 (V2), arXiv:2405.04434, sec. 2.1; Kimi Team 2025, arXiv:2510.26692, sec. 4.
    """

    n_heads: Count
    d_key: Count = 128
    d_value: Count = 128
    d_shared: Count = 64
    rank: Count = 512
    query_rank: Count | None = None
    norm_eps: NonNegative = 1e-6
    bias: bool = False
    dropout: Fraction = 0.0
    weight_std: Positive = WEIGHT_STD

    def build(self, d_model: int) -> LatentAttention:
        return LatentAttention(d_model, self)


class LatentAttention(Mixer):
    """c = RMSNorm(W_c x), s = W_s x; for each head y = softmax(q . [W_k c, s] / sqrt(d_key + d_shared)) W_v c over the
    tokens so far, q = W_q x, or W_q2 RMSNorm(W_q1 x); then W_o of all heads.

    From rest the keys and values of all heads are made. With a state they never are: q . W_k c = (W_k^T q) . c, so the
    heads are queries of one history of latents, and W_v is taken of what they read. Exact mode always does so.

    Shapes:  as :class:`~statewise.mixers.base.Mixer`; ``in_proj.weight``: the rows of c (rank), then of s (d_shared);
             ``up_proj.weight``: head by head W_k (d_key), then W_v (d_value); ``query_proj.weight``: head by head what
             meets W_k c, then what meets s
    State:   :class:`~statewise.mixers.attention_state.AttentionState`, its keys [c, s], (batch, capacity, 1, rank +
             d_shared), its values of no width: they are the keys' first ``rank`` numbers
    Cost:    from rest O(length^2 n_heads (d_key + d_shared + d_value)); with a state
             O(length (history + length) n_heads (2 rank + d_shared)), and memory of rank + d_shared numbers a token
    Limits:  As of :class:`~statewise.mixers.attention.Attention`.
    Errors:  InputError for shapes or states that do not fit.
    Source:  DeepSeek-AI 2024 (V2), arXiv:2405.04434, eq. 9 to 19, without the rotation.

    >>> import torch
    >>> mixer = LatentAttentionConfig(n_heads=2, d_key=8, d_value=6, d_shared=4, rank=10).build(d_model=16)
    >>> y, state = mixer(torch.randn(1, 5, 16), mixer.initial_state(batch=1))
    >>> y.shape, state.position
    (torch.Size([1, 5, 16]), tensor([5]))
    """

    bounded_state = False

    def __init__(self, d_model: int, config: LatentAttentionConfig) -> None:
        super().__init__()
        self.d_model, self.config, self.n_heads = d_model, config, config.n_heads
        self.d_query = config.d_key + config.d_shared
        sizes = (config.rank, config.d_shared)
        self.in_proj = Linear(d_model, sum(sizes), bias=config.bias, parts=sizes)
        self.norm = RMSNorm(config.rank, eps=config.norm_eps)
        self.up_proj = Linear(config.rank, config.n_heads * (config.d_key + config.d_value), bias=False)
        self.query_down = self.query_norm = None
        if config.query_rank is not None:
            self.query_down = Linear(d_model, config.query_rank, bias=config.bias)
            self.query_norm = RMSNorm(config.query_rank, eps=config.norm_eps)
        query_width = d_model if config.query_rank is None else config.query_rank
        self.query_proj = Linear(query_width, config.n_heads * self.d_query, bias=False)
        self.out_proj = Linear(config.n_heads * config.d_value, d_model, bias=config.bias)
        self.dropout = nn.Dropout(config.dropout)
        self.reset_parameters()

    def reset_parameters(self, residual_scale: float = 1.0) -> None:
        draw_normal(self.config.weight_std, self.in_proj, self.up_proj, self.query_proj, self.out_proj)
        self.norm.reset_parameters()
        if self.query_down is not None and self.query_norm is not None:
            draw_normal(self.config.weight_std, self.query_down)
            self.query_norm.reset_parameters()
        with torch.no_grad():
            self.out_proj.weight.mul_(residual_scale)

    def state_shape(self) -> AttentionState:
        keys, values = leaf(None, 1, self.config.rank + self.config.d_shared), leaf(None, 1, 0)
        return AttentionState(keys, values, start=COUNT, end=COUNT, position=COUNT, filled=COUNT)

    def with_room(self, state: AttentionState, length: int) -> AttentionState:
        return with_room(state, length)

    def mix(self, x: Tensor, state: AttentionState | None, masks: Masks) -> tuple[Tensor, AttentionState | None]:
        n_read = None if state is None else state.position
        _, began = document_positions(x.shape[1], n_read, masks.starts, device=x.device)
        c, s = self.in_proj(x).split((self.config.rank, self.config.d_shared), -1)
        c, q = self.norm(c), self._queries(x)
        if x.numel() == 0:  # no attention, but a graph from x and the parameters
            if isinstance(state, AttentionState):
                check_history("LatentAttention", state)
            y = q.new_zeros(*x.shape[:2], self.out_proj.in_features) + q.sum() + c.sum() + s.sum()
            return self.out_proj(y), state
        dropout = self.dropout if self.training and self.dropout.p > 0.0 else None
        if state is None and not is_exact():
            keys, values = self._expanded(c, s)
            y = Context(keys, values, masks.lengths, began).attend(q, dropout)
        else:
            keys = torch.cat((c, s), -1)[:, :, None]
            y, state = self._among_latents(q, Context(keys, keys[..., :0], masks.lengths, began), state, dropout)
        return self.out_proj(y.to(x.dtype).flatten(2)), state

    def _among_latents(
        self, q: Tensor, own: Context, state: AttentionState | None, dropout: nn.Dropout | None
    ) -> tuple[Tensor, AttentionState | None]:
        """What the heads read as queries of one history of [c, s], of which ``own`` is the call's part."""
        context, after = (own, None) if state is None else state.extend(own)
        keys = context.keys  # in exact mode the values too: what is read of s is dropped
        context = context._replace(values=keys if is_exact() else keys[..., : self.config.rank])
        up_key, up_value = self._maps()
        of_key, of_shared = q.split((self.config.d_key, self.config.d_shared), -1)
        q = torch.cat((torch.einsum("blhk,hkr->blhr", of_key, up_key), of_shared), -1)
        q = q * (q.shape[-1] / self.d_query) ** 0.5  # what attends divides by the square root of its width
        read = context.attend(q, dropout) if after is None else after.attend(q, context, dropout)
        read = read[..., : self.config.rank]
        return torch.einsum("blhr,hvr->blhv", read, up_value.to(read.dtype)), after

    def _queries(self, x: Tensor) -> Tensor:
        if self.query_down is not None and self.query_norm is not None:
            x = self.query_norm(self.query_down(x))
        return self.query_proj(x).unflatten(-1, (self.n_heads, self.d_query))

    def _expanded(self, c: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
        """The keys and values of each head."""
        sizes = (self.config.d_key, self.config.d_value)
        keys, values = self.up_proj(c).unflatten(-1, (self.n_heads, -1)).split(sizes, -1)
        return torch.cat((keys, s[:, :, None].expand(-1, -1, self.n_heads, -1)), -1), values

    def _maps(self) -> tuple[Tensor, Tensor]:
        """W_k (n_heads, d_key, rank) and W_v (n_heads, d_value, rank)."""
        maps = self.up_proj.weight.unflatten(0, (self.n_heads, -1))
        key, value = maps.split((self.config.d_key, self.config.d_value), 1)
        return key, value
