"""A lower-triangular matrix cut into chunks: full blocks on its diagonal, low-rank ones below."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.semiseparable.ranks import check_lower_triangular, rank_threshold


def chunk_ranks(matrix: Tensor, chunk_length: int, *, tolerance: float | None = None) -> Tensor:
    """The numerical rank of each block of rows of one chunk and columns of another.

    A chunked algorithm multiplies by the blocks on the diagonal as they are, and carries a state past those below: a
    block below the diagonal of an N-semiseparable matrix has rank N at most.

    Shapes:  matrix: (T, T), lower triangular   ->   (chunks, chunks) int64, 0 above the diagonal; the last chunk may be
             short
    Numerics: singular values up to ``tolerance`` times the largest one of the whole matrix count as zero; it defaults
             to T times the dtype's epsilon.
    Errors:  InputError for a matrix that :func:`statewise.semiseparable.block_ranks` refuses, or a batch of them, and
             for chunks shorter than 1.
    Source:  Dao & Gu 2024, arXiv:2405.21060, sec. 6.

    >>> chunk_ranks(torch.ones(4, 4).tril(), 2)
    tensor([[2, 0],
            [1, 2]])
    """
    check_lower_triangular(matrix)
    if matrix.ndim != 2:
        raise InputError(f"chunk_ranks takes one matrix (T, T), got {tuple(matrix.shape)}; give one of the batch")
    if isinstance(chunk_length, bool) or not isinstance(chunk_length, int) or chunk_length < 1:
        raise InputError(f"chunk_length={chunk_length!r}; expected a whole number of steps, at least 1")
    matrix = matrix.detach()
    threshold = rank_threshold(matrix, tolerance)
    rows = matrix.split(chunk_length)
    found = torch.zeros(len(rows), len(rows), dtype=torch.int64)
    for i, row in enumerate(rows):
        for j, block in enumerate(row.split(chunk_length, 1)[: i + 1]):
            found[i, j] = int((torch.linalg.svdvals(block) > threshold).sum())
    return found
