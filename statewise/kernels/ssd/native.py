"""SSD in C: the calls into ssd_*.h, with what they need of memory and layout."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.ssd.reference import Arguments
from statewise.native.memory import empty

_FORWARD_ITEMS = 2**17  # numbers of state that the heads of an item carry: half a float32 megabyte
_STEPS = 4  # up to so many, the recurrence is faster than a chunk
_WORTH_A_THREAD = 2**16  # multiply-adds of the recurrence, about 10 microseconds
_ONE_THREAD = 2**15  # fewer numbers than these, its grain size, PyTorch adds on one thread
_BACKWARD_ITEMS = 8  # at least, where there are so many heads: each but the first of a row keeps a dB and a dC


def forward(given: Arguments) -> tuple[Tensor, Tensor]:
    """y and the state after the last step. x, log_a, B, C, h0, dt, D have one dtype, float32 or float64."""
    sizes, strides, x, log_a, B, C, h0, dt, D, segments = _prepare(given)
    y, state = empty(*x.shape, dtype=x.dtype), empty(*h0.shape, dtype=x.dtype)
    if not x.numel():  # no steps, rows or heads
        return y, state.copy_(h0)
    b, length, h, p, g, n = sizes
    n_threads = native.n_threads()
    if length <= _STEPS:
        n_threads = n_threads if h0.numel() * length >= _WORTH_A_THREAD else 1
        native.function("ssd_steps", x.dtype, "p" * 10 + "l" * 13)(
            x, dt, log_a, B, C, h0, D, segments, y, state, *sizes, *strides, n_threads
        )
        return y, state
    n_blocks = _forward_blocks(b * g, h // g, p * n, n_threads)
    size = _scratch("ssd_forward_scratch", x.dtype, (h, p, g, n, n_blocks))
    scratch = empty(size * n_threads, dtype=x.dtype)
    native.function("ssd_forward", x.dtype, "p" * 11 + "l" * 15)(
        x, dt, log_a, B, C, h0, D, segments, y, state, scratch, *sizes, *strides, n_blocks, size, n_threads
    )
    return y, state


def backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> tuple[Tensor | None, ...]:
    """Gradients of x, log_a, B, C, h0, dt and D; None where there was none."""
    sizes, strides, x, log_a, B, C, h0, dt, D, segments = _prepare(given)
    if not grad_y.is_contiguous():  # such as that of a sum, one number for all
        grad_y = empty(*grad_y.shape, dtype=grad_y.dtype).copy_(grad_y)
    grad_state = grad_state.contiguous()
    b, length, h, p, g, n = sizes
    if not b * h:
        gradients = (x, log_a, B, C, h0, dt, D)
        return tuple(None if m is None else torch.zeros(m.shape, dtype=x.dtype) for m in gradients)
    # cut by the shapes alone, for the sums over heads to be the same whatever the number of threads
    n_blocks = min(h // g, -(-_BACKWARD_ITEMS // max(1, b * g)))
    dx, d_log_a, dh0 = (empty(*m.shape, dtype=x.dtype) for m in (x, log_a, h0))
    d_dt = None if dt is None else empty(*dt.shape, dtype=x.dtype)
    dD = None if D is None else empty(b, h, dtype=x.dtype)  # of each row
    dB, dC = (empty(n_blocks, *B.shape, dtype=x.dtype) for _ in range(2))
    n_threads = native.n_threads()
    size = _scratch("ssd_backward_scratch", x.dtype, (length, h, p, g, n, n_blocks))
    scratch = empty(size * min(n_threads, b * g * n_blocks), dtype=x.dtype)
    native.function("ssd_backward", x.dtype, "p" * 18 + "l" * 15)(
        grad_y, grad_state, x, dt, log_a, B, C, h0, D, segments, dx, d_dt, d_log_a, dB, dC, dh0, dD, scratch,
        *sizes, *strides, n_blocks, size, n_threads,
    )  # fmt: skip
    return dx, d_log_a, dB[0], dC[0], dh0, d_dt, None if dD is None else _over_rows(dD)


def _over_rows(dD: Tensor) -> Tensor:
    """The sum of (rows, heads) over the rows, in parts so small that PyTorch adds each on one thread.

    So the order, and with it the bits, is the same for any number of threads.
    """
    parts = dD.split(max(1, (_ONE_THREAD - 1) // dD.shape[1]))
    return functools.reduce(torch.add, (part.sum(0) for part in parts))


def _prepare(given: Arguments) -> tuple[Any, ...]:
    """The sizes, the strides of x, B and C along batch and time, and the tensors as C reads them."""
    x, log_a, B, C, h0, dt, D, segments, _ = given
    x, B, C = (_by_steps(m) for m in (x, B, C))
    log_a, h0 = log_a.contiguous(), h0.contiguous()
    dt, D = (None if m is None else m.contiguous() for m in (dt, D))
    segments = None if segments is None else segments.to(torch.int64).contiguous()
    strides = tuple(stride for m in (x, B, C) for stride in m.stride()[:2])
    return (*x.shape, *B.shape[2:]), strides, x, log_a, B, C, h0, dt, D, segments


def _by_steps(m: Tensor) -> Tensor:
    """m (batch, length, a, b), copied only where a step's a * b numbers do not lie together."""
    return m if m.stride(3) == 1 and m.stride(2) == m.shape[3] else m.contiguous()


def _forward_blocks(rows: int, heads: int, state_size: int, n_threads: int) -> int:
    """Into how many blocks the heads of a group are cut: any number gives the same bits.

    As few as share the work among the threads, for B and C to be prepared seldom, but small enough for the cache.
    """
    enough = [k for k in range(1, heads + 1) if rows * k >= 4 * n_threads or rows * k % n_threads == 0] or [heads]
    return min(heads, max(enough[0], -(-heads * state_size // _FORWARD_ITEMS)))


def _scratch(name: str, dtype: torch.dtype, sizes: tuple[int, ...]) -> int:
    """Numbers of scratch memory for each thread; vectors of another instruction set need another padding."""
    return _measured(name, dtype, sizes, native.instruction_set())


@functools.lru_cache(maxsize=1024)
def _measured(name: str, dtype: torch.dtype, sizes: tuple[int, ...], instructions: str) -> int:
    size = torch.zeros((), dtype=torch.int64)
    native.function(name, dtype, "p" + "l" * len(sizes))(size, *sizes)
    return int(size)
