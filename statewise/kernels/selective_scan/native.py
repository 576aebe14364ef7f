"""The calls into C: strides, sizes and scratch memory of selective_scan*.

u, dt, gate and the gradient of y are read in place where their channels lie side by side, so that the halves of a
projection need no copies, and in bfloat16 where they are; everything else is small.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.selective_scan.signature import Arguments, Gradients
from statewise.native.memory import empty

_BLOCK_CHANNELS = 128  # in C likewise
_WIDTH = 8  # states that go together
_ROW_SHARES = 8  # of a batch, each with gradients of A, D and dt_bias of its own
_FORWARD = "p" * 15
_BACKWARD = "p" * 23


def _rows(m: Tensor) -> Tensor:
    """With channels side by side."""
    return m if m.stride(-1) == 1 else empty(*m.shape, dtype=m.dtype).copy_(m)


def _strides(m: Tensor | None) -> tuple[int, int]:
    return (0, 0) if m is None else (m.stride(0), m.stride(1))


def _prepared(arguments: Arguments) -> Arguments:
    """All as C reads them."""
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, softplus, exact = arguments
    A, B, C, h0 = (m.contiguous() for m in (A, B, C, h0))
    D, dt_bias = (None if m is None else m.contiguous() for m in (D, dt_bias))
    segments = None if segments is None else segments.to(torch.int64).contiguous()
    gate = None if gate is None else _rows(gate)
    return Arguments(_rows(u), _rows(dt), A, B, C, h0, D, gate, dt_bias, segments, softplus, exact)


def _sizes(arguments: Arguments, grad_y: Tensor | None, chunk_length: int, scratch: int) -> array[int]:
    """The numbers of selective_scan.h, in its order."""
    u, dt, _, B, _, _, _, gate, _, _, softplus, exact = arguments
    b, length, d = u.shape
    half = [m is not None and m.dtype == torch.bfloat16 for m in (u, dt, gate)]
    numbers = (b, length, d, B.shape[2], B.shape[3], arguments.is_complex, exact, softplus)
    shares = (min(length, chunk_length), min(b, _ROW_SHARES), scratch, native.n_threads())
    strides = (*_strides(u), *_strides(dt), *_strides(gate), *_strides(grad_y))
    return array("q", [int(i) for i in (*numbers, *shares, *half, *strides)])


def _scratch(arguments: Arguments, by_step: int, by_state: int, by_part: int, chunk_length: int) -> tuple[Tensor, int]:
    """Memory of all threads, and how many reals each has: what C carves up, counted generously."""
    steps, parts = min(arguments.u.shape[1], chunk_length), 1 + arguments.is_complex
    n = arguments.B.shape[3]
    lanes = 2 * min(_BLOCK_CHANNELS, arguments.u.shape[2]) + 16  # vectors may not be full
    each = lanes * (by_step * steps + by_state * n * parts + 2) + by_part * 16 * steps * _WIDTH * parts
    return torch.empty(native.n_threads() * each, dtype=arguments.h0.dtype), each


def forward(arguments: Arguments, y: Tensor, state: Tensor, checkpoints: Tensor, chunk_length: int) -> None:
    """Writes y, the last state, and the states at the starts of chunks (if there is room for any)."""
    if not y.numel():
        state.copy_(arguments.h0)
        return
    arguments = _prepared(arguments)
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, _, _ = arguments
    scratch, each = _scratch(arguments, 3, 4, 2, chunk_length)
    sizes = _sizes(arguments, None, chunk_length, each)
    kept = checkpoints if checkpoints.shape[1] else None
    call = native.function("selective_scan_forward", h0.dtype, _FORWARD)
    numbers = sizes.buffer_info()[0]
    call(u, dt, A, B, C, h0, D, gate, dt_bias, segments, y, state, kept, scratch, numbers)


def backward(
    grad_y: Tensor, grad_state: Tensor, checkpoints: Tensor, arguments: Arguments, chunk_length: int
) -> Gradients:
    """All gradients; those along time in the dtype of what they are gradients of."""
    room: list[Any] = [None if m is None else empty(*m.shape, dtype=m.dtype) for m in arguments.numbers]
    into = Gradients(*room)
    if not grad_y.numel():
        nothing: list[Any] = [None if m is None else torch.zeros_like(m) for m in into]
        return Gradients(*nothing)._replace(h0=grad_state.clone())
    arguments = _prepared(arguments)
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, _, _ = arguments
    rows_y = _rows(grad_y)
    scratch, each = _scratch(arguments, 6, 6, 8, chunk_length)
    sizes = _sizes(arguments, rows_y, chunk_length, each)
    shares, splits = min(u.shape[0], _ROW_SHARES), _splits(u.shape[2] // B.shape[2])
    d_A = A.new_empty((shares, *A.shape))
    d_D, d_bias = (None if m is None else m.new_empty((shares, *m.shape)) for m in (D, dt_bias))
    d_B, d_C = empty(splits, *B.shape, dtype=B.dtype), empty(splits, *C.shape, dtype=C.dtype)
    call = native.function("selective_scan_backward", h0.dtype, _BACKWARD)
    call(
        rows_y, grad_state.contiguous(), u, dt, A, B, C, D, gate, dt_bias, segments, checkpoints,
        into.u, into.dt, d_A, d_B, d_C, into.h0, d_D, into.gate, d_bias, scratch, sizes.buffer_info()[0],
    )  # fmt: skip
    d_D, d_bias = (None if m is None else _sum(m) for m in (d_D, d_bias))
    return Gradients(into.u, into.dt, _sum(d_A), _sum(d_B), _sum(d_C), into.h0, d_D, into.gate, d_bias)


def _splits(channels_of_group: int) -> int:
    """Blocks that share a group of B and C."""
    return -(-channels_of_group // _BLOCK_CHANNELS)


def _sum(parts: Tensor) -> Tensor:
    """Over the first axis, in order, on any number of threads."""
    first, *rest = parts.unbind(0)
    if not rest:
        return first
    total = first + rest[0]
    for part in rest[1:]:
        total += part
    return total
