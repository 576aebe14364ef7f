"""The diagonal-plus-rank-one recurrence in C: the calls into rank_one_*.h, with what they need of memory."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.diagonal_rank_one.reference import Arguments
from statewise.kernels.stored import plain
from statewise.native.memory import empty

_STEPS = 4  # up to so many, the recurrence is faster than a chunk


def forward(given: Arguments) -> tuple[Tensor, Tensor]:
    """y and the state after the last step; all of one dtype, float32 or float64."""
    v, k, S0 = given.v, given.k, given.S0
    y, state = empty(*v.shape, dtype=v.dtype), empty(*S0.shape, dtype=v.dtype)
    if not v.numel() or not S0.numel():
        return y.zero_(), state.copy_(S0)
    tensors, sizes = _prepare(given)
    if v.shape[1] <= _STEPS:
        rows = torch.empty(k.shape[0], k.shape[2], 3, k.shape[3], dtype=v.dtype)
        call = native.function("rank_one_steps", v.dtype, "p" * 11 + "l" * 7)
        call(*tensors, y, state, rows, *sizes, native.n_threads())
        return y, state
    size, n_threads = _scratch("rank_one_forward_scratch", v.dtype, sizes[3:5]), _threads(v)
    scratch = empty(size * n_threads, dtype=v.dtype)
    call = native.function("rank_one_forward", v.dtype, "p" * 11 + "l" * 8)
    call(*tensors, y, state, scratch, *sizes, size, n_threads)
    return y, state


def backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> tuple[Tensor | None, ...]:
    """Gradients of v, q, k, log_a, S0, read, erase and beta; None where there was none."""
    v = given.v
    tensors, sizes = _prepare(given)
    if not v.numel() or not given.S0.numel():
        zeros = [None if m is None else torch.zeros_like(m) for m in tensors]
        if zeros[4] is not None and not v.shape[1]:
            zeros[4].copy_(grad_state)
        return tuple(zeros)
    gradients = [None if m is None else empty(*m.shape, dtype=v.dtype) for m in tensors]
    size, n_threads = _scratch("rank_one_backward_scratch", v.dtype, (sizes[1], *sizes[3:5])), _threads(v)
    scratch = empty(size * n_threads, dtype=v.dtype)
    call = native.function("rank_one_backward", v.dtype, "p" * 19 + "l" * 8)
    call(plain(grad_y), plain(grad_state), *tensors, *gradients, scratch, *sizes, size, n_threads)
    return tuple(gradients)


def _prepare(given: Arguments) -> tuple[list[Tensor | None], tuple[int, ...]]:
    """The tensors as C reads them, and the sizes: batch, length, heads, d_value, d_key, decays of a head."""
    tensors = [None if m is None else plain(m) for m in given[:8]]
    return tensors, (*given.v.shape, given.k.shape[3], given.log_a.shape[3])


def _threads(v: Tensor) -> int:
    return min(native.n_threads(), v.shape[0] * v.shape[2])


def _scratch(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> int:
    """Numbers of scratch memory for each thread; vectors of another instruction set need another padding."""
    return _measured(name, dtype, sizes, native.instruction_set())


@functools.lru_cache(maxsize=1024)
def _measured(name: str, dtype: torch.dtype, sizes: tuple[int, ...], instructions: str) -> int:
    size = torch.zeros((), dtype=torch.int64)
    native.function(name, dtype, "p" + "l" * len(sizes))(size, *sizes)
    return int(size)
