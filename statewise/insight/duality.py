"""A layer's map over a sequence as a matrix, and as the attention that it is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.insight.selection import hidden_attention, of_heads, selected
from statewise.insight.systems import TIME_INVARIANT, systems_of
from statewise.mixers.base import Mixer
from statewise.mixers.mamba import Mamba
from statewise.mixers.mamba2 import Mamba2
from statewise.mixers.mamba3 import Mamba3
from statewise.operators.base import Operator
from statewise.operators.selective import SelectiveDiagonal
from statewise.operators.ssd import SSD


class AttentionForm(NamedTuple):
    """The map y = M v of one head over one sequence, without its skip.

    matrix: (length, length)   mask, scores: the same, with matrix = mask * scores, of SSD and Mamba-2: mask is the
    1-semiseparable matrix of decays, and scores are C_t . B_s, times dt_s where there is one. None for other systems
    d_state: how many numbers the state has, and so the largest rank below the diagonal. Mamba-3 carries the input
    before too, so blocks that begin on the diagonal, as in :func:`~statewise.semiseparable.block_ranks`, may have one
    more
    """

    matrix: Tensor
    mask: Tensor | None
    scores: Tensor | None
    d_state: int


@torch.no_grad()
def attention_form(
    of: Operator | Mixer, x: Tensor | None = None, *, length: int | None = None, head: int = 0, row: int = 0
) -> AttentionForm:
    """The matrix of a head, or of a channel of a time-invariant system.

    x:       what a Mamba, Mamba-2 or Mamba-3 mixer reads, (batch, length, d_model), of which ``row`` is shown
    length:  of the matrix of a time-invariant system, which needs no x
    Cost:    O(length^2)
    Errors:  InputError for what has no such matrix, for a head that is not there, and for a missing x or length.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 3 and 4.

    >>> import statewise as sw
    >>> operator = sw.SSD(-torch.ones(1, 5, 2), torch.ones(1, 5, 1, 3), torch.ones(1, 5, 1, 3))
    >>> found = attention_form(operator)
    >>> found.matrix.shape, found.d_state, bool((found.matrix == found.mask * found.scores).all())
    (torch.Size([5, 5]), 3, True)
    """
    if isinstance(of, (Mamba, Mamba2, Mamba3)):
        if x is None:
            raise InputError(f"what {type(of).__name__} does depends on its input; give x, (batch, length, d_model)")
        x = x[row : row + 1]
        if isinstance(of, Mamba3):
            return AttentionForm(hidden_attention(of, x, [head])[0, 0], None, None, of.config.d_state)
        return _of_operator(selected(of, x).operator, head, 0)
    if isinstance(of, (SSD, SelectiveDiagonal)):
        return _of_operator(of, head, row)
    *_, system = systems_of(of).values()  # of H3 the one that remembers
    if not isinstance(system, TIME_INVARIANT) or system.mixes_channels or length is None:
        raise InputError(
            f"{type(of).__name__} needs a length for its matrix; give length=64"
            if length is None
            else f"{type(system).__name__} mixes its channels, and so has no matrix for one of them; give S4D or such"
        )
    _check_head(head, system.channels[0])
    matrix = system.matrix(length)
    return AttentionForm(matrix.reshape(-1, *matrix.shape[-2:])[head], None, None, _order(system))


def _of_operator(operator: SSD | SelectiveDiagonal | Operator, head: int, row: int) -> AttentionForm:
    _check_head(head, operator.channels[0])
    one = of_heads(replace(operator, D=None), torch.tensor([head]))  # type: ignore[type-var]
    if isinstance(one, SelectiveDiagonal):
        matrix = replace(one, gate=None).matrix()
        return AttentionForm(matrix[row, 0], None, None, one.A.shape[1] * (2 if one.is_complex else 1))
    assert isinstance(one, SSD)
    ones = torch.ones_like(one.B[..., :1])
    mask = SSD(one.log_a, ones, ones).matrix()[row, 0]
    scores = one.C[row, :, 0] @ one.B[row, :, 0].mT
    scores = (scores if one.dt is None else scores * one.dt[row, :, 0]).tril()
    return AttentionForm(mask * scores, mask, scores, one.B.shape[-1])


def _check_head(head: int, n_heads: int) -> None:
    if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < n_heads:
        raise InputError(f"head={head!r} is not there; this layer has heads 0 to {n_heads - 1}")


def _order(system: Operator) -> int:
    """How many real numbers a channel's state has."""
    numbers = 1
    for size in system.initial_state(1)[0].shape[2:]:
        numbers *= size
    return numbers
