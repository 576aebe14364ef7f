"""The diagonal time-invariant system: S4D, DSS, GSS and H3's second SSM are built on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.linear_scan import linear_scan
from statewise.operators.base import Operator, wide
from statewise.operators.masks import NO_MASKS, Masks


class DiagonalState(NamedTuple):
    """h: (batch, width, *trailing, n) for real coefficients, (batch, width, *trailing, n, 2) for complex ones."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class DiagonalLTI(Operator):
    """h_t = A h_{t-1} + B u_t, y_t = C h_t with diagonal A, discrete, the same at every step.

    Complex coefficients stand for conjugate pairs, of which one of each is kept: then y_t = 2 Re(C h_t).

    Shapes:  A, B, C: (width, n), all real or all complex   u: (batch, length, width, *trailing)
    Forms:   ``recurrent``; ``scan``, O(length width n) work in O(sqrt(length)) vectorised steps, with all states
             in memory: (batch, length, width, *trailing, n).
    Errors:  InputError for shapes or dtypes that disagree.
    Source:  Gu et al. 2022 (S4D), arXiv:2206.11893, eq. 3 and sec. 3.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "scan")

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.A.shape[0],)

    def _like(self) -> Tensor:
        return self.A

    def _check(self, u: Tensor) -> None:
        shapes = [tuple(m.shape) for m in (self.A, self.B, self.C)]
        if self.A.ndim != 2 or len(set(shapes)) != 1 or len({m.dtype for m in (self.A, self.B, self.C)}) != 1:
            dtypes = [str(m.dtype) for m in (self.A, self.B, self.C)]
            raise InputError(f"DiagonalLTI needs A, B, C of one shape (width, n) and one dtype; got {shapes}, {dtypes}")
        if u.ndim < 3 or u.shape[2] != self.A.shape[0] or u.is_complex():
            raise InputError(
                f"DiagonalLTI of width {self.A.shape[0]} needs a real u (batch, length, {self.A.shape[0]}, ...); "
                f"got {u.dtype} {tuple(u.shape)}"
            )

    def initial_state(
        self,
        batch: int,
        *,
        trailing: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> DiagonalState:
        width, n = self.A.shape
        shape = (batch, width, *trailing, n, 2) if self.A.is_complex() else (batch, width, *trailing, n)
        device = self.A.device if device is None else device
        return DiagonalState(torch.zeros(shape, device=device, dtype=wide(self.A.dtype if dtype is None else dtype)))

    def step(self, u: Tensor, state: DiagonalState) -> tuple[Tensor, DiagonalState]:
        A, B, C = self._coefficients(u.ndim - 2, wide(u.dtype, self.A.dtype))
        h = A * self._complex(state.h) + B * u.unsqueeze(-1)
        return self._output(C, h).to(u.dtype), DiagonalState(self._real(h))

    def scan(self, u: Tensor, state: DiagonalState | None, masks: Masks = NO_MASKS) -> tuple[Tensor, DiagonalState]:
        """All states by :func:`statewise.kernels.linear_scan`: a is 1 on padding and 0 where a document begins."""
        A, B, C = self._coefficients(u.ndim - 3, wide(u.dtype, self.A.dtype))
        if state is None:
            state = self.initial_state(
                u.shape[0], trailing=self._trailing(u), device=u.device, dtype=self._state_dtype(u)
            )
        b = B * u.unsqueeze(-1)
        a = A.expand_as(b)
        h0 = self._complex(state.h).to(b.dtype)
        for mask, value in ((masks.starts, 0.0), (None if masks.valid is None else ~masks.valid, 1.0)):
            if mask is not None:
                a = a.masked_fill(mask.reshape(*mask.shape, *[1] * (b.ndim - 2)), value)
        h = linear_scan(a, b, h0)
        last = h[:, -1] if u.shape[1] else h0
        return self._output(C, h).to(u.dtype), DiagonalState(self._real(last).to(state.h.dtype))

    def _coefficients(self, n_trailing: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """A, B, C as (width, 1 per trailing axis, n) in the dtype to compute in."""
        if self.A.is_complex():
            dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
        width, n = self.A.shape
        A, B, C = (m.to(dtype).reshape(width, *[1] * n_trailing, n) for m in (self.A, self.B, self.C))
        return A, B, C

    def _output(self, C: Tensor, h: Tensor) -> Tensor:
        y = (C * h).sum(-1)
        return 2 * y.real if y.is_complex() else y

    def _complex(self, h: Tensor) -> Tensor:
        return torch.view_as_complex(h.contiguous()) if self.A.is_complex() else h

    def _real(self, h: Tensor) -> Tensor:
        return torch.view_as_real(h) if h.is_complex() else h
