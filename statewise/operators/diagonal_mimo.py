"""One diagonal time-invariant system with many inputs and outputs: S5 is built on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.linear_scan import linear_scan
from statewise.kernels.pairs import as_complex
from statewise.operators.base import Operator, check_dtypes
from statewise.operators.diagonal import DiagonalState
from statewise.operators.masks import NO_MASKS, Masks
from statewise.operators.plan import SINGLE, Rule, otherwise, up_to
from statewise.operators.state_shape import leaf
from statewise.precision import exactly, full_precision


@dataclass(frozen=True, eq=False)
class DiagonalMIMO(Operator):
    """h_t = A h_{t-1} + B u_t, y_t = C h_t + D u_t with diagonal A, discrete, the same at every step.

    All channels of u enter one state of n numbers, and all outputs read it; :class:`DiagonalLTI` has its own system for
    each channel. Complex coefficients are one of each conjugate pair: then y_t = 2 Re(C h_t) + D u_t.

    Shapes:  A: (n,), B: (n, w), C: (p, n), all real or all complex
             D: the skip, real: (p, w), or its diagonal (w,) where p = w, or None
             u: (batch, length, w, *trailing) -> y (batch, length, p, *trailing)
             state: h (batch, *trailing, n) for real coefficients, (batch, *trailing, n, 2) for complex ones
    Forms:   ``recurrent``; ``scan``, O(length n (w + p)) work: all inputs in one matrix product, a scan of n numbers
             in O(sqrt(length)) vectorised steps, and all outputs in another product, with all states in memory:
             (batch, length, *trailing, n). Packed documents become rows of their own (while compiling they are masked
             instead, and then a NaN passes a start). There is no convolution: it would have w p filters.
    Errors:  InputError for shapes or dtypes that do not fit.
    Source:  Smith, Warrington & Linderman 2023 (S5), arXiv:2208.04933, sec. 2.2 and 3.1.

    >>> ones = torch.ones(1, 2)
    >>> DiagonalMIMO(torch.tensor([0.5]), ones, ones.mT)(torch.eye(2)[None])[0]
    tensor([[[1.0000, 1.0000],
             [1.5000, 1.5000]]])
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "scan")
    rules: ClassVar[tuple[Rule, ...]] = (
        up_to(1, "recurrent", SINGLE),
        otherwise("scan", "a matrix product into all states, one scan, and one product out of them"),
    )
    exact_form: ClassVar[str] = "scan"
    mixes_channels: ClassVar[bool] = True

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.B.shape[1],)

    def _like(self) -> Tensor:
        return self.A

    def _check(self, u: Tensor) -> None:
        A, B, C, D = self.A, self.B, self.C, self.D
        if (A.ndim, B.ndim, C.ndim) != (1, 2, 2) or not len(A) == len(B) == C.shape[1]:
            shapes = ", ".join(str(tuple(m.shape)) for m in (A, B, C))
            raise InputError(f"DiagonalMIMO needs A (n,), B (n, w), C (p, n); got {shapes}")
        check_dtypes("DiagonalMIMO", u, A=A, B=B, C=C)
        p, w = len(C), B.shape[1]
        if D is not None:
            given = f"{tuple(D.shape)} of {D.dtype}" if isinstance(D, Tensor) else type(D).__name__
            fits = isinstance(D, Tensor) and D.dtype == A.real.dtype
            if not fits or not (D.shape == (p, w) or (D.shape == (w,) and p == w)):
                shapes = f"({w},) or ({p}, {w})" if p == w else f"({p}, {w})"
                raise InputError(
                    f"DiagonalMIMO needs its skip D as a tensor {shapes} of {A.real.dtype}, or None; got {given}"
                )
        if u.ndim < 3 or u.shape[2] != w:
            raise InputError(f"DiagonalMIMO of {w} inputs needs u (batch, length, {w}, ...); got {tuple(u.shape)}")

    def state_shape(self, trailing: tuple[int, ...] = ()) -> DiagonalState:
        return DiagonalState(leaf(*trailing, len(self.A), *((2,) if self.A.is_complex() else ())))

    def step(self, u: Tensor, state: DiagonalState) -> tuple[Tensor, DiagonalState]:
        dtype = full_precision(u.dtype, self.A.dtype)
        A, B, C = self._coefficients(dtype)
        x = u.to(dtype).movedim(1, -1)  # (batch, *trailing, w)
        before = (as_complex(state.h) if A.is_complex() else state.h).to(A.dtype)
        h = A * before + exactly(torch.matmul, x.to(A.dtype), B.mT)
        y = exactly(torch.matmul, h, C.mT)
        y = self._skip(2 * y.real if y.is_complex() else y, x)
        h = torch.view_as_real(h) if h.is_complex() else h
        return y.movedim(-1, 1).to(u.dtype), DiagonalState(h.to(state.h.dtype))

    def scan(self, u: Tensor, state: DiagonalState | None, masks: Masks = NO_MASKS) -> tuple[Tensor, DiagonalState]:
        """All states by :func:`statewise.kernels.linear_scan`: a is 1 on padding.

        Documents become rows of their own. Their number depends on the data, so while compiling a is 0 where one begins
        instead; but 0 NaN is NaN, which passes. The products use real numbers: u is real, and only the real part of C h
        is needed.
        """
        if masks.starts is not None and not torch.compiler.is_compiling():
            y, final = self._each_document("scan", u, state, masks)
            return y, final
        dtype = full_precision(u.dtype, self.A.dtype)
        A, B, C = self._coefficients(dtype)
        if state is None:
            state = self.initial_state(u.shape[0], trailing=self._trailing(u), device=u.device, dtype=dtype)
        x = u.to(dtype).movedim(2, -1)  # (batch, length, *trailing, w)
        pairs = A.is_complex()
        b = exactly(torch.matmul, x, torch.view_as_real(B.mT).flatten(1) if pairs else B.mT)
        b = as_complex(b.unflatten(-1, (-1, 2))) if pairs else b
        h0 = (as_complex(state.h) if pairs else state.h).to(b.dtype)
        a = A.expand_as(b)
        for mask, value in ((masks.starts, 0.0), (None if masks.valid is None else ~masks.valid, 1.0)):
            if mask is not None:
                a = a.masked_fill(mask.reshape(*mask.shape, *[1] * (b.ndim - 2)), value)
        h = linear_scan(a, b, h0)
        last = h[:, -1] if u.shape[1] else h0
        if pairs:  # 2 Re(c h) = 2 Re c Re h - 2 Im c Im h
            h, last = torch.view_as_real(h).flatten(-2), torch.view_as_real(last)
            C = 2 * torch.view_as_real(C.conj().resolve_conj()).flatten(1)
        y = self._skip(exactly(torch.matmul, h, C.mT), x)
        return y.movedim(-1, 2).to(u.dtype), DiagonalState(last.to(state.h.dtype))

    def _coefficients(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """A, B and C in the dtype to compute in."""
        if self.A.is_complex():
            dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
        return self.A.to(dtype), self.B.to(dtype), self.C.to(dtype)

    def _skip(self, y: Tensor, x: Tensor) -> Tensor:
        """y (..., p) + D x, x being (..., w)."""
        if self.D is None:
            return y
        D = self.D.to(y.dtype)
        return y + (D * x if D.ndim == 1 else exactly(torch.matmul, x, D.mT))

    def _output_shape(self, u: Tensor) -> tuple[int, ...]:
        return (*u.shape[:2], len(self.C), *u.shape[3:])
