"""The convolution and its adjoint in Triton: a program walks through some steps of some channels.

It keeps the last steps in registers, so that each number is loaded once, in vectors. The gradients of the taps and the
bias are summed over the steps of a program, and then over programs in their order: the same bits on every run.
"""

# mypy: disable-error-code=assignment
# Tuples grow where Triton unrolls a loop, and have a type of their own at each step.

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.gpu import on_device_of
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.short_convolution import pytorch
from statewise.kernels.stored import plain_steps

# Of a program the channels, the warps, and the steps that are loaded at one time. A thread has four channels, a vector
# of what is stored, so that all that the backward keeps of them fits its registers; of more taps than few, it has one
AHEAD = (256, 2, 4)
BACK = (256, 2, 4)
_FEW = 4
_STEPS = (64, 32, 16)  # of a program: the more, the fewer are read by two, and the fewer sums go to memory
_PROGRAMS = 1024  # that keep a large card busy: with fewer than these, each has fewer steps


@triton.jit
def convolution_forward(
    x, taps, history, bias, segments, y, length, width, copies, batch_stride, step_stride, tiles, steps,
    TAPS: tl.constexpr, SILU: tl.constexpr, EIGHTHS: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """x (b, length, width), channels side by side; taps (width / copies, TAPS); history, y side by side throughout."""
    if EIGHTHS:
        width, batch_stride, step_stride = _eighths(width), _eighths(batch_stride), _eighths(step_stride)
    row = (tl.program_id(0) // tiles).to(tl.int64)  # divided in 32 bits: in 64 that is a call
    first = (tl.program_id(0) % tiles).to(tl.int64) * steps
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    channel = c < width
    x += row * batch_stride + c
    y += row * length * width + c
    if segments is not None:
        segments += row * length
    weights = _weights(taps, bias, c, channel, copies, TAPS)
    past = _past(x, history + row * width * (TAPS - 1) + c, first, channel, width, step_stride, TAPS)
    past_ids = _past_ids(segments, first, TAPS)
    for start in range(0, steps, AT_ONCE):
        t = first + start
        loaded, ids = _loaded(x, t, channel, length, step_stride, AT_ONCE), _ids(segments, t, length, AT_ONCE)
        for k in tl.static_range(AT_ONCE):
            values, value_ids = (loaded[k].to(tl.float32),) + past, past_ids
            if segments is not None:
                value_ids = (ids[k],) + past_ids
            z = _convolved(weights, _of_segment(values, value_ids, segments, TAPS), TAPS)
            if SILU:
                z = z / (1.0 + tl.exp(-z))
            tl.store(y + (t + k) * width, z.to(y.dtype.element_ty), mask=channel & (t + k < length))
            past, past_ids = values[: TAPS - 1], value_ids[: TAPS - 1]


@triton.jit
def convolution_backward(
    grad, x, taps, history, bias, segments, dx, d_history, partial, length, width, copies, grad_batch_stride,
    grad_step_stride, batch_stride, step_stride, tiles, steps,
    TAPS: tl.constexpr, SILU: tl.constexpr, EIGHTHS: tl.constexpr, WIDTH: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """dx, d_history; partial (b * tiles, TAPS + 1, width): of each program the sums for the taps, and for the bias.

    ``open`` are the gradients of the TAPS - 1 steps before the present one: each step adds to all of them, and then the
    eldest is whole. So a program walks TAPS - 1 steps beyond its own, which only add, and count in no sum of its taps.
    """
    if EIGHTHS:
        width, batch_stride, step_stride = _eighths(width), _eighths(batch_stride), _eighths(step_stride)
        grad_batch_stride, grad_step_stride = _eighths(grad_batch_stride), _eighths(grad_step_stride)
    program = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    first = (tl.program_id(0) % tiles).to(tl.int64) * steps
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    channel = c < width
    grad += row * grad_batch_stride + c
    x += row * batch_stride + c
    dx += row * length * width + c
    if segments is not None:
        segments += row * length
    weights = _weights(taps, bias, c, channel, copies, TAPS)
    past = _past(x, history + row * width * (TAPS - 1) + c, first, channel, width, step_stride, TAPS)
    past_ids = _past_ids(segments, first, TAPS)
    open = _zeros(TAPS - 1, WIDTH)
    if first == 0:
        _finish(
            d_history + row * width * (TAPS - 1) + c, first, first, TAPS - 1, grad, x, weights, segments, first, past,
            past_ids, open, channel, length, width, grad_step_stride, step_stride, SILU, TAPS,
        )  # fmt: skip
    sums = _zeros(TAPS + 1, WIDTH)
    for start in range(0, steps, AT_ONCE):
        t = first + start
        loaded, ids = _loaded(x, t, channel, length, step_stride, AT_ONCE), _ids(segments, t, length, AT_ONCE)
        grads = _loaded(grad, t, channel, length, grad_step_stride, AT_ONCE)
        for k in tl.static_range(AT_ONCE):
            values, value_ids = (loaded[k].to(tl.float32),) + past, past_ids
            if segments is not None:
                value_ids = (ids[k],) + past_ids
            of_segment = _of_segment(values, value_ids, segments, TAPS)
            slope = _slope(grads[k], weights, of_segment, SILU, TAPS)
            open = _opened(open, slope, weights, value_ids, segments, TAPS)
            sums = _summed(sums, slope, of_segment, TAPS)
            s = t + k - (TAPS - 1)
            inside = channel & (s >= first) & (s < length)
            tl.store(dx + s * width, open[TAPS - 1].to(dx.dtype.element_ty), mask=inside)
            past, past_ids, open = values[: TAPS - 1], value_ids[: TAPS - 1], open[: TAPS - 1]
    for i in tl.static_range(TAPS):
        tl.store(partial + ((program * (TAPS + 1) + i) * width + c), sums[i], mask=channel)
    tl.store(partial + ((program * (TAPS + 1) + TAPS) * width + c), sums[TAPS], mask=channel)
    t = first + steps
    _finish(
        dx, t - (TAPS - 1), first, length, grad, x, weights, segments, t, past, past_ids, open, channel, length, width,
        grad_step_stride, step_stride, SILU, TAPS,
    )  # fmt: skip


@triton.jit
def _finish(
    out, s, low, high, grad, x, weights, segments, t, past, past_ids, open, channel, length, width, grad_step_stride,
    step_stride, SILU: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Walks the TAPS - 1 steps from t, which make the gradients of those before whole, and stores these as steps s, ...
    of ``out``, as far as they are from ``low`` on and before ``high``."""
    loaded, ids = _loaded(x, t, channel, length, step_stride, TAPS - 1), _ids(segments, t, length, TAPS - 1)
    grads = _loaded(grad, t, channel, length, grad_step_stride, TAPS - 1)
    for k in tl.static_range(TAPS - 1):
        values, value_ids = (loaded[k].to(tl.float32),) + past, past_ids
        if segments is not None:
            value_ids = (ids[k],) + past_ids
        slope = _slope(grads[k], weights, _of_segment(values, value_ids, segments, TAPS), SILU, TAPS)
        open = _opened(open, slope, weights, value_ids, segments, TAPS)
        whole = open[TAPS - 1].to(out.dtype.element_ty)
        tl.store(out + (s + k) * width, whole, mask=channel & (s + k >= low) & (s + k < high))
        past, past_ids, open = values[: TAPS - 1], value_ids[: TAPS - 1], open[: TAPS - 1]


@triton.jit
def _weights(taps, bias, c, channel, copies, TAPS: tl.constexpr):
    """The taps of channels c, and behind them the bias, 0 where there is none."""
    own = (c.to(tl.int32) // copies).to(tl.int64)
    found = ()
    for i in tl.static_range(TAPS):
        found = found + (tl.load(taps + (own * TAPS + i), mask=channel, other=0.0),)
    if bias is not None:
        return found + (tl.load(bias + own, mask=channel, other=0.0),)
    return found + (tl.zeros(c.shape, tl.float32),)


@triton.jit
def _past(x, history, first, channel, width, step_stride, TAPS: tl.constexpr):
    """What is before step ``first``, the nearest first: of x, or of the history. Both are those of the channels."""
    found = ()
    for i in tl.static_range(1, TAPS):
        s = first - i
        value = tl.load(x + s * step_stride, mask=channel & (s >= 0), other=0.0).to(tl.float32)
        past = channel & (s < 0) & (s + TAPS > 0)
        found = found + (value + tl.load(history + (s + (TAPS - 1)) * width, mask=past, other=0.0),)
    return found


@triton.jit
def _loaded(x, t, channel, length, step_stride, STEPS: tl.constexpr):
    """Steps t, t + 1, ... of x, all under way before the first is waited for."""
    found = ()
    for k in tl.static_range(STEPS):
        found = found + (tl.load(x + (t + k) * step_stride, mask=channel & (t + k < length), other=0.0),)
    return found


@triton.jit
def _ids(segments, t, length, STEPS: tl.constexpr):
    """The segments of steps t, t + 1, ...; 0 outside the sequence."""
    found = ()
    if segments is not None:
        for k in tl.static_range(STEPS):
            s = t + k
            found = found + (tl.load(segments + s, mask=(s >= 0) & (s < length), other=0),)
    return found


@triton.jit
def _past_ids(segments, first, TAPS: tl.constexpr):
    """The segments of the steps before ``first``, the nearest first; 0 before the sequence."""
    found = ()
    if segments is not None:
        for i in tl.static_range(1, TAPS):
            found = found + (tl.load(segments + (first - i), mask=first >= i, other=0),)
    return found


@triton.jit
def _of_segment(values, ids, segments, TAPS: tl.constexpr):
    """The values, the present one first, and 0 instead of those of another segment than that."""
    if segments is not None:
        found = (values[0],)
        for i in tl.static_range(1, TAPS):
            found = found + (tl.where(ids[i] == ids[0], values[i], 0.0),)
        return found
    return values


@triton.jit
def _convolved(weights, values, TAPS: tl.constexpr):
    """The convolution of one step, before the activation."""
    z = weights[TAPS]
    for i in tl.static_range(TAPS):
        z += weights[i] * values[i]
    return z


@triton.jit
def _slope(grad, weights, values, SILU: tl.constexpr, TAPS: tl.constexpr):
    """The gradient of what :func:`_convolved` gives."""
    slope = grad.to(tl.float32)
    if SILU:
        z = _convolved(weights, values, TAPS)
        sigmoid = tl.sigmoid(z)
        slope = slope * sigmoid * (1.0 + z * (1.0 - sigmoid))
    return slope


@triton.jit
def _opened(open, slope, weights, ids, segments, TAPS: tl.constexpr):
    """The gradients of this step and the TAPS - 1 before it, with what its own slope adds to them."""
    found = (weights[0] * slope,)
    for i in tl.static_range(1, TAPS):
        reaches = slope
        if segments is not None:
            reaches = tl.where(ids[i] == ids[0], slope, 0.0)
        found = found + (open[i - 1] + weights[i] * reaches,)
    return found


@triton.jit
def _summed(sums, slope, values, TAPS: tl.constexpr):
    found = ()
    for i in tl.static_range(TAPS):
        found = found + (sums[i] + slope * values[i],)
    return found + (sums[TAPS] + slope,)


@triton.jit
def _zeros(COUNT: tl.constexpr, WIDTH: tl.constexpr):
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros((WIDTH,), tl.float32),)
    return found


@triton.jit
def _eighths(number):
    """A number of which the launch has seen that it is a multiple of 8: of the compiler it then gets whole vectors."""
    return tl.multiple_of(number.to(tl.int64), 8)


def refusal(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> str | None:
    return None


def forward(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> Tensor:
    if not x.numel():
        return pytorch.forward(x, taps, history, bias, segments, silu)
    flat, copies = plain_steps(x.flatten(2)), math.prod(x.shape[3:])
    batch, length, width = flat.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block, warps, at_once = _shape(AHEAD, taps.shape[1])
    steps, tiles = _tiles(batch, length, triton.cdiv(width, block))
    with on_device_of(x):
        convolution_forward[(batch * tiles, triton.cdiv(width, block))](
            flat, *_plain(taps, history, bias, segments), y, length, width, copies, *flat.stride()[:2], tiles, steps,
            TAPS=taps.shape[1], SILU=silu, EIGHTHS=_are_eighths(width, *flat.stride()[:2]), WIDTH=block,
            AT_ONCE=at_once, num_warps=warps,
        )  # fmt: skip
    return y


def backward(
    grad: Tensor, x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if not x.numel():
        return pytorch.backward(grad, x, taps, history, bias, segments, silu)
    flat, slope, copies = plain_steps(x.flatten(2)), plain_steps(grad.flatten(2)), math.prod(x.shape[3:])
    batch, length, width = flat.shape
    n_taps = taps.shape[1]
    block, warps, at_once = _shape(BACK, n_taps)
    steps, tiles = _tiles(batch, length, triton.cdiv(width, block))
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    d_history = torch.empty(history.shape, dtype=torch.float32, device=x.device)
    partial = torch.empty(batch * tiles, n_taps + 1, width, dtype=torch.float32, device=x.device)
    strides = (*slope.stride()[:2], *flat.stride()[:2])
    with on_device_of(x):
        convolution_backward[(batch * tiles, triton.cdiv(width, block))](
            slope, flat, *_plain(taps, history, bias, segments), dx, d_history, partial, length, width, copies,
            *strides, tiles, steps,
            TAPS=n_taps, SILU=silu, EIGHTHS=_are_eighths(width, *strides), WIDTH=block, AT_ONCE=at_once,
            num_warps=warps,
        )  # fmt: skip
    sums = partial.sum(0)
    if copies > 1:
        sums = sums.view(n_taps + 1, taps.shape[0], copies).sum(2)
    return dx, sums[:-1].t().contiguous(), d_history, sums[-1].clone()


def _shape(chosen: tuple[int, int, int], n_taps: int) -> tuple[int, int, int]:
    width, _, at_once = chosen
    return chosen if n_taps <= _FEW else (width, width // 32, at_once)


def _tiles(batch: int, length: int, blocks: int) -> tuple[int, int]:
    """The steps of a program, and into how many programs that cuts a sequence: from the shapes alone."""
    for steps in _STEPS:
        tiles = triton.cdiv(length, steps)
        if batch * tiles * blocks >= _PROGRAMS:
            break
    return steps, tiles


def _are_eighths(*sizes: int) -> bool:
    """Whether all of a step begins at a whole vector; where they are multiples of 16, Triton sees that by itself."""
    return all(size % 8 == 0 for size in sizes)


def _plain(
    taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    ids = None if segments is None else segments.long().contiguous()
    return taps.contiguous(), history.contiguous(), None if bias is None else bias.contiguous(), ids


def builds() -> list[Build]:
    sizes = numbers(i32="length width copies batch_stride step_stride tiles steps")
    found = []
    for taps, segments, silu, eighths in (
        (4, None, True, True),
        (4, "*i64", True, True),
        (3, None, False, False),
        (9, None, True, False),
    ):
        given: dict[str, Any] = {**pointers(bf16="x", fp32="taps history bias"), **sizes, "segments": segments}
        given |= {"TAPS": taps, "SILU": silu, "EIGHTHS": eighths}
        label = f"{taps} taps{', SiLU' if silu else ''}{', packed' if segments else ''}"
        width, warps, at_once = _shape(AHEAD, taps)
        ahead = {**given, **pointers(bf16="y"), "WIDTH": width, "AT_ONCE": at_once}
        found.append(Build(convolution_forward, ahead, warps, label=label))
        width, warps, at_once = _shape(BACK, taps)
        back = {**given, **pointers(bf16="grad dx", fp32="d_history partial"), "WIDTH": width, "AT_ONCE": at_once}
        back |= numbers(i32="grad_batch_stride grad_step_stride")
        found.append(Build(convolution_backward, back, warps, label=label))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    x = torch.linspace(-2, 3, 2 * 37 * 150, device=device).sin().view(2, 37, 150)
    taps, history, bias = x[0, :4].t().cos(), x[:, :3].cos(), x[0, 5].cos()
    ids = (torch.arange(37, device=device) // 9).expand(2, 37)
    return [(x, taps, history, bias, ids, True), (x.bfloat16(), taps, history, None, None, False)]
