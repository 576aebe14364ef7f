"""Linear systems with numbers of two words throughout: for matrices whose condition is beyond float64."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.systems.double_word import DoubleWord, exact_product, two_sum

SINGULAR = "the matrix to solve with, I - alpha dt A, is singular: choose another dt or rule"


def refine(matrix: DoubleWord, right: DoubleWord, plain: Tensor) -> Tensor:
    """matrix^-1 right to the last place of the largest entry of each column, from a solution in one word; float64.

    The solution is kept in two words and corrected by its residual. Where the corrections do not die out, because
    the matrix is too ill-conditioned or its solution spans too many orders of magnitude for residuals measured
    against the largest entry, :func:`eliminate` takes over.

    Shapes:  matrix (..., n, n)   right, plain (..., n, m); equal leading axes
    Cost:    two or three rounds of O(n^2 m), or that of elimination
    """
    factors = torch.linalg.lu_factor(matrix.high)
    solution = DoubleWord(plain, torch.zeros_like(plain))
    settled = torch.zeros(plain.shape[:-2], dtype=torch.bool, device=plain.device)
    for _ in range(5):
        residual = right + (matrix @ DoubleWord(-solution.high, -solution.low))
        correction = torch.linalg.lu_solve(*factors, residual.rounded())
        solution = solution + correction
        settled = (correction.abs().amax(-2) <= 2.0**-56 * solution.high.abs().amax(-2)).all(-1)
        if bool(settled.all()):
            break
    exact = solution.rounded()
    rest = ~settled & plain.isfinite().all(-1).all(-1)
    if bool(rest.any()):
        exact = exact.clone()
        exact[rest] = eliminate(matrix[rest], right[rest])
    return exact


def eliminate(matrix: DoubleWord, right: DoubleWord) -> Tensor:
    """matrix^-1 right by Gaussian elimination in two words: the error is the condition number times 1e-31.

    Rows are brought to one size, by powers of two, before pivots are chosen. Complex systems are solved as real ones
    of twice the size.

    Shapes:  matrix (batch, n, n)   right (batch, n, m)   ->   (batch, n, m)
    Cost:    O(n^2 (n + m)) elementwise operations, some hundred times a solution in one word
    Errors:  InputError where a pivot is zero.
    """
    if matrix.high.is_complex():
        n = right.high.shape[-2]
        solution = eliminate(
            DoubleWord(*(_real_matrix(word) for word in (matrix.high, matrix.low))),
            DoubleWord(*(torch.cat([word.real, word.imag], -2) for word in (right.high, right.low))),
        )
        return torch.complex(solution[:, :n], solution[:, n:])
    n = matrix.high.shape[-1]
    exponent = torch.frexp(matrix.high.abs().amax(-1, keepdim=True))[1]
    scale = torch.ldexp(torch.ones_like(matrix.high[..., :1]), -exponent)
    high, low = (torch.cat(words, -1) * scale for words in ((matrix.high, right.high), (matrix.low, right.low)))
    batch = torch.arange(high.shape[0], device=high.device)
    for k in range(n):
        pivot = high[:, k:, k].abs().argmax(-1) + k
        for word in (high, low):
            word[batch, pivot], word[:, k] = word[:, k].clone(), word[batch, pivot].clone()
        if bool((high[:, k, k] == 0).any()):
            raise InputError(SINGULAR)
        row, below = DoubleWord(high[:, k : k + 1, k:], low[:, k : k + 1, k:]), slice(k + 1, n)
        multiple = _divide(
            DoubleWord(high[:, below, k : k + 1], low[:, below, k : k + 1]),
            DoubleWord(row.high[..., :1], row.low[..., :1]),
        )
        rest = _minus_product(DoubleWord(high[:, below, k:], low[:, below, k:]), multiple, row)
        high[:, below, k:], low[:, below, k:] = rest.high, rest.low
    for k in reversed(range(n)):
        corner = DoubleWord(high[:, k : k + 1, k : k + 1], low[:, k : k + 1, k : k + 1])
        found = _divide(DoubleWord(high[:, k : k + 1, n:], low[:, k : k + 1, n:]), corner)
        high[:, k : k + 1, n:], low[:, k : k + 1, n:] = found.high, found.low
        column = DoubleWord(high[:, :k, k : k + 1], low[:, :k, k : k + 1])
        rest = _minus_product(DoubleWord(high[:, :k, n:], low[:, :k, n:]), column, found)
        high[:, :k, n:], low[:, :k, n:] = rest.high, rest.low
    return high[..., n:] + low[..., n:]


def _real_matrix(z: Tensor) -> Tensor:
    return torch.cat([torch.cat([z.real, -z.imag], -1), torch.cat([z.imag, z.real], -1)], -2)


def _minus_product(z: DoubleWord, x: DoubleWord, y: DoubleWord) -> DoubleWord:
    """z - x y entry by entry."""
    product = exact_product(-x.high, y.high)
    return z + DoubleWord(product.high, product.low - (x.high * y.low + x.low * y.high))


def _divide(x: DoubleWord, y: DoubleWord) -> DoubleWord:
    first = x.high / y.high
    rest = _minus_product(x, DoubleWord(first, torch.zeros_like(first)), y)
    return DoubleWord(*two_sum(first, rest.rounded() / y.high))
