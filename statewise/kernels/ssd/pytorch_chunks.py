"""SSD by chunks: matrix products inside a chunk, a recurrence from chunk to chunk; and its adjoint.

Notation: b batch, c chunks, q steps of a chunk, g groups, r heads of a group, p head width, n state.
The products with the state (B^T x, C h) run over all r heads of a group at once, as one (q, n, r p) product.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEAST_LOG_A = (
    -1000.0
)  # below, log_a counts as this: its exponential is 0 in any dtype, and sums over a chunk stay small


class Inputs(NamedTuple):
    """The inputs along time: dt x (b, l, h, p), log_a (b, l, h), B and C (b, l, g, n), segments (b, l) or None."""

    x: Tensor
    log_a: Tensor
    B: Tensor
    C: Tensor
    segments: Tensor | None

    def at(self, times: slice) -> Inputs:
        x, log_a, B, C = (m[:, times] for m in (self.x, self.log_a, self.B, self.C))
        return Inputs(x, log_a, B, C, None if self.segments is None else self.segments[:, times])

    def in_chunks(self, q: int) -> Inputs:
        """(b, l, ...) -> (b, c, q, ...)"""
        x, log_a, B, C = (_chunk(m, q) for m in (self.x, self.log_a, self.B, self.C))
        return Inputs(x, log_a, B, C, None if self.segments is None else _chunk(self.segments, q))


class _Decays(NamedTuple):
    """The decays of each chunk: within it, from the carried state, to its end, and across it."""

    within: Tensor  # (b, c, h, q, q)   prod a over (s, t], zero above the diagonal and across documents
    from_start: Tensor  # (b, c, q, h)  prod a over [0, t], zero if the document of t began inside
    to_end: Tensor  # (b, c, q, h)      prod a over (s, end], zero if the document of s ends inside
    across: Tensor  # (b, c, h)         prod a over the chunk, zero if a document begins inside


def _decays(log_a: Tensor, segments: Tensor | None, before: Tensor | None, dtype: torch.dtype) -> _Decays:
    """log_a: (b, c, q, h); segments: (b, c, q); before: (b, c), the segment of the step before each chunk."""
    coarse, fine = _sums(log_a)
    by_head = coarse.transpose(2, 3)  # (b, c, h, q)
    b, c, h, q = by_head.shape
    within = torch.empty(b, c, h, q, q, dtype=dtype, device=log_a.device)
    torch.sub(by_head.unsqueeze(-1), by_head.unsqueeze(-2), out=within)
    to_end = coarse[:, :, -1:] - coarse
    if fine is not None:
        by_head = fine.transpose(2, 3)
        within.add_(by_head.unsqueeze(-1)).sub_(by_head.unsqueeze(-2))
        to_end += fine[:, :, -1:] - fine
        coarse = coarse + fine
    within.exp_().tril_()
    from_start, to_end = coarse.to(dtype).exp(), to_end.to(dtype).exp_()
    across = from_start[:, :, -1]
    if segments is not None and before is not None:
        same = segments.unsqueeze(-1) == segments.unsqueeze(-2)  # (b, c, q, q)
        within.mul_(same.unsqueeze(2))
        from_start = from_start * (segments == before.unsqueeze(-1)).unsqueeze(-1)
        to_end = to_end * (segments == segments[:, :, -1:]).unsqueeze(-1)
        across = from_start[:, :, -1]
    return _Decays(within, from_start, to_end, across)


def _sums(log_a: Tensor) -> tuple[Tensor, Tensor | None]:
    """Cumulative sums of log_a (b, c, q, h) in float64, whose differences are right to the dtype of log_a.

    For float32 the first suffices. For float64 it sums multiples of a power of two that is coarse enough for every sum
    to be exact, in any order, and the second sums the rests. (Dao & Gu 2024, arXiv:2405.21060, listing 1, masks and
    cumulates instead, which costs q^2 adds.)
    """
    bounded = log_a.clamp(min=LEAST_LOG_A).double()  # NaN stays
    if log_a.dtype != torch.float64:
        return bounded.cumsum(2), None
    grid = 2.0 ** (math.ceil(math.log2(-LEAST_LOG_A * log_a.shape[2])) - 52)
    multiples = (bounded / grid).round_().mul_(grid)
    return multiples.cumsum(2), (bounded - multiples).cumsum(2)


def _merge_heads(x: Tensor, n_groups: int) -> Tensor:
    """(b, c, q, h, p) -> (b, c, g, q, r p), the layout of the products with the state."""
    b, c, q, h, p = x.shape
    return x.reshape(b, c, q, n_groups, (h // n_groups) * p).transpose(2, 3)


def _split_heads(x: Tensor, n_heads: int) -> Tensor:
    """(b, c, g, q, r p) -> (b, c, q, h, p)"""
    b, c, g, q, rp = x.shape
    return x.transpose(2, 3).reshape(b, c, q, n_heads, rp * g // n_heads)


def _per_head(x: Tensor) -> Tensor:
    """(b, c, q, h, p) -> contiguous (b, c, h, q, p), the layout of the products within a chunk."""
    return x.transpose(2, 3).contiguous()


def _over_chunks(added: Tensor, across: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """States entering each chunk, written over ``added`` (b, c, h, p, n), and the state after the last."""
    for k in range(added.shape[1]):
        following = torch.addcmul(added[:, k], across[:, k, :, None, None], state)
        added[:, k] = state
        state = following
    return added, state


def _scores(B: Tensor, C: Tensor) -> Tensor:
    """C_t . B_s within each chunk and group: (b, c, g, q, q) from (b, c, q, g, n)."""
    return C.transpose(2, 3) @ B.permute(0, 1, 3, 4, 2)


def _chunk(m: Tensor, q: int) -> Tensor:
    return m.unflatten(1, (m.shape[1] // q, q))


def _before(segments: Tensor | None, entering: Tensor | None, q: int) -> Tensor | None:
    """(b, c) segment of the last step before each chunk."""
    if segments is None or entering is None:
        return None
    return torch.cat([entering.unsqueeze(1), segments[:, q - 1 : -1 : q]], 1)


def forward_chunks(inputs: Inputs, h0: Tensor, entering: Tensor | None, q: int) -> tuple[Tensor, Tensor]:
    """y and the state after the last step; the length must be a multiple of q. entering: (b,) segment of h0."""
    before = _before(inputs.segments, entering, q)
    x, log_a, B, C, segments = inputs.in_chunks(q)
    decays = _decays(log_a, segments, before, x.dtype)
    b, c, _, h, p = x.shape
    n_groups, n = B.shape[3:]  # written out below: beside an axis of size 0 there is no -1

    scores = _scores(B, C).unsqueeze(3)  # (b, c, g, 1, q, q)
    mixing = decays.within.view(b, c, n_groups, h // n_groups, q, q).mul_(scores).view(b * c * h, q, q)
    y_within = torch.bmm(mixing, _per_head(x).view(b * c * h, q, p)).view(b, c, h, q, p)

    weighted = _merge_heads(x * decays.to_end.unsqueeze(-1), n_groups)
    added = (weighted.transpose(3, 4) @ B.transpose(2, 3)).reshape(b, c, h, p, n)
    entering_states, state = _over_chunks(added, decays.across, h0)

    by_group = entering_states.view(b, c, n_groups, (h // n_groups) * p, n)
    y = _split_heads(C.transpose(2, 3) @ by_group.transpose(3, 4), h)
    y = torch.addcmul(y_within.transpose(2, 3), y, decays.from_start.unsqueeze(-1))
    return y.flatten(1, 2), state


def backward_chunks(
    grad_y: Tensor, grad_state: Tensor, inputs: Inputs, h0: Tensor, entering: Tensor | None, q: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of x, log_a, B, C and h0. Chunk states are recomputed, so the forward pass keeps none of them.

    log_a_t scales whatever crosses from before t to t or later: from step to step inside the chunk, from the
    carried state, to the end, and across. Each of the four is a sum of the terms that do; the shorter formula
    <dy, y> - <dx, x> would subtract large equal numbers, and leave noise where the decay is strong.
    """
    before = _before(inputs.segments, entering, q)
    x, log_a, B, C, segments = inputs.in_chunks(q)
    dy = _chunk(grad_y, q)
    decays = _decays(log_a, segments, before, x.dtype)
    b, c, _, h, p = x.shape
    n_groups, n = B.shape[3:]
    r = h // n_groups
    B_g, C_g = B.transpose(2, 3), C.transpose(2, 3)  # (b, c, g, q, n)

    # the states, forwards in time, as in the forward pass
    weighted = _merge_heads(x * decays.to_end.unsqueeze(-1), n_groups)  # (b, c, g, q, rp)
    added = (weighted.transpose(3, 4) @ B_g).reshape(b, c, h, p, n)
    entering_states, _ = _over_chunks(added, decays.across, h0)

    # the gradients of the states, backwards in time: after[k] belongs to the state after chunk k
    dy_start = _merge_heads(dy * decays.from_start.unsqueeze(-1), n_groups)  # (b, c, g, q, rp)
    direct = (dy_start.transpose(3, 4) @ C_g).reshape(b, c, h, p, n)
    after, grad_h0 = _over_chunks(direct.flip(1), decays.across.flip(1), grad_state)
    after = after.flip(1)
    states_g = entering_states.view(b, c, n_groups, r * p, n)
    after_g = after.view(b, c, n_groups, r * p, n)
    dC = dy_start @ states_g
    dB = weighted @ after_g
    dx_state = _split_heads(B_g @ after_g.transpose(3, 4), h) * decays.to_end.unsqueeze(-1)

    # what crosses t from the carried state, to the end of the chunk, and from end to end
    from_state = _split_heads((C_g @ states_g.transpose(3, 4)).mul_(dy_start), h).sum(-1)  # (b, c, q, h)
    to_end = (dx_state * x).sum(-1)
    across = (after * entering_states).sum((-2, -1)) * decays.across  # (b, c, h)
    d_log_a = from_state.flip(2).cumsum(2).flip(2) + across.unsqueeze(2)
    d_log_a[:, :, 1:] += to_end[:, :, :-1].cumsum(2)

    # within each chunk
    dy_h, x_h = _per_head(dy).view(b * c * h, q, p), _per_head(x).view(b * c * h, q, p)
    scores = _scores(B, C).unsqueeze(3)  # (b, c, g, 1, q, q)
    within = decays.within.view(b, c, n_groups, r, q, q)
    d_mixing = torch.bmm(dy_h, x_h.transpose(1, 2)).view(b, c, n_groups, r, q, q).mul_(within)
    d_scores = d_mixing.sum(3)  # (b, c, g, q, q)
    mixing = within.mul_(scores).view(b * c * h, q, q)
    dx = torch.bmm(mixing.transpose(1, 2), dy_h).view(b, c, h, q, p).transpose(2, 3) + dx_state
    dC = dC + d_scores @ B_g
    dB = dB + d_scores.transpose(3, 4) @ C_g
    # sum over u >= t > s of the gradient that flows from s to u
    flow = d_mixing.mul_(scores).view(b * c * h, q, q).tril_(-1)
    at_or_after = torch.ones(q, q, dtype=x.dtype, device=x.device).triu_().expand(b * c * h, q, q)
    crossing = torch.bmm(at_or_after, flow).tril_(-1).sum(-1)
    d_log_a += crossing.view(b, c, h, q).transpose(2, 3)

    dB, dC = dB.transpose(2, 3), dC.transpose(2, 3)
    return dx.flatten(1, 2), d_log_a.flatten(1, 2), dB.flatten(1, 2), dC.flatten(1, 2), grad_h0
