"""What selection selects: step sizes, how fast states decay, and the attention that is hidden in the recurrence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.mixers.base import Mixer
from statewise.mixers.mamba import Mamba
from statewise.mixers.mamba2 import Mamba2
from statewise.mixers.mamba3 import Mamba3, turned
from statewise.mixers.prepared import wide
from statewise.operators.base import Operator
from statewise.operators.selective import SelectiveDiagonal
from statewise.operators.ssd import SSD

SELECTIVE = (Mamba, Mamba2, Mamba3)
AT_ONCE = 1 << 24  # numbers that the matrices of the heads computed at one time hold


def selects(of: Any) -> bool:
    """Whether there is a map of each head that its input selects: in Mamba, Mamba-2, and Mamba-3 with one input."""
    return isinstance(of, SELECTIVE) and getattr(of, "mimo", None) is None


@dataclass(frozen=True, kw_only=True, eq=False)
class Selected:
    """What a selective mixer makes of its input, before its gate and its last projection.

    The system of each head, or in Mamba of each channel, is y = M v + D v with v ``values`` and M
    :func:`hidden_attention`.

    Shapes:  values: (batch, length, n_heads, d_head); in Mamba each of the d_inner channels is a head, of width 1
             dt: (batch, length, n_heads)   log_decay: (batch, length, n_heads, n), real, <= 0, of each number of the
             state, n being 1 where all of a head's numbers decay alike   D: (n_heads,)
    """

    values: Tensor
    dt: Tensor
    log_decay: Tensor
    D: Tensor
    operator: Operator

    @property
    def n_heads(self) -> int:
        return self.dt.shape[2]


@torch.no_grad()
def selected(mixer: Mixer, x: Tensor) -> Selected:
    """The system that x selects in a Mamba, Mamba-2 or Mamba-3 mixer.

    ``operator`` is without skip and gate. Mamba-3's reads what its step before has left (see
    :class:`~statewise.mixers.mamba3.Mamba3`), so its ``matrix`` is not the hidden attention of the values yet.

    Shapes:  x: (batch, length, d_model)
    Errors:  InputError for another mixer, one that reads in both directions, or an x that does not fit.
    """
    if not isinstance(mixer, SELECTIVE):
        raise InputError(
            f"{type(mixer).__name__} selects nothing: it has the same coefficients at every step; give a Mamba, Mamba2 "
            "or Mamba3 mixer"
        )
    if not mixer.is_causal:
        raise InputError(
            f"a bidirectional {type(mixer).__name__} is two systems, not one causal map; give one with "
            "bidirectional=False"
        )
    mixer.check_call(x, None)
    if isinstance(mixer, Mamba):
        return _mamba(mixer, x)
    if isinstance(mixer, Mamba2):
        return _mamba2(mixer, x)
    if mixer.mimo is not None:
        raise InputError(
            f"a Mamba3 with mimo_rank={mixer.config.mimo_rank} has no one map of a head, since its ranks scale each "
            "channel by itself; give one with mimo_rank=None"
        )
    _, found = mixer.select(x)
    operator = SSD(found.log_decay, found.key, found.query, mixer.config.chunk_length)
    dt = found.own + found.before
    return Selected(
        values=found.value,
        dt=dt,
        log_decay=found.log_decay.unsqueeze(-1),
        D=wide(mixer.dynamics.D),
        operator=operator,
    )


def _mamba(mixer: Mamba, x: Tensor) -> Selected:
    u, _ = mixer.in_proj(x).chunk(2, -1)
    values, _ = mixer.convolution(u)
    operator = replace(mixer.operator(values), D=None)
    A = operator.A
    dt = operator.step_sizes()
    return Selected(
        values=values.unsqueeze(-1),
        dt=dt,
        log_decay=dt.unsqueeze(-1) * A.real,
        D=wide(mixer.dynamics.D),
        operator=operator,
    )


def _mamba2(mixer: Mamba2, x: Tensor) -> Selected:
    operator, values, _, _ = mixer.select(mixer.in_proj(x))
    assert operator.dt is not None
    return Selected(
        values=values,
        dt=operator.dt,
        log_decay=operator.log_a.unsqueeze(-1),
        D=wide(mixer.dynamics.D),
        operator=replace(operator, D=None),
    )


def step_sizes(mixer: Mixer, x: Tensor) -> Tensor:
    """Delta_t, after bias, softplus and limits: how much a step lets in, and how much it makes the state forget.

    Shapes:  x: (batch, length, d_model)   ->   (batch, length, n_heads), for Mamba (batch, length, d_inner)
    Errors:  as for :func:`selected`
    Source:  Gu & Dao 2023, arXiv:2312.00752, sec. 3.5.2; Dao & Gu 2024, arXiv:2405.21060, sec. 7.
    """
    return selected(mixer, x).dt


def half_lives(mixer: Mixer, x: Tensor) -> Tensor:
    """In how many steps a state would halve, if every step were like step t: ln 2 / -log|a_t|; inf where none is lost.

    Shapes:  x: (batch, length, d_model)   ->   (batch, length, n_heads, n) steps; n as in :class:`Selected`
    Errors:  as for :func:`selected`

    >>> import statewise as sw
    >>> mixer = sw.Mamba2Config(d_state=4, d_head=8).build(d_model=16)
    >>> half_lives(mixer, torch.randn(1, 5, 16)).shape
    torch.Size([1, 5, 4, 1])
    """
    return math.log(2) / -selected(mixer, x).log_decay


@torch.no_grad()
def hidden_attention(mixer: Mixer, x: Tensor, heads: Sequence[int] | None = None) -> Tensor:
    """The lower-triangular M of each head with y_t = sum_s M[t, s] v_s + D v_t: how much step t takes from step s.

    Rows differ from attention's: entries may be negative, and need not sum to 1. The skip D is left out, and so are
    the gate and the projection behind it.

    heads:   which; None: all of them
    Shapes:  x: (batch, length, d_model)   ->   (batch, heads, length, length)
    Cost:    each head's system for ``length`` impulses, O(length^2 n)
    Errors:  as for :func:`selected`; InputError for a head that is not there.
    Source:  Ali, Zimerman & Wolf 2024, arXiv:2403.01590, eq. 11 (Mamba); Dao & Gu 2024, arXiv:2405.21060, eq. 16.
    """
    found = selected(mixer, x)
    chosen = _chosen(found.n_heads, heads)
    batch, length = x.shape[:2]
    at_once = max(1, AT_ONCE // max(1, batch * length * length))
    parts = []
    for i in range(0, len(chosen), at_once):
        parts.append(_matrix(mixer, x, found, chosen[i : i + at_once]))
    return torch.cat(parts, 1) if parts else found.dt.new_zeros(batch, 0, length, length)


def _matrix(mixer: Mixer, x: Tensor, found: Selected, heads: Sequence[int]) -> Tensor:
    """(batch, heads, length, length)"""
    index = torch.tensor(heads, device=x.device)
    if isinstance(mixer, Mamba3):
        return _mamba3(mixer, x, index)
    if not x.shape[1]:
        return found.dt.new_zeros(len(x), len(heads), 0, 0)
    return of_heads(found.operator, index).matrix()


def of_heads(operator: Any, index: Tensor) -> Any:
    """The operator of these heads only. index: (heads,) int64"""
    n_heads = operator.channels[0]
    B, C = (m[:, :, index // (n_heads // m.shape[2])] for m in (operator.B, operator.C))
    if isinstance(operator, SelectiveDiagonal):
        bias = None if operator.dt_bias is None else operator.dt_bias[index]
        return replace(operator, dt=operator.dt[:, :, index], A=operator.A[index], B=B, C=C, dt_bias=bias)
    dt = None if operator.dt is None else operator.dt[:, :, index]
    return replace(operator, log_a=operator.log_a[:, :, index], B=B, C=C, dt=dt)


def _mamba3(mixer: Mamba3, x: Tensor, index: Tensor) -> Tensor:
    """M[t, s] = e^{sum of log_decay over s+1 ... t} (own_s + before_{s+1}) q_t . k_s, and own_t q_t . k_t for s = t."""
    _, c = mixer.select(x)
    turn = c.turn if c.turn.shape[2] == 1 else c.turn[:, :, index]
    theta = turn.cumsum(1)
    key, query = turned(c.key[:, :, index], theta), turned(c.query[:, :, index], theta)
    own, before, log_decay = (m[:, :, index] for m in (c.own, c.before, c.log_decay))
    decay = SSD(log_decay, torch.ones_like(key[..., :1]), torch.ones_like(key[..., :1]))
    length = x.shape[1]
    if not length:
        return own.new_zeros(len(x), len(index), 0, 0)
    following = torch.cat([before[:, 1:], torch.zeros_like(before[:, :1])], 1)
    weight = (own + following).mT.unsqueeze(2).expand(-1, -1, length, -1)
    weight = weight.tril(-1) + torch.diag_embed(own.mT)
    return decay.matrix() * weight * torch.einsum("bthn,bshn->bhts", query, key)


def _chosen(n_heads: int, heads: Sequence[int] | None) -> list[int]:
    if heads is None:
        return list(range(n_heads))
    for head in heads:
        if isinstance(head, bool) or not isinstance(head, int) or not 0 <= head < n_heads:
            raise InputError(f"heads has {head!r}; this layer has heads 0 to {n_heads - 1}")
    return list(heads)
