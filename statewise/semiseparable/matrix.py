"""The interface of a structured lower-triangular matrix: a dense form to read, a product to use."""

from __future__ import annotations

import abc
from collections.abc import Callable

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable.ranks import block_ranks


class StructuredMatrix(abc.ABC):
    """A T x T lower-triangular matrix, or a batch of them, that knows its structure.

    A new structure defines ``shape``, ``dtype``, ``dense`` and ``_multiply``. Everything is differentiable and
    keeps the dtype of its coefficients.
    """

    @property
    @abc.abstractmethod
    def shape(self) -> torch.Size:
        """(..., T, T)."""

    @property
    @abc.abstractmethod
    def dtype(self) -> torch.dtype: ...

    @abc.abstractmethod
    def dense(self) -> Tensor:
        """All entries, (..., T, T): the definition. O(T^2) memory."""

    @abc.abstractmethod
    def _multiply(self, x: Tensor) -> Tensor:
        """M x for a checked x of shape (..., T, P)."""

    def matmul(self, x: Tensor) -> Tensor:
        """M x, without forming M.

        Shapes:  x: (T,) -> (..., T), or (..., T, P) -> (..., T, P); leading axes broadcast, as in torch.matmul
        Errors:  InputError if the length or the dtype of x is not that of the matrix.
        """
        return self._product(x, self._multiply)

    __matmul__ = matmul

    def _product(self, x: Tensor, multiply: Callable[[Tensor], Tensor]) -> Tensor:
        """``multiply(x)`` after the checks, with a vector taken as a matrix of one column."""
        length = self.shape[-1]
        if x.dtype != self.dtype:
            raise InputError(f"{type(self).__name__} has dtype {self.dtype} but got {x.dtype}; convert one of them")
        columns = x[:, None] if x.ndim == 1 else x
        if x.ndim == 0 or columns.shape[-2] != length:
            raise InputError(
                f"{type(self).__name__} of shape {tuple(self.shape)} got an input of shape {tuple(x.shape)}; "
                f"expected ({length},) or (..., {length}, columns)"
            )
        try:
            torch.broadcast_shapes(self.shape[:-2], columns.shape[:-2])
        except RuntimeError:
            raise InputError(
                f"the leading axes of {type(self).__name__} {tuple(self.shape)} and of its input {tuple(x.shape)} "
                "do not broadcast; add axes of size 1 where they differ"
            ) from None
        product = multiply(columns)
        return product[..., 0] if x.ndim == 1 else product

    def block_ranks(self, *, tolerance: float | None = None) -> Tensor:
        """Rank of every maximal block on or below the diagonal; see :func:`statewise.semiseparable.block_ranks`."""
        return block_ranks(self.dense(), tolerance=tolerance)
