"""Several inputs and outputs of one state (MIMO), as Mamba-3 has them: its parameters, and the system in chunks."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.mixers.prepared import wide
from statewise.operators.folding import is_any
from statewise.operators.masks import Masks
from statewise.operators.ssd import SSD, SSDState


class Ranks(nn.Module):
    """For each rank r a scaling of the value, of the gate and of the output of a head, (n_heads, rank, d_head)."""

    def __init__(self, n_heads: int, rank: int, d_head: int) -> None:
        super().__init__()
        self.x, self.z, self.out = (nn.Parameter(torch.empty(n_heads, rank, d_head)) for _ in range(3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """As published: all ranks alike, and their sum what a single one would be."""
        rank = self.x.shape[1]
        nn.init.constant_(self.x, 1 / rank)
        nn.init.ones_(self.z)
        nn.init.constant_(self.out, 1 / rank)

    def values(self, value: Tensor) -> Tensor:
        """(..., n_heads, d_head) -> (..., n_heads, rank, d_head), what each rank writes."""
        return value.unsqueeze(-2) * wide(self.x)

    def gates(self, z: Tensor) -> Tensor:
        """(..., n_heads, d_head) -> (..., n_heads, rank, d_head), before the SiLU."""
        return wide(z).unsqueeze(-2) * wide(self.z)

    def joined(self, y: Tensor) -> Tensor:
        """(..., n_heads, rank, d_head) -> (..., n_heads, d_head)"""
        return (y * wide(self.out)).sum(-2)


def system_of_ranks(
    log_a: Tensor, B: Tensor, C: Tensor, x: Tensor, state: SSDState | None, masks: Masks, chunk_length: int
) -> tuple[Tensor, SSDState]:
    """S_t = a_t S_{t-1} + sum over s of x_ts B_ts^T, y_tr = S_t C_tr, for ranks r, s = 1 .. R.

    It is an SSD of R times as many steps. The first of those that are one step decays the state, each adds the input
    of one rank and reads the output of one. What that output lacks, the inputs of the ranks behind its own, is added.
    So there are R (d_head d_state) multiply-adds for the state, and R again for the outputs, as there have to be; a
    head for each pair of ranks would take R times as many.

    Shapes:  log_a: (batch, length, n_heads)   B, C: (batch, length, n_heads, rank, d_state)
             x: (batch, length, n_heads, rank, d_head) -> y the same
    """
    length, rank = B.shape[1], B.shape[3]
    if not is_any(length) and length == 1 and state is not None:
        return _step(log_a, B, C, x, state, masks)

    def flat(m: Tensor) -> Tensor:
        return m.transpose(2, 3).flatten(1, 2)

    steps = F.pad(log_a.unsqueeze(2), (0, 0, 0, rank - 1)).flatten(1, 2)
    operator = SSD(steps, flat(B), flat(C), chunk_length)
    y, state = operator.apply(flat(x), state, of_ranks(masks, rank))
    behind = (C @ B.mT).triu(1)
    return y.unflatten(1, (length, rank)).transpose(2, 3) + behind @ x, state


def _step(log_a: Tensor, B: Tensor, C: Tensor, x: Tensor, state: SSDState, masks: Masks) -> tuple[Tensor, SSDState]:
    """A single step as its equation."""
    before = state.h
    if masks.starts is not None:
        before = before.masked_fill(masks.starts[:, 0, None, None, None], 0)
    h = log_a[:, 0, :, None, None].exp() * before + (x[:, 0].mT @ B[:, 0]).to(before.dtype)
    if masks.valid is not None:
        h = torch.where(masks.valid[:, 0, None, None, None], h, state.h)
    return (C[:, 0].to(h.dtype) @ h.mT).to(x.dtype).unsqueeze(1), SSDState(h)


def of_ranks(masks: Masks, rank: int) -> Masks:
    """The masks of ``rank`` times as many steps; a document begins at the first of those that are one step."""

    def each(m: Tensor | None) -> Tensor | None:
        return None if m is None else m.repeat_interleave(rank, 1)

    starts = masks.starts
    return Masks(
        valid=each(masks.valid),
        starts=None if starts is None else F.pad(starts.unsqueeze(-1), (0, rank - 1)).flatten(1),
        segments=each(masks.segments),
        lengths=None if masks.lengths is None else masks.lengths * rank,
    )
