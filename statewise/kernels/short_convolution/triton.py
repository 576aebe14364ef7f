"""The convolution and its adjoint in Triton: a program has some steps of some channels, whose taps find x in the cache.

The gradients of the taps and the bias are summed over the steps of a program, and then over programs in their order:
the same bits on every run.
"""

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

TIME, WIDTH, WARPS = 16, 128, 8  # steps and channels of a program, and its warps
TIME_BACK, WIDTH_BACK, WARPS_BACK = 8, 64, 4


@triton.jit
def convolution_forward(
    x, taps, history, bias, segments, y, length, width, copies, batch_stride, step_stride, tiles,
    TAPS: tl.constexpr, SILU: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """x (b, length, width), channels side by side; taps (width / copies, TAPS); history, y side by side throughout."""
    row = (tl.program_id(0) // tiles).to(tl.int64)  # divided in 32 bits: in 64 that is a call
    t = (tl.program_id(0) % tiles).to(tl.int64) * TIME + tl.arange(0, TIME).to(tl.int64)
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    out = _convolved(
        x + row * batch_stride, taps, history + row * width * (TAPS - 1), bias, segments, row, t, c, length, width,
        copies, step_stride, TAPS, TIME, WIDTH,
    )  # fmt: skip
    if SILU:
        out = out * tl.sigmoid(out)
    real = (t < length)[:, None] & (c < width)[None, :]
    tl.store(y + (row * length + t)[:, None] * width + c[None, :], out.to(y.dtype.element_ty), mask=real)


@triton.jit
def convolution_backward(
    grad, x, taps, history, bias, segments, dx, d_history, partial, length, width, copies, grad_batch_stride,
    grad_step_stride, batch_stride, step_stride, tiles,
    TAPS: tl.constexpr, SILU: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx, d_history; partial (b * tiles, TAPS + 1, width): of each program the sums for the taps, and for the bias.

    The steps begin with those of the history, TAPS - 1 before the first.
    """
    program = tl.program_id(0).to(tl.int64)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    s = (tl.program_id(0) % tiles).to(tl.int64) * TIME + tl.arange(0, TIME).to(tl.int64) - (TAPS - 1)
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    channel = c < width
    grad += row * grad_batch_stride
    x += row * batch_stride
    history += row * width * (TAPS - 1)
    total = tl.zeros((TIME, WIDTH), tl.float32)
    for i in range(0, TAPS):
        t = s + i
        slope = tl.load(
            grad + t[:, None] * grad_step_stride + c[None, :],
            mask=((t >= 0) & (t < length))[:, None] & channel[None, :],
            other=0.0,
        ).to(tl.float32)
        if SILU:
            z = _convolved(
                x, taps, history, bias, segments, row, t, c, length, width, copies, step_stride, TAPS, TIME, WIDTH
            )
            sigmoid = tl.sigmoid(z)
            slope = slope * sigmoid * (1.0 + z * (1.0 - sigmoid))
        if i == 0:
            sums = program * (TAPS + 1)
            for j in range(0, TAPS):
                value = _source(x, history, segments, row, t, j, c, length, width, step_stride, TAPS, TIME, WIDTH)
                tl.store(partial + ((sums + j) * width + c), tl.sum(slope * value, 0), mask=channel)
            tl.store(partial + ((sums + TAPS) * width + c), tl.sum(slope, 0), mask=channel)
        if segments is not None:
            slope = tl.where(_same(segments + row * length, t, i, length)[:, None], slope, 0.0)
        tap = tl.load(taps + (_taps_of(c, copies) * TAPS + i), mask=channel, other=0.0)
        total += tap[None, :] * slope
    inside = ((s >= 0) & (s < length))[:, None] & channel[None, :]
    tl.store(dx + (row * length + s)[:, None] * width + c[None, :], total.to(dx.dtype.element_ty), mask=inside)
    before = row * (TAPS - 1) + s + (TAPS - 1)
    tl.store(d_history + before[:, None] * width + c[None, :], total, mask=(s < 0)[:, None] & channel[None, :])


@triton.jit
def _convolved(
    x, taps, history, bias, segments, row, t, c, length, width, copies, step_stride,
    TAPS: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(TIME, WIDTH): the convolution at steps t of channels c, before the activation. x and history are of the row."""
    z = tl.zeros((TIME, WIDTH), tl.float32)
    for i in range(0, TAPS):
        tap = tl.load(taps + (_taps_of(c, copies) * TAPS + i), mask=c < width, other=0.0)
        z += tap[None, :] * _source(x, history, segments, row, t, i, c, length, width, step_stride, TAPS, TIME, WIDTH)
    if bias is not None:
        z += tl.load(bias + _taps_of(c, copies), mask=c < width, other=0.0)[None, :]
    return z


@triton.jit
def _source(
    x, history, segments, row, t, i, c, length, width, step_stride,
    TAPS: tl.constexpr, TIME: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """(TIME, WIDTH): what tap i is multiplied by at steps t, 0 where that is of another segment."""
    s = t - i
    channel = (c < width)[None, :]
    inside = (s >= 0) & (s < length)
    value = tl.load(x + s[:, None] * step_stride + c[None, :], mask=inside[:, None] & channel, other=0.0)
    value = value.to(tl.float32)
    past = (s < 0) & (s + TAPS > 0)
    at = history + (s + (TAPS - 1))[:, None] * width + c[None, :]
    value += tl.load(at, mask=past[:, None] & channel, other=0.0)
    if segments is not None:
        value = tl.where(_same(segments + row * length, t, i, length)[:, None], value, 0.0)
    return value


@triton.jit
def _taps_of(c, copies):
    return (c.to(tl.int32) // copies).to(tl.int64)


@triton.jit
def _same(segments, t, i, length):
    """Whether steps t and t - i are of one segment; before the first it is 0."""
    now = tl.load(segments + t, mask=(t >= 0) & (t < length), other=0)
    return now == tl.load(segments + (t - i), mask=(t - i >= 0) & (t - i < length), other=0)


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
    tiles = triton.cdiv(length, TIME)
    with on_device_of(x):
        convolution_forward[(batch * tiles, triton.cdiv(width, WIDTH))](
            flat, *_plain(taps, history, bias, segments), y, length, width, copies, *flat.stride()[:2], tiles,
            TAPS=taps.shape[1], SILU=silu, TIME=TIME, WIDTH=WIDTH, num_warps=WARPS,
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
    tiles = triton.cdiv(length + n_taps - 1, TIME_BACK)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    d_history = torch.empty(history.shape, dtype=torch.float32, device=x.device)
    partial = torch.empty(batch * tiles, n_taps + 1, width, dtype=torch.float32, device=x.device)
    with on_device_of(x):
        convolution_backward[(batch * tiles, triton.cdiv(width, WIDTH_BACK))](
            slope, flat, *_plain(taps, history, bias, segments), dx, d_history, partial, length, width, copies,
            *slope.stride()[:2], *flat.stride()[:2], tiles,
            TAPS=n_taps, SILU=silu, TIME=TIME_BACK, WIDTH=WIDTH_BACK, num_warps=WARPS_BACK,
        )  # fmt: skip
    sums = partial.sum(0).view(n_taps + 1, taps.shape[0], copies).sum(2)
    return dx, sums[:-1].t().contiguous(), d_history, sums[-1].clone()


def _plain(
    taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    ids = None if segments is None else segments.long().contiguous()
    return taps.contiguous(), history.contiguous(), None if bias is None else bias.contiguous(), ids


def builds() -> list[Build]:
    sizes = numbers(i32="length width copies batch_stride step_stride tiles")
    found = []
    for taps, segments, silu in ((4, None, True), (4, "*i64", True), (3, None, False)):
        given = {**pointers(bf16="x", fp32="taps history bias"), **sizes, "segments": segments}
        fixed = {"TAPS": taps, "SILU": silu}
        ahead = {**given, **fixed, **pointers(bf16="y"), "TIME": TIME, "WIDTH": WIDTH}
        back = {
            **given,
            **fixed,
            **pointers(bf16="grad dx", fp32="d_history partial"),
            "TIME": TIME_BACK,
            "WIDTH": WIDTH_BACK,
        }
        back |= numbers(i32="grad_batch_stride grad_step_stride")
        label = f"{taps} taps{', SiLU' if silu else ''}{', packed' if segments else ''}"
        found.append(Build(convolution_forward, ahead, WARPS, label=label))
        found.append(Build(convolution_backward, back, WARPS_BACK, label=label))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    x = torch.linspace(-2, 3, 2 * 37 * 150, device=device).sin().view(2, 37, 150)
    taps, history, bias = x[0, :4].t().cos(), x[:, :3].cos(), x[0, 5].cos()
    ids = (torch.arange(37, device=device) // 9).expand(2, 37)
    return [(x, taps, history, bias, ids, True), (x.bfloat16(), taps, history, None, None, False)]
