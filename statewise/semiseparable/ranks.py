"""Measured ranks of the blocks below the diagonal: what makes a matrix semiseparable."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError


def block_ranks(matrix: Tensor, *, tolerance: float | None = None) -> Tensor:
    """Numerical rank of M[t:, :t+1] for every t: the maximal blocks on or below the diagonal.

    Each of them maps the past and present inputs to the present and future outputs, so its rank is the number
    of state dimensions that a recurrence needs at time t. Every other block on or below the diagonal is
    inside one of them and cannot have a larger rank.

    Shapes:  matrix: (..., T, T), lower triangular   ->   ranks: (..., T) int64
    Cost:    O(T^4): one singular value decomposition for each t. For reading and tests, not for long sequences.
    Numerics: singular values up to ``tolerance`` times the largest one of the whole matrix count as zero; it
              defaults to T times the dtype's epsilon.
    Errors:  InputError if the matrix is not square, not lower triangular, empty, or not finite.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 3; that an N-SSS matrix has ranks <= N: lemma 3.3.

    >>> block_ranks(torch.ones(4, 4).tril())
    tensor([1, 1, 1, 1])
    >>> block_ranks(torch.eye(4) + torch.eye(4).roll(1, 0).tril())
    tensor([1, 2, 2, 1])
    """
    check_lower_triangular(matrix)
    matrix = matrix.detach()
    threshold = rank_threshold(matrix, tolerance)
    ranks = [
        (torch.linalg.svdvals(matrix[..., t:, : t + 1]) > threshold[..., None]).sum(-1) for t in range(matrix.shape[-1])
    ]
    return torch.stack(ranks, dim=-1)


def semiseparable_rank(matrix: Tensor, *, tolerance: float | None = None) -> int:
    """The smallest N for which a lower-triangular matrix (or every one of a batch) is N-semiseparable.

    Arguments, cost and errors are those of :func:`block_ranks`.
    """
    return int(block_ranks(matrix, tolerance=tolerance).max())


def rank_threshold(matrix: Tensor, tolerance: float | None) -> Tensor:
    """The singular value up to which a block of the matrix counts as rank-deficient, one for each matrix."""
    if tolerance is None:
        tolerance = matrix.shape[-1] * torch.finfo(matrix.dtype).eps
    return tolerance * torch.linalg.matrix_norm(matrix, ord=2)


def check_lower_triangular(matrix: Tensor) -> None:
    if matrix.ndim < 2 or matrix.shape[-1] != matrix.shape[-2] or matrix.shape[-1] == 0:
        raise InputError(f"expected a square matrix (..., T, T) with T >= 1, got shape {tuple(matrix.shape)}")
    if not (matrix.is_floating_point() or matrix.is_complex()):
        raise InputError(f"expected a floating-point matrix, got {matrix.dtype}; convert it first")
    if not matrix.isfinite().all():
        raise InputError("the matrix has entries that are NaN or infinite; its blocks have no rank")
    above = matrix.triu(1) != 0
    if above.any():
        row, column = above.nonzero()[0, -2:].tolist()
        raise InputError(
            f"expected a lower-triangular matrix, but entry ({row}, {column}) above the diagonal is not zero; "
            "transpose an upper-triangular one, or use .tril()"
        )
