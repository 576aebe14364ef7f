"""SSD, the system behind Mamba-2: its transition is a_t I, so it is also masked linear attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.ssd import Arguments, ssd_unchecked
from statewise.operators.base import Operator
from statewise.operators.head_patterns import share_heads
from statewise.operators.masks import NO_MASKS, Masks, mask_time
from statewise.operators.plan import SINGLE, Rule, otherwise, up_to
from statewise.operators.state_shape import leaf


class SSDState(NamedTuple):
    """h: (batch, n_heads, *trailing, d_state), trailing being (d_head,) in a Mamba-2 layer."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class SSD(Operator):
    """h_t = a_t h_{t-1} + dt_t x_t B_t^T, y_t = h_t C_t + D x_t, with a_t = exp(log_a_t) a number for each head.

    Linear attention is log_a = 0 with C, B, x as queries, keys, values; a column of ones beside the values
    gives the normaliser. RetNet has a constant log_a. Without dt, dt is 1; without D there is no skip, and ``matrix()``
    is then L * (C B^T), with a 1-semiseparable mask L.

    Shapes:  log_a: (batch, length, n_heads), <= 0, -inf too: nothing passes that step   B, C: (batch, length, n_groups,
             d_state), a group shared by n_heads / n_groups consecutive heads, each with an n_groups of its own
             u: (batch, length, n_heads, *trailing)   dt: (batch, length, n_heads)   D: (n_heads,)
    Forms:   ``recurrent``; ``quadratic``, the attention form, O(length^2); ``chunked``,
             O(length (chunk_length + d_state) d_head) for each head.
    Errors:  InputError for shapes that do not fit.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 3, 5 and 6.
    """

    log_a: Tensor
    B: Tensor
    C: Tensor
    chunk_length: int = 64  # 64 balances the two products on a CPU
    dt: Tensor | None = None
    D: Tensor | None = None
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "quadratic", "chunked")
    rules: ClassVar[tuple[Rule, ...]] = (
        up_to(1, "recurrent", SINGLE),
        up_to(16, "quadratic", "one small chunk, no state in between"),
        otherwise("chunked", "matrix products inside chunks, linear in length"),
    )

    exact_form: ClassVar[str] = "chunked"  # whose kernel goes step by step in exact mode

    @property
    def time_varying(self) -> tuple[str, ...]:  # type: ignore[override]
        """The coefficients with a time axis: dt only if there is one."""
        return ("log_a", "B", "C") if self.dt is None else ("log_a", "B", "C", "dt")

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.log_a.shape[-1],)

    def _like(self) -> Tensor:
        return self.B

    def _check(self, u: Tensor) -> None:
        if not (
            self.log_a.ndim == 3
            and self.B.ndim == self.C.ndim == 4
            and self.B.shape[:2] == self.C.shape[:2] == self.log_a.shape[:2]
            and self.B.shape[3] == self.C.shape[3]
            and all(m.shape[2] > 0 and self.log_a.shape[2] % m.shape[2] == 0 for m in (self.B, self.C))
        ):
            shapes = ", ".join(str(tuple(m.shape)) for m in (self.log_a, self.B, self.C))
            raise InputError(
                "SSD needs log_a (batch, length, heads), B and C (batch, length, groups, d_state) with groups "
                f"dividing heads; got {shapes}"
            )
        if u.ndim < 3 or u.shape[:3] != self.log_a.shape:
            raise InputError(
                f"SSD over (batch, length, heads) = {tuple(self.log_a.shape)} needs u of that shape and then "
                f"(d_head,); got {tuple(u.shape)}"
            )
        for name, m, shape in (("dt", self.dt, self.log_a.shape), ("D", self.D, self.log_a.shape[2:])):
            if m is not None and m.shape != shape:
                raise InputError(f"SSD needs {name} of shape {tuple(shape)}, got {tuple(m.shape)}")
        given = [m for m in (self.log_a, self.B, self.C, u, self.dt, self.D) if m is not None]
        if not all(m.is_floating_point() for m in given):
            dtypes = ", ".join(str(m.dtype) for m in given)
            raise InputError(f"SSD needs real, floating-point log_a, B, C, u, and dt and D if given; got {dtypes}")
        if self.chunk_length < 1:
            raise InputError(f"SSD needs chunk_length >= 1; got {self.chunk_length}")

    def state_shape(self, trailing: tuple[int, ...] = ()) -> SSDState:
        return SSDState(leaf(self.log_a.shape[-1], *trailing, self.B.shape[-1]))

    def step(self, u: Tensor, state: SSDState) -> tuple[Tensor, SSDState]:
        dtype = self._state_dtype(u)
        ones = [1] * (u.ndim - 2)
        # (batch, heads, 1 per trailing axis, d_state)
        B, C = (
            share_heads(m.to(dtype), self.log_a.shape[-1], 1).reshape(*self.log_a.shape, *ones, m.shape[-1])
            for m in (self.B, self.C)
        )
        a = self.log_a.to(dtype).exp().reshape(*self.log_a.shape, *ones, 1)
        x = u.to(dtype)
        value = x if self.dt is None else x * self.dt.to(dtype).reshape(*self.dt.shape, *ones)
        h = a * state.h + value.unsqueeze(-1) * B
        y = (h * C).sum(-1)
        if self.D is not None:
            y = y + x * self.D.to(dtype).reshape(-1, *ones)
        return y.to(u.dtype), SSDState(h)

    def quadratic(self, u: Tensor, state: SSDState | None, masks: Masks = NO_MASKS) -> tuple[Tensor, SSDState]:
        """One chunk as long as the sequence: y = (L * C B^T) u, plus what the initial state gives."""
        return self._ssd(u, state, masks, max(u.shape[1], 1))

    def chunked(self, u: Tensor, state: SSDState | None, masks: Masks = NO_MASKS) -> tuple[Tensor, SSDState]:
        """The attention form inside chunks of ``chunk_length``, the recurrence from chunk to chunk."""
        return self._ssd(u, state, masks, min(self.chunk_length, 2**62))  # any number: it is one of 64 bits below

    def _ssd(self, u: Tensor, state: SSDState | None, masks: Masks, chunk_length: int) -> tuple[Tensor, SSDState]:
        batch, length, heads = u.shape[:3]
        trailing = self._trailing(u)
        flat = u.reshape(batch, length, heads, math.prod(trailing))
        if state is None:
            state = self.initial_state(batch, trailing=trailing, device=u.device, dtype=self._state_dtype(u))
        h0 = state.h.reshape(batch, heads, flat.shape[3], self.B.shape[-1])
        n_groups = self.B.shape[2]
        if n_groups != self.C.shape[2]:  # the kernel has one number of groups for both
            n_groups = math.lcm(n_groups, self.C.shape[2])
        B, C = (share_heads(m, n_groups) for m in (self.B, self.C))
        given = Arguments(flat, self.log_a, B, C, h0, self.dt, self.D, masks.segments, chunk_length)
        y, h = ssd_unchecked(given)
        return y.reshape(u.shape), SSDState(h.reshape(state.h.shape))

    def _mask(self, valid: Tensor) -> SSD:
        log_a, B, C = (mask_time(m, valid) for m in (self.log_a, self.B, self.C))
        return replace(self, log_a=log_a, B=B, C=C, dt=None if self.dt is None else mask_time(self.dt, valid))
