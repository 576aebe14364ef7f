"""The delta rule and what it is a case of: a transition that is diagonal plus rank one."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.diagonal_rank_one import Arguments, diagonal_rank_one_unchecked
from statewise.operators.base import Operator
from statewise.operators.masks import NO_MASKS, Masks, mask_time
from statewise.operators.plan import SINGLE, Rule, otherwise, up_to
from statewise.operators.state_shape import leaf

_RULES = (
    up_to(1, "recurrent", SINGLE),
    otherwise("chunked", "matrix products inside chunks, linear in length"),
)


class DeltaRuleState(NamedTuple):
    """S: (batch, n_heads, *trailing, d_key), trailing being (d_value,) in a layer."""

    S: Tensor


@dataclass(frozen=True, eq=False)
class DiagonalPlusRankOne(Operator):
    """S_t = S_{t-1} (diag(a_t) - read_t erase_t^T) + u_t k_t^T, y_t = S_t q_t, with a_t = exp(log_a_t).

    A step looks up what the state holds along ``read``, takes that away along ``erase``, and writes u along k. With
    read = kappa, erase = a kappa and a decay w this is RWKV-7's recurrence. Where ``erase`` is None it is k: with
    read = a k and k = beta k this is :class:`DeltaRule`, and without read, gated linear attention.

    Shapes:  log_a: (batch, length, n_heads), or (batch, length, n_heads, d_key) for a decay a channel; <= 0, -inf too
             k, q, read, erase: (batch, length, n_heads, d_key)   u: (batch, length, n_heads, *trailing)
    Forms:   ``recurrent``; ``chunked``, the WY form, O(length d_key (chunk_length + 2 d_value)) for each head. In C
             chunks have 64 steps whatever ``chunk_length`` is.
    Errors:  InputError for shapes that do not fit.
    Source:  Peng et al. 2025, arXiv:2503.14456, sec. 3, eq. 17; Yang et al. 2024, arXiv:2406.06484, sec. 3.
    """

    log_a: Tensor
    k: Tensor
    q: Tensor
    read: Tensor
    erase: Tensor | None = None
    chunk_length: int = 64
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "chunked")
    rules: ClassVar[tuple[Rule, ...]] = _RULES

    @property
    def time_varying(self) -> tuple[str, ...]:  # type: ignore[override]
        """The coefficients with a time axis: erase only if there is one."""
        return ("log_a", "k", "q", "read") if self.erase is None else ("log_a", "k", "q", "read", "erase")

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.k.shape[-2],)

    def _like(self) -> Tensor:
        return self.k

    def _check(self, u: Tensor) -> None:
        k = self.k
        keys = [m for m in (k, self.q, self.read, self.erase) if m is not None]
        fits = k.ndim == 4 and all(m.shape == k.shape for m in keys)
        if not (fits and self.log_a.shape in (k.shape, k.shape[:3])):
            shapes = ", ".join(str(tuple(m.shape)) for m in (self.log_a, *keys))
            raise InputError(
                "DiagonalPlusRankOne needs log_a (batch, length, heads) or (batch, length, heads, d_key), and k, q, "
                f"read and erase, if given, (batch, length, heads, d_key); got {shapes}"
            )
        _check_input(self, u, k.shape[:3], [self.log_a, *keys])

    def state_shape(self, trailing: tuple[int, ...] = ()) -> DeltaRuleState:
        return DeltaRuleState(leaf(*self.channels, *trailing, self.k.shape[-1]))

    def step(self, u: Tensor, state: DeltaRuleState) -> tuple[Tensor, DeltaRuleState]:
        dtype = self._state_dtype(u)
        erase = self.k if self.erase is None else self.erase
        k, q, read, erase = (_beside(m.to(dtype), u) for m in (self.k, self.q, self.read, erase))
        found = (state.S * read).sum(-1, keepdim=True)
        S = _beside(_decay(self.log_a, self.k, dtype), u) * state.S - found * erase + u.to(dtype).unsqueeze(-1) * k
        return (S * q).sum(-1).to(u.dtype), DeltaRuleState(S)

    def chunked(
        self, u: Tensor, state: DeltaRuleState | None, masks: Masks = NO_MASKS
    ) -> tuple[Tensor, DeltaRuleState]:
        """Chunks of ``chunk_length`` as a triangular system, the recurrence from chunk to chunk."""
        read = self.read if masks.starts is None else mask_time(self.read, ~masks.starts)
        return _by_chunks(self, u, state, masks, self.q, self.k, self.log_a, read=read, erase=self.erase)

    def _mask(self, valid: Tensor) -> DiagonalPlusRankOne:
        masked = {name: mask_time(getattr(self, name), valid) for name in self.time_varying}
        return replace(self, **masked)  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class DeltaRule(Operator):
    """S_t = S_{t-1} diag(a_t) (I - beta_t k_t k_t^T) + beta_t u_t k_t^T, y_t = S_t q_t, with a_t = exp(log_a_t).

    A step decays the state, looks up what it holds for the key, and moves that towards the value u by beta: 0 leaves
    it, 1 replaces it, and between 1 and 2 the transition has a negative eigenvalue (for keys of length 1). Without
    log_a this is DeltaNet; with a decay a head Gated DeltaNet; with a decay a channel Kimi Delta Attention.

    Shapes:  q, k: (batch, length, n_groups, d_key), a group shared by n_heads / n_groups consecutive heads
             beta: (batch, length, n_heads)   u: (batch, length, n_heads, *trailing)
             log_a: None for no decay, (batch, length, n_heads), or (batch, length, n_heads, d_key); <= 0, -inf too
    Forms:   ``recurrent``; ``chunked``, the WY form, O(length d_key (chunk_length + 2 d_value)) for each head.
    Numerics: the recurrence shrinks errors only for keys that are no longer than 1 and beta in 0 .. 2. Longer ones make
             it grow, as defined; nothing here normalises a key.
    Errors:  InputError for shapes that do not fit.
    Source:  Yang et al. 2024, arXiv:2406.06484, eq. 4; Yang et al. 2025, arXiv:2412.06464, eq. 10; Kimi Team 2025,
             arXiv:2510.26692, eq. 1; Grazzi et al. 2025, arXiv:2411.12537 (negative eigenvalues).

    >>> q = k = torch.eye(2).reshape(1, 2, 1, 2)  # two keys, orthogonal
    >>> y, _ = DeltaRule(q, k, torch.ones(1, 2, 1))(torch.tensor([3.0, 5.0]).reshape(1, 2, 1, 1))
    >>> y.flatten()
    tensor([3., 5.])
    """

    q: Tensor
    k: Tensor
    beta: Tensor
    log_a: Tensor | None = None
    chunk_length: int = 64
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "chunked")
    rules: ClassVar[tuple[Rule, ...]] = _RULES

    @property
    def time_varying(self) -> tuple[str, ...]:  # type: ignore[override]
        """The coefficients with a time axis: log_a only if there is one."""
        return ("q", "k", "beta") if self.log_a is None else ("q", "k", "beta", "log_a")

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.beta.shape[-1],)

    def _like(self) -> Tensor:
        return self.k

    def _check(self, u: Tensor) -> None:
        k, beta = self.k, self.beta
        fits = k.ndim == 4 and self.q.shape == k.shape and beta.ndim == 3 and beta.shape[:2] == k.shape[:2]
        fits = fits and k.shape[2] > 0 and beta.shape[2] % k.shape[2] == 0
        log_a = self.log_a
        if not (fits and (log_a is None or log_a.shape in (beta.shape, (*beta.shape, k.shape[3])))):
            given = [m for m in (self.q, k, beta, log_a) if m is not None]
            raise InputError(
                "DeltaRule needs q and k (batch, length, groups, d_key), beta (batch, length, heads) with groups "
                "dividing heads, and log_a, if given, (batch, length, heads) or (batch, length, heads, d_key); got "
                + ", ".join(str(tuple(m.shape)) for m in given)
            )
        _check_input(self, u, beta.shape, [m for m in (self.q, k, beta, log_a) if m is not None])

    def state_shape(self, trailing: tuple[int, ...] = ()) -> DeltaRuleState:
        return DeltaRuleState(leaf(*self.channels, *trailing, self.k.shape[-1]))

    def step(self, u: Tensor, state: DeltaRuleState) -> tuple[Tensor, DeltaRuleState]:
        dtype, S = self._state_dtype(u), state.S
        k, q = (_beside(self._per_head(m.to(dtype), 1), u) for m in (self.k, self.q))
        if self.log_a is not None:
            S = _beside(_decay(self.log_a, self.k, dtype), u) * S
        beta = self.beta.to(dtype).reshape(*self.beta.shape, *[1] * (u.ndim - 2))
        d = beta * (u.to(dtype) - (S * k).sum(-1))
        S = S + d.unsqueeze(-1) * k
        return (S * q).sum(-1).to(u.dtype), DeltaRuleState(S)

    def chunked(
        self, u: Tensor, state: DeltaRuleState | None, masks: Masks = NO_MASKS
    ) -> tuple[Tensor, DeltaRuleState]:
        """Chunks of ``chunk_length`` as a triangular system, the recurrence from chunk to chunk."""
        q, k = (self._per_head(m, 2) for m in (self.q, self.k))
        log_a = torch.zeros_like(self.beta) if self.log_a is None else self.log_a
        return _by_chunks(self, u, state, masks, q, k, log_a, beta=self.beta)

    def as_rank_one(self) -> DiagonalPlusRankOne:
        """The same map in the general form: read = a k, and k and erase = beta k."""
        q, k = (self._per_head(m, 2) for m in (self.q, self.k))
        log_a = torch.zeros_like(self.beta) if self.log_a is None else self.log_a
        read = k * (log_a if log_a.ndim == 4 else log_a.unsqueeze(-1)).exp()
        return DiagonalPlusRankOne(log_a, self.beta.unsqueeze(-1) * k, q, read, chunk_length=self.chunk_length)

    def _per_head(self, m: Tensor, axis: int) -> Tensor:
        per_group = self.beta.shape[-1] // self.k.shape[-2]
        return m if per_group == 1 else m.repeat_interleave(per_group, axis)

    def _mask(self, valid: Tensor) -> DeltaRule:
        return replace(self, **{name: mask_time(getattr(self, name), valid) for name in self.time_varying})  # type: ignore[arg-type]


def _by_chunks(
    operator: DiagonalPlusRankOne | DeltaRule,
    u: Tensor,
    state: DeltaRuleState | None,
    masks: Masks,
    q: Tensor,
    k: Tensor,
    log_a: Tensor,
    *,
    read: Tensor | None = None,
    erase: Tensor | None = None,
    beta: Tensor | None = None,
) -> tuple[Tensor, DeltaRuleState]:
    batch, length, heads = u.shape[:3]
    trailing = operator._trailing(u)
    flat = u.reshape(batch, length, heads, math.prod(trailing))
    if state is None:
        state = operator.initial_state(batch, trailing=trailing, device=u.device, dtype=operator._state_dtype(u))
    S0 = state.S.reshape(batch, heads, flat.shape[3], k.shape[-1])
    log_a = log_a if log_a.ndim == 4 else log_a.unsqueeze(-1)
    if masks.starts is not None:  # no decay is divided by, so that one of zero, without a look back, forgets exactly
        log_a = log_a.masked_fill(masks.starts[..., None, None], -torch.inf)
    steps = min(operator.chunk_length, max(length, 1))
    y, S = diagonal_rank_one_unchecked(Arguments(flat, q, k, log_a, S0, read, erase, beta, steps))
    return y.reshape(u.shape), DeltaRuleState(S.reshape(state.S.shape))


def _beside(m: Tensor, u: Tensor) -> Tensor:
    """(batch, heads, d_key) -> with an axis of 1 for each trailing one of u (batch, heads, *trailing)."""
    return m.reshape(*m.shape[:2], *[1] * (u.ndim - 2), m.shape[-1])


def _decay(log_a: Tensor, k: Tensor, dtype: torch.dtype) -> Tensor:
    """a of one step, (batch, heads, d_key) or (batch, heads, 1); k is of one step too."""
    a = log_a.to(dtype).exp()
    return a if log_a.ndim == k.ndim else a.unsqueeze(-1)


def _check_input(operator: Operator, u: Tensor, steps: torch.Size, given: list[Tensor]) -> None:
    name = type(operator).__name__
    if u.ndim < 3 or u.shape[:3] != steps:
        raise InputError(
            f"{name} over (batch, length, heads) = {tuple(steps)} needs u of that shape and then (d_value,); "
            f"got {tuple(u.shape)}"
        )
    if not all(m.is_floating_point() for m in (*given, u)):
        dtypes = ", ".join(str(m.dtype) for m in (*given, u))
        raise InputError(f"{name} needs real, floating-point coefficients and u; got {dtypes}")
    if operator.chunk_length < 1:  # type: ignore[attr-defined]
        raise InputError(f"{name} needs chunk_length >= 1; got {operator.chunk_length}")  # type: ignore[attr-defined]
