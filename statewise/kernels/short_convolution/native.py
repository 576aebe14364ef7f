"""The convolution and its adjoint in C: short_convolution.inc.h."""

from __future__ import annotations

import math

from torch import Tensor

from statewise import native
from statewise.kernels.stored import plain_steps, stored_function, sum_of_items

_CACHED_NUMBERS = 2**16  # of x in a chunk of time
_LANES = 16  # of the widest vector


def forward(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> Tensor:
    flat, columns, past, offset = _plain(x, taps, history, bias)
    batch, length, width = flat.shape
    y = x.new_empty(x.shape)
    n_taps, threads = taps.shape[1], native.n_threads()
    scratch = past.new_empty(threads * 2 * n_taps * _LANES)
    call = stored_function("short_convolution", x.dtype, "ppppppp" + "l" * 9)
    call(
        *(flat, columns, offset, past, _ids(segments), y, scratch),
        *(batch, length, width, n_taps, flat.stride(0), flat.stride(1), int(silu), _chunk(width), threads),
    )
    return y


def backward(
    grad: Tensor, x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    flat, columns, past, offset = _plain(x, taps, history, bias)
    slope = plain_steps(grad.to(x.dtype).reshape(flat.shape))
    batch, length, width = flat.shape
    grad_x = x.new_empty(x.shape)
    grad_history = past.new_empty(past.shape) if length else past.new_zeros(past.shape)
    n_taps, threads, chunk = taps.shape[1], native.n_threads(), _chunk(width)
    items = batch * -(-length // chunk)
    partial = past.new_empty(items, n_taps + 1, width)
    scratch = past.new_empty(threads * (4 * n_taps + 1) * _LANES)
    call = stored_function("short_convolution_backward", x.dtype, "pppppppppp" + "l" * 11)
    call(
        *(slope, flat, columns, offset, past, _ids(segments), grad_x, grad_history, partial, scratch),
        *(batch, length, width, n_taps, *slope.stride()[:2], *flat.stride()[:2], int(silu), chunk, threads),
    )
    sums = sum_of_items(partial).unflatten(1, (taps.shape[0], math.prod(x.shape[3:]))).sum(2)
    return grad_x, sums[:-1].t().contiguous(), grad_history.reshape(history.shape), sums[-1].clone()


def _plain(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Trailing axes become channels with taps of their own; x with plain steps, the taps as (n_taps, width)."""
    copies = math.prod(x.shape[3:])
    flat = plain_steps(x.flatten(2))
    columns = taps.t().contiguous() if copies == 1 else taps.t().repeat_interleave(copies, 1)
    if bias is not None:
        bias = bias.contiguous() if copies == 1 else bias.repeat_interleave(copies)
    return flat, columns, history.flatten(2).contiguous(), bias


def _ids(segments: Tensor | None) -> Tensor | None:
    return None if segments is None else segments.long().contiguous()


def _chunk(width: int) -> int:
    """Steps in a chunk of time: what is read stays in a core's cache; never dependent on the number of threads."""
    return min(4096, max(64, _CACHED_NUMBERS // max(1, width)))
