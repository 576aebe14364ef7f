"""SSD in C step by step: ssd_ordered.c, for exact mode; states of more than 128 numbers in several passes."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from statewise import native
from statewise.errors import InputError
from statewise.kernels.ssd.reference import Arguments

_EACH = "l" * 6  # batch, length, heads, width, groups, states


def forward(given: Arguments) -> tuple[Tensor, Tensor]:
    """y and the state after the last step.

    Errors:  InputError for numbers other than float32 on the CPU.
    """
    parts = _passes(given)
    if len(parts) == 1:
        return _forward(given)
    ys, states = zip(*(_forward(part) for part in parts))
    return functools.reduce(torch.add, ys), torch.cat(states, -1)


def backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> tuple[Tensor | None, ...]:
    """Gradients of x, log_a, B, C, h0, dt and D; None where there was none."""
    parts = _passes(given)
    if len(parts) == 1:
        return _backward(grad_y, grad_state, given)
    slopes = grad_state.split([part.B.shape[3] for part in parts], -1)
    found = [_backward(grad_y, slope, part) for slope, part in zip(slopes, parts)]
    dx, d_log_a, dB, dC, dh0, dts, dD = zip(*found)
    joined = [torch.cat(m, -1) for m in (dB, dC, dh0)]
    d_dt = None if given.dt is None else functools.reduce(torch.add, dts)
    return functools.reduce(torch.add, dx), functools.reduce(torch.add, d_log_a), *joined, d_dt, dD[0]


def _passes(given: Arguments) -> list[Arguments]:
    """The numbers of each state in passes of as many as the C code takes, whose y add up in their order; D x once."""
    most = _sizes(1, 1, native.instruction_set())[0]
    if given.B.shape[3] <= most:
        return [given]
    columns = zip(*(m.split(most, -1) for m in (given.B, given.C, given.h0)))
    parts = [given._replace(B=B, C=C, h0=h0) for B, C, h0 in columns]
    return [part if i == 0 else part._replace(D=None) for i, part in enumerate(parts)]


def _forward(given: Arguments) -> tuple[Tensor, Tensor]:
    x, log_a, B, C, h0, dt, D, segments = _prepared(given)
    y, state = torch.empty_like(x), torch.empty_like(h0)
    if not x.numel() or not h0.numel():
        return y.zero_() if D is None else y.copy_(D[:, None] * x), state.copy_(h0)
    sizes, threads = (*x.shape, *B.shape[2:]), native.n_threads()
    scratch_size = _sizes(sizes[3], sizes[5], native.instruction_set())[2]
    native.function("ssd_ordered", torch.float32, "p" * 11 + _EACH + "ll")(
        *(x, dt, log_a, B, C, h0, D, segments, y, state, x.new_empty(scratch_size * threads)),
        *(*sizes, scratch_size, threads),
    )
    return y, state


def _backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> tuple[Tensor | None, ...]:
    x, log_a, B, C, h0, dt, D, segments = _prepared(given)
    numbers = (x, log_a, B, C, h0, dt, D)
    if not x.numel() or not h0.numel():
        found = [None if m is None else torch.zeros_like(m) for m in numbers]
        found[4] = grad_state.clone()
        return tuple(found)
    sizes, threads = (*x.shape, *B.shape[2:]), native.n_threads()
    batch, length, heads, width, groups, states = sizes
    _, of_block, _, each, kept, steps = _sizes(width, states, native.instruction_set())
    n_blocks = -(-(heads // groups) // of_block)
    scratch_size = each + kept * -(-length // steps)
    dx, d_log_a, dh0 = (torch.empty_like(m) for m in (x, log_a, h0))
    d_dt = None if dt is None else torch.empty_like(dt)
    dD = None if D is None else x.new_empty(batch, heads)
    dB, dC = (x.new_empty(n_blocks, *B.shape) for _ in range(2))
    threads = min(threads, batch * groups * n_blocks)
    native.function("ssd_ordered_backward", torch.float32, "p" * 18 + _EACH + "lll")(
        *(grad_y.contiguous(), grad_state.contiguous(), x, dt, log_a, B, C, h0, D, segments),
        *(dx, d_dt, d_log_a, dB, dC, dh0, dD, x.new_empty(scratch_size * threads)),
        *(*sizes, n_blocks, scratch_size, threads),
    )
    dB, dC = (functools.reduce(torch.add, m.unbind(0)) for m in (dB, dC))
    return dx, d_log_a, dB, dC, dh0, d_dt, None if dD is None else functools.reduce(torch.add, dD.unbind(0))


def _prepared(
    given: Arguments,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    for name, m in zip(given._fields, given[:7]):
        if m is not None and (m.dtype != torch.float32 or m.device.type != "cpu"):
            raise InputError(f"exact mode computes SSD in float32 on the CPU; got {name} of {m.dtype} on {m.device}")
    x, log_a, B, C, h0 = (m.contiguous() for m in given[:5])
    dt, D = (None if m is None else m.contiguous() for m in given[5:7])
    segments = None if given.segments is None else given.segments.to(torch.int64).contiguous()
    return x, log_a, B, C, h0, dt, D, segments


@functools.lru_cache(maxsize=1024)
def _sizes(width: int, states: int, instructions: str) -> tuple[int, ...]:
    sizes = torch.zeros(6, dtype=torch.int64)
    native.function("ssd_ordered_sizes", torch.float32, "pll")(sizes, width, states)
    return tuple(sizes.tolist())
