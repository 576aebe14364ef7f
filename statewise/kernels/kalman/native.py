"""The filter and its adjoint in C (kalman.inc.h): one row in plain numbers, or several in the lanes of a vector."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.kalman.signature import Arguments, Gradients, Grads, Outputs
from statewise.kernels.kalman.triangular import lower, positive
from statewise.kernels.stored import plain, sum_of_items
from statewise.native.memory import empty

_VECTOR = 64  # bytes of the widest vector, and how scratch memory is aligned


def forward(given: Arguments) -> Outputs:
    """The noise and the first factors as triangles, then all steps in C."""
    batch, length, p = given.y.shape
    n, rows, dtype = given.mean.shape[-1], given.rows, given.y.dtype
    found = Outputs(
        empty(batch, length, n, dtype=dtype),
        empty(rows, length, n, n, dtype=dtype),
        empty(batch, length, p, dtype=dtype),
        empty(rows, length, p, p, dtype=dtype),
        empty(batch, length, dtype=dtype),
    )
    if batch * length == 0:
        return found
    shared = rows == 1 and batch > 1
    gains, constants = (empty(length, size, dtype=dtype) if shared else None for size in (n * p, 1))
    numbers = (n + p) * (3 * (n + p) + n + 2) + n * n + n + p * (p + 3)  # KALMAN_NUMBERS
    scratch = _scratch(numbers, dtype)
    G, N, offset, *begin = _plain(given, positive(lower(given.N)))
    native.function("kalman_forward", dtype, "p" * 19 + "l" * 17)(
        *(G, N, offset, plain(given.y), *begin, *_masks(given), *found, gains, constants, scratch, scratch.shape[1]),
        *(batch, length, n, p, int(shared), *_strides(G), *_strides(N), *_strides(offset)),
        *(_row_stride(m) for m in begin),
        native.n_threads(),
    )
    return found


def backward(grads: Grads, given: Arguments, found: Outputs) -> Gradients:
    """Everything is recomputed from the outputs, without a square root."""
    (batch, length, p), n, dtype = given.y.shape, given.mean.shape[-1], given.y.dtype
    k = n + p
    if batch * length == 0:
        return Gradients(*(torch.zeros_like(m) for m in given.numbers))
    W = given.N @ given.N.mT
    G, W, offset, *begin = _plain(given, W)
    steps = [length if m.shape[1] > 1 else 1 for m in (G, W, offset)]
    y = empty(batch, length, p, dtype=dtype)
    sums = [empty(batch, count, *m.shape[2:], dtype=dtype) for m, count in zip((G, W, offset), steps)]
    mean, P = empty(batch, n, dtype=dtype), empty(batch, n, n, dtype=dtype)
    prior_mean, prior_P = (m.new_zeros(m.shape) for m in (mean, P))
    numbers = k * (4 * k + 5 * n + 3) + 6 * n * n + 6 * n + p * (3 * p + 4 * n + 8)  # KALMAN_ADJOINT_NUMBERS
    scratch = _scratch(numbers, dtype)
    of = [None if m is None else plain(m) for m in grads]
    native.function("kalman_backward", dtype, "p" * 26 + "l" * 17)(
        *(G, W, offset, *begin, *_masks(given), *map(plain, found[:4]), *of, y, *sums, mean, P, prior_mean, prior_P),
        *(scratch, scratch.shape[1], batch, length, n, p, int(given.rows == 1)),
        *(*_strides(G), *_strides(W), *_strides(offset), *(_row_stride(m) for m in begin), native.n_threads()),
    )
    to_G, to_W, to_offset = (_over_rows(m, like) for m, like in zip(sums, (G, W, offset)))
    to_factor, to_prior = (2 * _over_rows(m @ L, L) for m, L in ((P, given.factor), (prior_P, given.prior_factor)))
    to_N = (2 * to_W @ given.N).sum_to_size(given.N.shape)
    to_mean, to_prior_mean = _over_rows(mean, given.mean), _over_rows(prior_mean, given.prior_mean)
    return Gradients(y, to_G, to_N, to_offset, to_mean, to_factor, to_prior_mean, to_prior)


def _plain(given: Arguments, noise: Tensor) -> list[Tensor]:
    factors = (m if _is_triangular(m) else lower(m) for m in (given.factor, given.prior_factor))
    factor, prior_factor = (plain(m) for m in factors)
    return [
        *(plain(given.G), plain(noise), plain(given.offset)),
        *(plain(given.mean), factor, plain(given.prior_mean), prior_factor),
    ]


def _is_triangular(L: Tensor) -> bool:
    return not bool(L.triu(1).any())


def _masks(given: Arguments) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    observed, starts = (None if m is None else plain(m != 0) for m in (given.observed, given.starts))
    return observed, None if given.lengths is None else plain(given.lengths), starts


def _scratch(numbers: int, dtype: torch.dtype) -> Tensor:
    """For each thread, numbers in as many lanes as the widest vector has."""
    return torch.empty(native.n_threads(), numbers * _VECTOR // dtype.itemsize, dtype=dtype)


def _strides(m: Tensor) -> tuple[int, int]:
    """From row to row and from step to step, 0 where all have the same."""
    each = m[0, 0].numel()
    return (each * m.shape[1] if m.shape[0] > 1 else 0), (each if m.shape[1] > 1 else 0)


def _row_stride(m: Tensor) -> int:
    return m[0].numel() if m.shape[0] > 1 else 0


def _over_rows(found: Tensor, like: Tensor) -> Tensor:
    """The sum over the rows, where they shared one."""
    return sum_of_items(found)[None] if like.shape[0] == 1 and found.shape[0] > 1 else found
