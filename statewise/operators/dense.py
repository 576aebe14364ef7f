"""Dense time-invariant systems (HiPPO-LegT, LMU's memory, LSSL), and HiPPO-LegS, whose matrix falls with time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.batching import stacked
from statewise.operators.base import Operator, check_dtypes
from statewise.operators.plan import Rule, up_to
from statewise.operators.state_shape import COUNT, leaf
from statewise.operators.time_invariant import (
    CONVOLVE,
    FEW,
    Block,
    TimeInvariant,
    by_outputs,
    double,
    output_shape,
    toeplitz,
)
from statewise.precision import exactly, full_precision
from statewise.systems import discretize_dense


class DenseState(NamedTuple):
    """h: (batch, w, *trailing, n)."""

    h: Tensor


@dataclass(frozen=True, eq=False)
class DenseLTI(TimeInvariant):
    """h_t = A h_{t-1} + B u_t, y_t = C h_t with a dense, discrete A.

    Shapes:  A: (w, n, n)   B: (w, n)   C: (w, n) or (w, p, n), real   u: (batch, length, w, *trailing)
    Forms:   ``recurrent``, O(length w n^2); ``convolve``: log2(length) squarings of A, O(w n^3 log length), and then
             O(length log length) from rest, O(length (64 + n)) a channel from a state.
    Errors:  InputError for shapes or dtypes that do not fit.
    Source:  Gu et al. 2021 (LSSL), arXiv:2110.13985, eq. 3 to 6.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    rules: ClassVar[tuple[Rule, ...]] = (up_to(16, "recurrent", FEW), CONVOLVE)

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.A.shape[0],)

    def _like(self) -> Tensor:
        return self.A

    def _check(self, u: Tensor) -> None:
        A, B, C = self.A, self.B, self.C
        if A.ndim != 3 or A.shape[1] != A.shape[2] or B.shape != A.shape[:2] or not _fits(C, B):
            raise InputError(
                "DenseLTI needs A (w, n, n), B (w, n), C (w, n) or (w, p, n); "
                f"got {tuple(A.shape)}, {tuple(B.shape)}, {tuple(C.shape)}"
            )
        if any(m.is_complex() or not m.is_floating_point() for m in (A, B, C)):
            raise InputError(f"DenseLTI needs real A, B, C; got {A.dtype}, {B.dtype}, {C.dtype}")
        self._check_input(u, A.shape[0], A=A, B=B, C=C)

    def state_shape(self, trailing: tuple[int, ...] = ()) -> DenseState:
        w, n = self.B.shape
        return DenseState(leaf(w, *trailing, n))

    def step(self, u: Tensor, state: DenseState) -> tuple[Tensor, DenseState]:
        A, B, C = (m.to(full_precision(u.dtype, m.dtype)) for m in (self.A, self.B, self.C))
        h = exactly(torch.einsum, "wij,bw...j->bw...i", A, state.h.to(A.dtype)) + exactly(
            torch.einsum, "wi,bw...->bw...i", B, u.to(B.dtype)
        )
        return _output(C, h).to(u.dtype), DenseState(h.to(state.h.dtype))

    def impulse_response(self, length: int) -> Tensor:
        """C A^k B by two levels of about sqrt(length) rows each, doubled with the squares of A."""
        if length < 1:
            return self._no_taps(length)
        A, B, C = self._in_one_dtype()
        inner = 1 << ((length - 1).bit_length() + 1) // 2
        n_outer = -(-length // inner)
        n_low, n_high = inner.bit_length() - 1, (n_outer - 1).bit_length()
        squares = _squares(A, n_low + n_high - 1)
        krylov = double(B.unsqueeze(1), squares[:n_low], _forward, 1)  # (w, inner, n)
        rows = by_outputs(C).unsqueeze(2)
        rows = double(rows, squares[n_low : n_low + n_high], _backward, 2)[:, :, :n_outer]
        response = exactly(torch.matmul, rows.flatten(1, 2), krylov.mT)  # (w, p outer, inner)
        return response.reshape(*C.shape[:-1], n_outer * inner)[..., :length]

    def _block(self, length: int, dtype: torch.dtype) -> Block:
        A, B, C = (m.to(dtype) for m in self._in_one_dtype())
        C = by_outputs(C)
        squares = _squares(A, length.bit_length() - 1)
        krylov = double(B.unsqueeze(1), squares[:-1], _forward, 1)  # (w, T, n)
        first = exactly(torch.matmul, C, A).unsqueeze(2)
        observe = double(first, squares[:-1], _backward, 2)  # (w, p, T, n): C A^(k + 1)
        response = toeplitz(exactly(torch.matmul, C, krylov.mT))
        from_state = observe.permute(0, 3, 1, 2).flatten(2)
        return Block(torch.cat([response, from_state], 1), krylov.flip(1), squares)

    def _advance(self, h: Tensor, power: Tensor) -> Tensor:
        return exactly(torch.matmul, h.flatten(1, -2), power.mT).reshape(h.shape)

    def _flat(self, state: DenseState) -> Tensor:
        return state.h

    def _state(self, flat: Tensor) -> DenseState:
        return DenseState(flat)

    def _in_one_dtype(self) -> tuple[Tensor, Tensor, Tensor]:
        dtype = full_precision(self.A.dtype, self.B.dtype, self.C.dtype)
        return self.A.to(dtype), self.B.to(dtype), self.C.to(dtype)


class DenseLTVState(NamedTuple):
    """h: (batch, w, *trailing, n); steps: (batch,) int64, how many steps each row has made."""

    h: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class DenseLTV(Operator):
    """h'(t) = (A h(t) + B u(t)) / t, y = C h: HiPPO-LegS, which remembers all of the past at every time scale.

    In log t the system is time-invariant, and the step from t = k to k + 1 has length log((k + 1)/k). So zero-order
    hold is exact for an input that is constant within each step. The first step (from t = 0) is infinitely long and
    ends in the steady state, -A^-1 B u.

    Shapes:  A: (n, n)   B: (n,)   C: (w, n) or (w, p, n), real   u: (batch, length, w, *trailing)
    Forms:   ``recurrent``, O(n^3) a step for the matrix exponential, and O(batch w n^2) for the product.
             ``statewise.hippo.project`` gives the same coefficients far faster, without a matrix exponential.
    Errors:  InputError for shapes or dtypes that do not fit, and if vmap maps over A, B or the steps.
    Source:  Gu et al. 2020 (HiPPO), arXiv:2008.07669, theorem 2 and eq. 4.
    """

    A: Tensor
    B: Tensor
    C: Tensor
    forms: ClassVar[tuple[str, ...]] = ("recurrent",)

    @property
    def channels(self) -> tuple[int, ...]:
        return (self.C.shape[0],)

    def _like(self) -> Tensor:
        return self.A

    def _check(self, u: Tensor) -> None:
        A, B, C = self.A, self.B, self.C
        if (
            A.ndim != 2
            or A.shape[0] != A.shape[1]
            or B.shape != A.shape[:1]
            or C.ndim not in (2, 3)
            or C.shape[-1] != len(B)
        ):
            raise InputError(
                "DenseLTV needs A (n, n), B (n,), C (w, n) or (w, p, n); "
                f"got {tuple(A.shape)}, {tuple(B.shape)}, {tuple(C.shape)}"
            )
        if any(m.is_complex() or not m.is_floating_point() for m in (A, B, C)):
            raise InputError(f"DenseLTV needs real A, B, C; got {A.dtype}, {B.dtype}, {C.dtype}")
        check_dtypes("DenseLTV", u, A=A, B=B, C=C)
        if not torch.compiler.is_compiling() and (stacked(A) or stacked(B)):
            raise InputError(
                "DenseLTV under vmap needs the same A and B in every copy: the way to compute their exponential "
                "depends on their values; map over C, u and the state, or call it once for each A"
            )
        w = C.shape[0]
        if u.ndim < 3 or u.shape[2] != w:
            raise InputError(f"DenseLTV of width {w} needs u (batch, length, {w}, ...); got {tuple(u.shape)}")

    def _output_shape(self, u: Tensor) -> tuple[int, ...]:
        return output_shape(self.C, u)

    def state_shape(self, trailing: tuple[int, ...] = ()) -> DenseLTVState:
        return DenseLTVState(leaf(self.C.shape[0], *trailing, len(self.B)), COUNT)

    def step(self, u: Tensor, state: DenseLTVState) -> tuple[Tensor, DenseLTVState]:
        A, B, C = (m.to(full_precision(u.dtype, m.dtype)) for m in (self.A, self.B, self.C))
        ages, row = state.steps, torch.arange(len(state.steps), device=state.steps.device)
        if not torch.compiler.is_compiling():
            if stacked(ages):
                raise InputError(
                    "DenseLTV under vmap needs the same steps in every copy; map over h alone, or call it once for each"
                )
            ages, row = ages.unique(return_inverse=True)  # rows of one age share a matrix exponential
        k = ages.to(A.dtype)
        dt = torch.log((k + 1) / k)  # infinite at k = 0
        A, B = discretize_dense(A.expand(len(k), -1, -1), B.expand(len(k), -1), dt, "zoh")
        h = exactly(torch.einsum, "bij,bw...j->bw...i", A[row], state.h.to(A.dtype))
        h = h + exactly(torch.einsum, "bi,bw...->bw...i", B[row], u.to(B.dtype))
        return _output(C, h).to(u.dtype), DenseLTVState(h.to(state.h.dtype), state.steps + 1)


def _fits(C: Tensor, B: Tensor) -> bool:
    return C.ndim in (2, 3) and C.shape[0] == B.shape[0] and C.shape[-1] == B.shape[-1]


def _output(C: Tensor, h: Tensor) -> Tensor:
    """(w, [p,] n) and (b, w, *trailing, n) -> (b, w, [p,] *trailing)."""
    return exactly(torch.einsum, "wn,bw...n->bw..." if C.ndim == 2 else "wpn,bw...n->bwp...", C, h)


def _squares(A: Tensor, n_squarings: int) -> tuple[Tensor, ...]:
    """A, A^2, A^4 ... A^(2^n_squarings)."""
    powers = [A]
    for _ in range(n_squarings):
        powers.append(exactly(torch.matmul, powers[-1], powers[-1]))
    return tuple(powers)


def _forward(rows: Tensor, power: Tensor) -> Tensor:
    """Rows x^T -> (A x)^T."""
    return exactly(torch.matmul, rows, power.mT)


def _backward(rows: Tensor, power: Tensor) -> Tensor:
    """Rows (w, p, k, n) of C A^k -> C A^k A^..."""
    return exactly(torch.matmul, rows.flatten(1, 2), power).reshape(rows.shape)
