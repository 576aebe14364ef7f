"""N-sequentially-semiseparable matrices: the map y = M x of a recurrence with a state of N numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable.matrix import StructuredMatrix
from statewise.semiseparable.ranks import check_lower_triangular, rank_threshold
from statewise.semiseparable.recurrence import recurrence


@dataclass(frozen=True, eq=False)
class SequentiallySemiseparable(StructuredMatrix):
    """M = SSS(A, B, C): M_ji = C_j^T A_j A_{j-1} ... A_{i+1} B_i for j >= i, else 0.

    M x is the state-space model h_t = A_t h_{t-1} + B_t x_t, y_t = C_t^T h_t from rest. The number of axes of A gives
    its structure; with a scalar A, M = L * (C B^T) elementwise with L = 1SS(A), and for N = 1 that is diag(C) L
    diag(B). A_0 is not used, as there is no state before it.

    Shapes:  B, C: (..., T, N)   A: (..., T, N, N) dense, (..., T, N) diagonal, or (..., T) scalar; leading axes
             are a batch, equally many in A, B and C, and broadcast
    Errors:  InputError if shapes or dtypes disagree, or T or N is zero.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 3, eq. 3; the products: proposition 3.6.

    >>> SequentiallySemiseparable(torch.tensor([9.0, 0.5, 0.5]), torch.ones(3, 1), torch.ones(3, 1)).dense()
    tensor([[1.0000, 0.0000, 0.0000],
            [0.5000, 1.0000, 0.0000],
            [0.2500, 0.5000, 1.0000]])
    """

    A: Tensor
    B: Tensor
    C: Tensor

    def __post_init__(self) -> None:
        A, B, C = self.A, self.B, self.C
        shapes = f"A {tuple(A.shape)}, B {tuple(B.shape)}, C {tuple(C.shape)}"
        if B.ndim < 2 or B.ndim != C.ndim or B.shape[-2:] != C.shape[-2:] or 0 in B.shape[-2:]:
            raise InputError(f"expected B and C of one shape (..., T, N) with T, N >= 1, got {shapes}")
        length, d_state = B.shape[-2:]
        expected = {1: (length, d_state, d_state), 0: (length, d_state), -1: (length,)}.get(A.ndim - B.ndim)
        if expected is None or tuple(A.shape[A.ndim - len(expected) :]) != expected:
            raise InputError(
                f"expected A of shape (..., {length}, {d_state}, {d_state}), (..., {length}, {d_state}) or "
                f"(..., {length}) with as many leading axes as B, got {shapes}"
            )
        if not A.dtype == B.dtype == C.dtype or not (A.is_floating_point() or A.is_complex()):
            raise InputError(f"expected A, B and C of one floating-point dtype, got {A.dtype}, {B.dtype} and {C.dtype}")
        try:
            torch.broadcast_shapes(A.shape[: B.ndim - 2], B.shape[:-2], C.shape[:-2])
        except RuntimeError:
            raise InputError(f"the leading axes of A, B and C do not broadcast: {shapes}") from None

    @property
    def shape(self) -> torch.Size:
        batch = torch.broadcast_shapes(self.A.shape[: self.B.ndim - 2], self.B.shape[:-2], self.C.shape[:-2])
        length = self.B.shape[-2]
        return torch.Size([*batch, length, length])

    @property
    def dtype(self) -> torch.dtype:
        return self.B.dtype

    def dense(self) -> Tensor:
        """M: (..., T, T), row by row as defined. O(N T^2) for structured A, O(N^2 T^2) for dense A.

        Row j is C_j^T times the columns A_j ... A_{i+1} B_i for i <= j, which the next step multiplies by A_{j+1}.
        """
        length, d_state = self.B.shape[-2:]
        batch = self.shape[:-2]
        inputs, outputs = (z.expand(*batch, length, d_state).unbind(-2) for z in (self.B, self.C))
        transitions = self.A.unbind(self.B.ndim - 2)
        columns = inputs[0][..., :, None]  # (..., N, number of times so far)
        rows = [torch.einsum("...n,...ni->...i", outputs[0], columns)]
        for A, B, C in zip(transitions[1:], inputs[1:], outputs[1:]):
            columns = torch.cat([self._advance(A, columns), B[..., :, None]], dim=-1)
            rows.append(torch.einsum("...n,...ni->...i", C, columns))
        return torch.stack([torch.nn.functional.pad(row, (0, length - row.shape[-1])) for row in rows], dim=-2)

    def _advance(self, A: Tensor, states: Tensor) -> Tensor:
        """A_t applied to states (..., N, anything), whatever the structure of A."""
        if self.A.ndim > self.B.ndim:
            return A @ states
        return (A[..., :, None] if self.A.ndim == self.B.ndim else A[..., None, None]) * states

    def _multiply(self, x: Tensor) -> Tensor:
        """Diagonal and scalar A: O(N T P) in about 2 log2(T) rounds, with all states in memory at once.

        Dense A: O(N^2 T P), one step of time after the other, since composing two steps would cost N^3.
        """
        length, d_state = self.B.shape[-2:]
        batch = torch.broadcast_shapes(self.shape[:-2], x.shape[:-2])
        B, C = (z.expand(*batch, length, d_state)[..., None] for z in (self.B, self.C))
        inputs = B * x[..., None, :]  # (..., T, N, P)
        A = self.A.expand(*batch, *self.A.shape[self.B.ndim - 2 :])
        if self.A.ndim > self.B.ndim:
            first, *rest = inputs.unbind(-3)
            states = [first]
            for A_t, input_t in zip(A.unbind(-3)[1:], rest):
                states.append(A_t @ states[-1] + input_t)
            h = torch.stack(states, dim=-3)
        else:
            gains = A[..., :, None] if self.A.ndim == self.B.ndim else A[..., :, None, None]
            h = recurrence(gains[..., 1:, :, :].movedim(-3, 0), inputs.movedim(-3, 0)).movedim(0, -3)
        return (C * h).sum(dim=-2)

    @classmethod
    @torch.no_grad()
    def from_dense(cls, matrix: Tensor, *, tolerance: float | None = None) -> SequentiallySemiseparable:
        """The A, B, C of any lower-triangular matrix, with N its measured semiseparable rank.

        Let H_t = M[t:, :t+1] be the block that maps the inputs up to time t to the outputs from t on, and
        U_t S_t V_t^T its singular value decomposition, cut at its rank. U_t is how each state appears in
        the outputs, so C_t is its first row; the inputs at t enter as B_t = U_t^T M[t:, t]; and outputs from t on of
        the states at t - 1 lie in the span of U_t, which gives A_t = U_t^T U_{t-1}[1:]. No A_t is longer than 1
        in norm. H_t is never decomposed whole: [U_{t-1}[1:] S_{t-1}, M[t:, t]] differs from it by a factor with
        orthonormal rows and so has the same U_t and S_t.

        Shapes:  matrix: (T, T), lower triangular   ->   A: (T, N, N), B, C: (T, N), zero where a block has a
                 smaller rank
        Cost:    O(N^2 T^2). Not differentiable.
        Numerics: use float64. ``tolerance`` as in :func:`statewise.semiseparable.block_ranks`; what it cuts off is the
                  error of the result.
        Errors:  InputError if the matrix is not square, not lower triangular, empty, batched, or not finite.
        Source:  Dao & Gu 2024, arXiv:2405.21060, proposition 3.4; Chandrasekaran et al. 2005, "Some fast algorithms
                 for sequentially semiseparable representations".
        """
        check_lower_triangular(matrix)
        if matrix.ndim != 2:
            raise InputError(f"from_dense takes one matrix (T, T), got shape {tuple(matrix.shape)}; call it for each")
        threshold = rank_threshold(matrix, tolerance)
        bases, scaled = [], matrix[:, :0]  # scaled: U_t S_t
        for t in range(matrix.shape[0]):
            ahead = scaled[1:] if t else scaled
            U, S, _ = torch.linalg.svd(torch.cat([ahead, matrix[t:, t : t + 1]], dim=1), full_matrices=False)
            rank = int((threshold < S).sum())
            bases.append(U[:, :rank])
            scaled = U[:, :rank] * S[:rank]
        d_state = max(1, *(U.shape[1] for U in bases))
        padded = [torch.nn.functional.pad(U, (0, d_state - U.shape[1])) for U in bases]
        # A_0 acts on nothing: any finite value will do.
        A = [torch.zeros_like(matrix[:1, :1]).expand(d_state, d_state)]
        A += [after.mH @ before[1:] for before, after in pairwise(padded)]
        B = [U.mH @ matrix[t:, t] for t, U in enumerate(padded)]
        return cls(torch.stack(A), torch.stack(B), torch.stack([U[0] for U in padded]))
