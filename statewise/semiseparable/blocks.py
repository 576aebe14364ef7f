"""Sequentially semiseparable matrices of blocks: recurrences with many inputs, many outputs and a direct path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable.matrix import StructuredMatrix


@dataclass(frozen=True, eq=False)
class BlockSequentiallySemiseparable(StructuredMatrix):
    """The map of h_t = A_t h_{t-1} + B_t x_t, y_t = C_t h_t + D_t x_t with M inputs and P outputs at each of T times.

    Its block of P x M for the output at j and the input at i is C_j A_j A_{j-1} ... A_{i+1} B_i for j > i, and
    C_j B_j + D_j on the diagonal. With M = P = 1 and no D it is :class:`SequentiallySemiseparable`. This is what any
    linear system that changes with time does, in steps: :meth:`statewise.TimeVaryingSystem.discretize` returns one.

    Vectors hold the numbers of time 0 first, then those of time 1: (T M,). :meth:`simulate` has an axis for each.

    Shapes:  A: (..., T, N, N)   B: (..., T, N, M)   C: (..., T, P, N)   D: (..., T, P, M) or None; leading axes are a
             batch, equally many, and broadcast
    Errors:  InputError if shapes or dtypes disagree, or one of T, N, M, P is zero.
    Source:  Chandrasekaran et al. 2005, "Some fast algorithms for sequentially semiseparable representations", sec. 1;
             Dao & Gu 2024, arXiv:2405.21060, sec. 3.

    >>> one = torch.ones(2, 1, 1)
    >>> BlockSequentiallySemiseparable(0.5 * one, one, torch.ones(2, 2, 1)).dense()
    tensor([[1.0000, 0.0000],
            [1.0000, 0.0000],
            [0.5000, 1.0000],
            [0.5000, 1.0000]])
    """

    A: Tensor
    B: Tensor
    C: Tensor
    D: Tensor | None = None

    def __post_init__(self) -> None:
        given = {"A": self.A, "B": self.B, "C": self.C} | ({} if self.D is None else {"D": self.D})
        shapes = ", ".join(f"{name} {tuple(z.shape)}" for name, z in given.items())
        if len({z.ndim for z in given.values()}) > 1 or self.A.ndim < 3:
            raise InputError(f"expected A, B, C (and D) with equally many axes, three or more, got {shapes}")
        T, N, M, P = *self.A.shape[-3:-1], self.B.shape[-1], self.C.shape[-2]
        wanted = {"A": (T, N, N), "B": (T, N, M), "C": (T, P, N), "D": (T, P, M)}
        if 0 in (T, N, M, P) or any(tuple(z.shape[-3:]) != wanted[name] for name, z in given.items()):
            raise InputError(
                "expected A (..., T, N, N), B (..., T, N, M), C (..., T, P, N), D (..., T, P, M), none empty; "
                f"got {shapes}"
            )
        dtypes = {z.dtype for z in given.values()}
        if len(dtypes) > 1 or not (self.A.is_floating_point() or self.A.is_complex()):
            raise InputError(f"expected one floating-point dtype, got {', '.join(map(str, sorted(dtypes, key=str)))}")
        try:
            torch.broadcast_shapes(*(z.shape[:-3] for z in given.values()))
        except RuntimeError:
            raise InputError(f"the leading axes do not broadcast: {shapes}") from None

    @property
    def leading(self) -> torch.Size:
        """The leading axes: () for one matrix."""
        given = (self.A, self.B, self.C) + (() if self.D is None else (self.D,))
        return torch.broadcast_shapes(*(z.shape[:-3] for z in given))

    @property
    def shape(self) -> torch.Size:
        """(..., T P, T M)."""
        T = self.A.shape[-3]
        return torch.Size([*self.leading, T * self.C.shape[-2], T * self.B.shape[-1]])

    @property
    def dtype(self) -> torch.dtype:
        return self.A.dtype

    def dense(self) -> Tensor:
        """All entries, (..., T P, T M), block row by block row as defined. O(T^2 N^2 M)."""
        T, M, P = self.A.shape[-3], self.B.shape[-1], self.C.shape[-2]
        leading = self.leading
        A, B, C = (z.expand(*leading, *z.shape[-3:]).unbind(-3) for z in (self.A, self.B, self.C))
        columns = B[0][..., :0]  # A_j ... A_{i+1} B_i for all i so far, side by side
        rows = []
        for t in range(T):
            columns = torch.cat([A[t] @ columns, B[t]], -1)
            row = C[t] @ columns
            rows.append(torch.nn.functional.pad(row, (0, (T - 1 - t) * M)))
        matrix = torch.cat(rows, -2)
        if self.D is None:
            return matrix
        direct = torch.zeros_like(matrix).unflatten(-1, (T, M)).unflatten(-3, (T, P))  # (..., T, P, T, M)
        direct.diagonal(dim1=-4, dim2=-2).copy_(self.D.expand(*leading, T, P, M).movedim(-3, -1))
        return matrix + direct.flatten(-4, -3).flatten(-2, -1)

    def simulate(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The outputs, step by step, and the state after the last step: cut the matrix and the signal anywhere.

        With ``state=None`` it starts from rest (A_0 is not used) and returns None instead of a state.

        Shapes:  x: (..., T, M)   state: (..., N)   ->   y: (..., T, P), the state (..., N); leading axes broadcast
        Cost:    O(T N (N + M + P)), one step of time after the other.
        Errors:  InputError for wrong shapes or dtypes.

        >>> one = torch.ones(2, 1, 1)
        >>> BlockSequentiallySemiseparable(0.5 * one, one, one).simulate(torch.ones(2, 1), torch.tensor([4.0]))
        (tensor([[3.0000],
                [2.5000]]), tensor([2.5000]))
        """
        T, N, M = *self.A.shape[-3:-1], self.B.shape[-1]
        for name, given in (("x", x), ("state", state)):
            if not isinstance(given, Tensor) and (given is not None or name == "x"):
                raise InputError(f"{name} must be a tensor, got {type(given).__name__}; use torch.as_tensor({name})")
        if x.ndim < 2 or tuple(x.shape[-2:]) != (T, M) or x.dtype != self.dtype:
            raise InputError(f"x must be (..., {T}, {M}) in {self.dtype}; got {x.dtype} {tuple(x.shape)}")
        if state is not None and (state.ndim < 1 or state.shape[-1] != N or state.dtype != self.dtype):
            raise InputError(f"state must be (..., {N}) in {self.dtype}; got {state.dtype} {tuple(state.shape)}")
        try:
            leading = torch.broadcast_shapes(self.leading, x.shape[:-2], () if state is None else state.shape[:-1])
        except RuntimeError:
            raise InputError(
                f"the leading axes of x {tuple(x.shape)} (or the state) do not fit {self.leading}"
            ) from None
        driven = (self.B @ x.unsqueeze(-1)).squeeze(-1)
        h = x.new_zeros(*leading, N) if state is None else state.expand(*leading, N)
        states = []
        for A, step in zip(self.A.unbind(-3), driven.unbind(-2)):
            h = (A @ h.unsqueeze(-1)).squeeze(-1) + step
            states.append(h)
        y = (self.C @ torch.stack(states, -2).unsqueeze(-1)).squeeze(-1)
        if self.D is not None:
            y = y + (self.D @ x.unsqueeze(-1)).squeeze(-1)
        return y, None if state is None else h

    def _multiply(self, x: Tensor) -> Tensor:
        """O(T N (N + M + P)) for each column, one step of time after the other."""
        M = self.B.shape[-1]
        columns = x.unflatten(-2, (-1, M)).movedim(-1, 0)  # (columns, ..., T, M)
        more = columns.ndim - 3 - len(self.leading)
        columns = columns if more >= 0 else columns.reshape(columns.shape[0], *[1] * -more, *columns.shape[1:])
        y, _ = self.simulate(columns)
        return y.movedim(0, -1).flatten(-3, -2)

    def block_ranks(self, *, tolerance: float | None = None) -> Tensor:
        """As :meth:`StructuredMatrix.block_ranks`; only for as many outputs as inputs."""
        if self.shape[-1] != self.shape[-2]:
            raise InputError(f"block_ranks needs as many outputs as inputs; this matrix is {tuple(self.shape[-2:])}")
        return super().block_ranks(tolerance=tolerance)
