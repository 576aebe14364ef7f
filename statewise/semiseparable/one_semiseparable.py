"""1-semiseparable matrices: the decay between any two times is the product of the decays between them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable.matrix import StructuredMatrix
from statewise.semiseparable.recurrence import recurrence


@dataclass(frozen=True, eq=False)
class OneSemiseparable(StructuredMatrix):
    """L = 1SS(a): L_ji = a_j a_{j-1} ... a_{i+1} for j >= i, with ones on the diagonal and zeros above.

    L x is the recurrence h_t = a_t h_{t-1} + x_t from rest, its inverse is bidiagonal, and any block on or
    below the diagonal is an outer product. Entries of ``a`` may be zero (nothing passes that time) or negative;
    a_0 is not used, as there is no state before it.

    Shapes:  a: (..., T); leading axes are a batch of matrices
    Errors:  InputError if ``a`` has no time axis, is empty, or is not floating point or complex.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 3.

    >>> OneSemiseparable(torch.tensor([9.0, 0.5, -2.0])).dense()
    tensor([[ 1.0000,  0.0000,  0.0000],
            [ 0.5000,  1.0000,  0.0000],
            [-1.0000, -2.0000,  1.0000]])
    >>> OneSemiseparable(torch.tensor([9.0, 0.5, -2.0])) @ torch.ones(3)
    tensor([ 1.0000,  1.5000, -2.0000])
    """

    a: Tensor

    def __post_init__(self) -> None:
        if self.a.ndim == 0 or self.a.shape[-1] == 0:
            raise InputError(f"OneSemiseparable needs a of shape (..., T) with T >= 1, got {tuple(self.a.shape)}")
        if not (self.a.is_floating_point() or self.a.is_complex()):
            raise InputError(f"OneSemiseparable needs a floating-point a, got {self.a.dtype}; convert it first")

    @property
    def shape(self) -> torch.Size:
        return torch.Size([*self.a.shape, self.a.shape[-1]])

    @property
    def dtype(self) -> torch.dtype:
        return self.a.dtype

    def dense(self) -> Tensor:
        """L: (..., T, T). Column i is the running product of a_{i+1}, a_{i+2}, ... O(T^2) work and memory."""
        length = self.a.shape[-1]
        below = torch.ones(length, length, dtype=torch.bool, device=self.a.device).tril(-1)
        return torch.where(below, self.a[..., :, None], 1).cumprod(dim=-2).tril()

    def _multiply(self, x: Tensor) -> Tensor:
        # One product and one sum for each element of x, up to a constant: O(T P).
        gains, inputs = self._time_first(x)
        return recurrence(gains, inputs).movedim(0, -2)

    def transposed_matmul(self, y: Tensor) -> Tensor:
        """L^T y in O(T P): the same recurrence run backwards, g_t = a_{t+1} g_{t+1} + y_t. Shapes as in ``matmul``."""
        return self._product(y, self._multiply_transposed)

    def _multiply_transposed(self, y: Tensor) -> Tensor:
        gains, inputs = self._time_first(y)
        return recurrence(gains.flip(0), inputs.flip(0)).flip(0).movedim(0, -2)

    def solve(self, y: Tensor) -> Tensor:
        """The x with L x = y, in O(T P): x_t = y_t - a_t y_{t-1}, as L^{-1} is bidiagonal. Shapes as in ``matmul``.

        It exists for every ``a``, even with zeros: L has ones on its diagonal.
        """
        return self._product(y, self._solve)

    def _solve(self, y: Tensor) -> Tensor:
        gains, outputs = self._time_first(y)
        return torch.cat([outputs[:1], outputs[1:] - gains * outputs[:-1]]).movedim(0, -2)

    def _time_first(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """a_1 to a_{T-1} as (T - 1, ..., 1) and x as (T, ..., P), with the leading axes broadcast."""
        batch = torch.broadcast_shapes(self.a.shape[:-1], x.shape[:-2])
        gains = self.a[..., 1:].expand(*batch, -1).movedim(-1, 0)[..., None]
        return gains, x.expand(*batch, -1, -1).movedim(-2, 0)

    def block(self, rows: slice, columns: slice) -> Tensor:
        """L[rows, columns] in O(rows x columns + T), wherever the block is.

        Shapes:  -> (..., number of rows, number of columns)
        Errors:  InputError if a slice has a step.
        """
        (first_row, end_row), (first_column, end_column) = self._range(rows), self._range(columns)
        if end_column <= first_row + 1 and first_row < end_row and first_column < end_column:
            left, right = self.factors(rows, columns)
            return left[..., :, None] * right[..., None, :]
        # Across the diagonal: a run of consecutive times of a 1-SS matrix is the 1-SS matrix of those times.
        first, end = min(first_row, first_column), max(end_row, end_column)
        if first_row == end_row or first_column == end_column or end_row <= first_column:
            return self.a.new_zeros(*self.a.shape[:-1], end_row - first_row, end_column - first_column)
        around = OneSemiseparable(self.a[..., first:end]).dense()
        return around[..., first_row - first : end_row - first, first_column - first : end_column - first]

    def factors(self, rows: slice, columns: slice) -> tuple[Tensor, Tensor]:
        """u and v with L[rows, columns] = u v^T, for a block on or below the diagonal, in O(T).

        With r the first row, u_j = a_j ... a_{r+1} carries time r on to j, and v_i = a_r ... a_{i+1} brings i to r.

        Shapes:  -> u: (..., number of rows), v: (..., number of columns)
        Errors:  InputError if a slice has a step or is empty, or if the block reaches above the diagonal.
        """
        (first_row, end_row), (first_column, end_column) = self._range(rows), self._range(columns)
        if first_row == end_row or first_column == end_column or end_column > first_row + 1:
            raise InputError(
                f"rows {first_row}:{end_row} and columns {first_column}:{end_column} are not a block on or below the "
                "diagonal; it needs at least one of each and no column beyond the first row"
            )
        start = torch.ones_like(self.a[..., :1])
        left = torch.cat([start, self.a[..., first_row + 1 : end_row]], dim=-1).cumprod(dim=-1)
        gap = self.a[..., end_column : first_row + 1].prod(dim=-1, keepdim=True)
        backwards = torch.cat([gap, self.a[..., first_column + 1 : end_column].flip(-1)], dim=-1).cumprod(dim=-1)
        return left, backwards.flip(-1)

    def _range(self, times: slice) -> tuple[int, int]:
        first, end, step = times.indices(self.a.shape[-1])
        if step != 1:
            raise InputError(f"a block is made of consecutive times, got a slice with step {step}")
        return first, max(first, end)


@dataclass(frozen=True, eq=False)
class CumulativeSum(StructuredMatrix):
    """The causal mask of plain attention: ones on and below the diagonal, 1SS(1, ..., 1). Its product is a cumsum.

    Cost:    no multiplications at all: T P additions.
    Errors:  InputError if ``length`` is smaller than 1.

    >>> CumulativeSum(3) @ torch.tensor([1.0, 2.0, 3.0])
    tensor([1., 3., 6.])
    """

    length: int
    dtype: torch.dtype = torch.float32
    device: torch.device | str | None = None

    def __post_init__(self) -> None:
        if self.length < 1:
            raise InputError(f"CumulativeSum needs a length of at least 1, got {self.length}")

    @property
    def shape(self) -> torch.Size:
        return torch.Size([self.length, self.length])

    def dense(self) -> Tensor:
        return torch.ones(self.shape, dtype=self.dtype, device=self.device).tril()

    def _multiply(self, x: Tensor) -> Tensor:
        return x.cumsum(dim=-2)
