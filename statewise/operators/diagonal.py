"""The diagonal time-invariant system: S4D, DSS, GSS and H3's second SSM are built on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.backend import c_would_run
from statewise.kernels.batching import whole
from statewise.kernels.diagonal_scan import diagonal_scan
from statewise.kernels.diagonal_scan import refusal as diagonal_scan_refusal
from statewise.kernels.exact import is_exact
from statewise.kernels.linear_scan import linear_scan
from statewise.kernels.pairs import as_complex
from statewise.kernels.vandermonde import vandermonde
from statewise.kernels.vandermonde.powers import rounded_squares
from statewise.operators.folding import is_any
from statewise.operators.masks import NO_MASKS, Masks
from statewise.operators.plan import SINGLE, Plan, Rule, up_to
from statewise.operators.state_shape import leaf
from statewise.operators.time_invariant import CONVOLVE, Block, TimeInvariant, by_outputs, double, toeplitz
from statewise.precision import full_precision


class DiagonalState(NamedTuple):
    """h: (batch, width, *trailing, n) for real coefficients, (batch, width, *trailing, n, 2) for complex ones."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class DiagonalLTI(TimeInvariant):
    """h_t = A h_{t-1} + B u_t, y_t = C h_t + D u_t with diagonal A, discrete, the same at every step.

    Complex coefficients are one of each conjugate pair: then y_t = 2 Re(C h_t) + D u_t.

    Shapes:  A, B: (width, n), C: (width, n) or (width, p, n), all real or all complex
             D: the skip, real, (width,) or (width, p), or None; it is part of the first tap, so it costs nothing extra
             u: (batch, length, width, *trailing)
    Forms:   ``recurrent``; ``scan``, O(length width n) work in O(sqrt(length)) vectorised steps, with all states
             in memory: (batch, length, width, *trailing, n), packed documents as rows of their own (while compiling
             they are masked instead, and then a NaN passes a start); ``convolve``, O(length n) for the impulse response
             of each channel and O(length log length) for each row, with no array of size (width, n, length).
    Errors:  InputError for shapes or dtypes that do not fit.
    Source:  Gu et al. 2022 (S4D), arXiv:2206.11893, eq. 3 and sec. 3.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None
    forms: ClassVar[tuple[str, ...]] = ("recurrent", "scan", "convolve")
    rules: ClassVar[tuple[Rule, ...]] = (
        up_to(1, "recurrent", SINGLE),
        up_to(16, "scan", "a few vectorised steps over a small array of states"),
        CONVOLVE,
    )

    exact_form: ClassVar[str] = "scan"

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.A.shape[0],)

    def _like(self) -> Tensor:
        return self.A

    def _check(self, u: Tensor) -> None:
        A, B, C = self.A, self.B, self.C
        fits = A.ndim == 2 and B.shape == A.shape and C.ndim in (2, 3) and (C.shape[0], C.shape[-1]) == A.shape
        if not fits:
            shapes = ", ".join(str(tuple(m.shape)) for m in (A, B, C))
            raise InputError(f"DiagonalLTI needs A, B (width, n), C (width, n) or (width, p, n); got {shapes}")
        if self.D is not None and not isinstance(self.D, Tensor):
            raise InputError(
                f"DiagonalLTI needs its skip D as a tensor {tuple(C.shape[:-1])} or None; got {type(self.D).__name__}"
            )
        if self.D is not None and (self.D.shape != C.shape[:-1] or self.D.dtype != A.real.dtype):
            raise InputError(
                f"DiagonalLTI needs its skip D {tuple(C.shape[:-1])} of dtype {A.real.dtype}; "
                f"got {tuple(self.D.shape)} of {self.D.dtype}"
            )
        self._check_input(u, A.shape[0], A=A, B=B, C=C)

    def state_shape(self, trailing: tuple[int, ...] = ()) -> DiagonalState:
        width, n = self.A.shape
        pair = (2,) if self.A.is_complex() else ()
        return DiagonalState(leaf(width, *trailing, n, *pair))

    def step(self, u: Tensor, state: DiagonalState) -> tuple[Tensor, DiagonalState]:
        A, B, C = self._coefficients(u.ndim - 2, full_precision(u.dtype, self.A.dtype))
        h = A * self._complex(state.h) + B * u.unsqueeze(-1)
        y = self._skip(self._output(C, self._seen(h, 1)), u, 1)
        return y.to(u.dtype), DiagonalState(self._real(h).to(state.h.dtype))

    def scan(self, u: Tensor, state: DiagonalState | None, masks: Masks = NO_MASKS) -> tuple[Tensor, DiagonalState]:
        """All states by :func:`statewise.kernels.linear_scan`: a is 1 on padding. In exact mode, where it can, C goes
        through the steps.

        Documents become rows of their own. Their number depends on the data, so while compiling a is 0 where one begins
        instead; but 0 NaN is NaN, which passes.
        """
        if masks.starts is not None and not torch.compiler.is_compiling():
            y, final = self._each_document("scan", u, state, masks)
            return y, final
        if state is None:
            state = self.initial_state(
                u.shape[0], trailing=self._trailing(u), device=u.device, dtype=self._state_dtype(u)
            )
        if is_exact() and self._walks(u, state, masks):
            return self._walk(u, state, masks)
        A, B, C = self._coefficients(u.ndim - 3, full_precision(u.dtype, self.A.dtype))
        b = B * u.unsqueeze(-1)
        a = A.expand_as(b)
        h0 = self._complex(state.h).to(b.dtype)
        for mask, value in ((masks.starts, 0.0), (None if masks.valid is None else ~masks.valid, 1.0)):
            if mask is not None:
                a = a.masked_fill(mask.reshape(*mask.shape, *[1] * (b.ndim - 2)), value)
        h = linear_scan(a, b, h0)
        last = h[:, -1] if u.shape[1] else h0
        y = self._skip(self._output(C, self._seen(h, 2)), u, 2)
        return y.to(u.dtype), DiagonalState(self._real(last).to(state.h.dtype))

    def impulse_response(self, length: int) -> Tensor:
        """C A^k B, twice its real part for complex coefficients, by :func:`statewise.kernels.vandermonde`; the first
        tap includes D."""
        if length < 1:
            return self._no_taps(length)
        A, B, C = self._coefficients(0, full_precision(self.A.dtype))
        return self._with_skip(vandermonde(C * (B if C.ndim == 2 else B.unsqueeze(1)), A, length))

    def _grows(self, response: Tensor) -> bool:
        """Not with |A| <= 1, which is less to look at than the response."""
        return not bool((whole(self.A.detach()).abs() <= 1).all()) and super()._grows(response)

    def _chunks(self, u: Tensor, state: DiagonalState, masks: Masks) -> tuple[Tensor, DiagonalState]:
        """Matrix products, or where C can the steps themselves, which it walks several times faster."""
        y, final = self._walk(u, state, masks) if self._walks(u, state, masks) else super()._chunks(u, state, masks)
        return y, final

    def _walk(self, u: Tensor, state: DiagonalState, masks: Masks) -> tuple[Tensor, DiagonalState]:
        batch, length, width = u.shape[:3]
        lengths = None if masks.lengths is None else masks.lengths.to(torch.int64)
        r = math.prod(u.shape[3:])
        h = state.h.reshape(batch, width, r, *state.h.shape[-2:])
        C = self.C.flatten(1)  # of one output
        D = None if self.D is None else self.D.flatten()
        y, h = diagonal_scan(u.reshape(batch, length, width, r), self.A, self.B, C, D, h, lengths)
        return y.reshape(self._output_shape(u)), DiagonalState(h.reshape(state.h.shape))

    def _why(self, chosen: Plan, u: Tensor, state: DiagonalState | None) -> str:
        if chosen.form == "convolve" and state is not None and self._walks(u, state, NO_MASKS):
            return "from a state the steps themselves, walked in C: linear in length"
        return super()._why(chosen, u, state)

    def _walks(self, u: Tensor, state: DiagonalState, masks: Masks) -> bool:
        """Whether :func:`statewise.kernels.diagonal_scan.diagonal_scan` can go through the steps in C."""
        given = [m for m in (u, state.h, self.A, self.B, self.C, self.D) if m is not None]
        n_outputs = self.C.shape[1:-1].numel()
        if is_any(u.shape[1]) or n_outputs != 1 or {m.dtype for m in given} != {torch.float32, torch.complex64}:
            return False
        if masks.valid is not None and masks.lengths is None:
            return False
        return c_would_run(diagonal_scan_refusal(u, self.A))

    def _block(self, length: int, dtype: torch.dtype) -> Block:
        A, B, C = self._coefficients(0, dtype)
        C = by_outputs(C)
        powers = rounded_squares(A, length.bit_length())
        table = double(torch.ones_like(A).unsqueeze(1), powers[:-1], lambda t, a: t * a.unsqueeze(1), 1)
        krylov = table * B.unsqueeze(1)  # (w, T, n): A^k B
        taps = self._output(C.unsqueeze(2), krylov.unsqueeze(1))  # (w, p, T)
        response = toeplitz(self._with_skip(taps.reshape(*self.C.shape[:-1], length)).reshape(taps.shape))
        observe = (C * A.unsqueeze(1)).unsqueeze(2) * table.unsqueeze(1)  # (w, p, T, n): C A^(k + 1)
        if observe.is_complex():  # 2 Re(c h) = 2 Re c Re h - 2 Im c Im h
            observe = 2 * torch.view_as_real(observe.conj().resolve_conj()).flatten(-2)
            reach = torch.view_as_real(krylov).flatten(-2)
        else:
            reach = krylov
        from_state = observe.permute(0, 3, 1, 2).flatten(2)
        return Block(torch.cat([response, from_state], 1), reach.flip(1), powers)

    def _advance(self, h: Tensor, power: Tensor) -> Tensor:
        power = power.reshape(power.shape[0], *[1] * (h.ndim - 2), power.shape[1])
        if not power.is_complex():
            return h * power
        return torch.view_as_real(as_complex(h.unflatten(-1, (-1, 2))) * power).flatten(-2)

    def _flat(self, state: DiagonalState) -> Tensor:
        return state.h.flatten(-2) if self.A.is_complex() else state.h

    def _state(self, flat: Tensor) -> DiagonalState:
        return DiagonalState(flat.unflatten(-1, (-1, 2)) if self.A.is_complex() else flat)

    def _coefficients(self, n_trailing: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """A, B as (width, 1 per trailing axis, n), and C, in the dtype to compute in."""
        if self.A.is_complex():
            dtype = torch.complex128 if dtype == torch.float64 else torch.complex64
        width, n = self.A.shape
        A, B = (m.to(dtype).reshape(width, *[1] * n_trailing, n) for m in (self.A, self.B))
        C = self.C.to(dtype)
        return A, B, C.reshape(*C.shape[:-1], *[1] * n_trailing, n)

    def _output(self, C: Tensor, h: Tensor) -> Tensor:
        """C (width, [p,] *1, n) against h (..., width, *trailing, n) -> (..., width, [p,] *trailing)."""
        y = (C * h).sum(-1)
        return 2 * y.real if y.is_complex() else y

    def _skip(self, y: Tensor, u: Tensor, width_axis: int) -> Tensor:
        """y (..., width, [p,] *trailing) + D u."""
        if self.D is None:
            return y
        D = self.D.to(y.dtype).reshape(*self.D.shape, *[1] * (u.ndim - width_axis - 1))
        return torch.addcmul(y, D, (u if self.D.ndim == 1 else u.unsqueeze(width_axis + 1)).to(y.dtype))

    def _with_skip(self, taps: Tensor) -> Tensor:
        """taps (width, [p,] length), with D added to the first of them."""
        if self.D is None:
            return taps
        return taps + F.pad(self.D.to(taps.dtype).unsqueeze(-1), (0, taps.shape[-1] - 1))

    def _seen(self, h: Tensor, width_axis: int) -> Tensor:
        """States with an axis for the outputs, if there are several."""
        return h if self.C.ndim == 2 else h.unsqueeze(width_axis + 1)

    def _complex(self, h: Tensor) -> Tensor:
        return as_complex(h) if self.A.is_complex() else h

    def _real(self, h: Tensor) -> Tensor:
        return torch.view_as_real(h) if h.is_complex() else h
