"""The launches of the convolution in Triton (triton_kernels.py).

The gradients of the taps and the bias are summed over the steps of a program, and then over programs in their order:
the same bits on every run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
from torch import Tensor

from statewise.kernels.gpu import on_device_of
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.triton_vectors import are_eighths
from statewise.kernels.short_convolution import pytorch
from statewise.kernels.short_convolution.triton_kernels import convolution_backward, convolution_forward
from statewise.kernels.stored import plain_steps

# Of a program the channels, the warps, and the steps that are loaded at one time. A thread has four channels, a vector
# of what is stored, so that all that the backward keeps of them fits its registers; of more taps than few, it has one,
# and half as many steps
AHEAD = (256, 2, 4)
BACK = (256, 2, 4)
_FEW = 4
MOST_TAPS = 8  # whose inputs a thread holds
_STEPS = (64, 32, 16)  # of a program: the more, the fewer are read by two, and the fewer sums go to memory
_PROGRAMS = 1024  # that keep a large card busy: with fewer than these, each has fewer steps


def refusal(
    x: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None, silu: bool
) -> str | None:
    if taps.shape[1] > MOST_TAPS:
        return f"it has {taps.shape[1]} taps, and the kernel takes {MOST_TAPS} at most"
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
            TAPS=taps.shape[1], SILU=silu, EIGHTHS=are_eighths(width, *flat.stride()[:2]), WIDTH=block,
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
            TAPS=n_taps, SILU=silu, EIGHTHS=are_eighths(width, *strides), WIDTH=block, AT_ONCE=at_once,
            num_warps=warps,
        )  # fmt: skip
    sums = partial.sum(0)
    if copies > 1:
        sums = sums.view(n_taps + 1, taps.shape[0], copies).sum(2)
    return dx, sums[:-1].t().contiguous(), d_history, sums[-1].clone()


def _shape(chosen: tuple[int, int, int], n_taps: int) -> tuple[int, int, int]:
    width, _, at_once = chosen
    return chosen if n_taps <= _FEW else (width, width // 32, at_once // 2)


def _tiles(batch: int, length: int, blocks: int) -> tuple[int, int]:
    """The steps of a program, and into how many programs that cuts a sequence: from the shapes alone."""
    for steps in _STEPS:
        tiles = triton.cdiv(length, steps)
        if batch * tiles * blocks >= _PROGRAMS:
            break
    return steps, tiles


def _plain(
    taps: Tensor, history: Tensor, bias: Tensor | None, segments: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    ids = None if segments is None else segments.long().contiguous()
    return taps.contiguous(), history.contiguous(), None if bias is None else bias.contiguous(), ids


def builds() -> list[Build]:
    sizes = numbers(i32="length width copies batch_stride step_stride tiles steps grad_batch_stride grad_step_stride")
    found = []
    for kind, taps, segments, silu, eighths in (
        ("bf16", 4, None, True, True),
        *(
            (kind, taps, "*i64", True, eighths)
            for kind in ("bf16", "fp16", "fp32")
            for taps in (_FEW, MOST_TAPS)
            for eighths in (True, False)
        ),
        *(("bf16", taps, "*i64", False, False) for taps in (1, 2, 3)),
    ):
        given: dict[str, Any] = {
            **pointers(**{kind: "x y grad dx"}),
            **pointers(fp32="taps history bias d_history partial"),
            **sizes,
        }
        given |= {"TAPS": taps, "SILU": silu, "EIGHTHS": eighths, "segments": segments}
        label = f"{kind}, {taps} taps{', SiLU' if silu else ''}{', packed' if segments else ''}"
        label += "" if eighths else ", any size"
        for kernel, shapes in ((convolution_forward, AHEAD), (convolution_backward, BACK)):
            width, warps, at_once = _shape(shapes, taps)
            given |= {"WIDTH": width, "AT_ONCE": at_once}
            found.append(Build(kernel, {key: given[key] for key in kernel.arg_names}, warps, label=label))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    x = torch.linspace(-2, 3, 2 * 37 * 150, device=device).sin().view(2, 37, 150)
    taps, history, bias = x[0, :4].t().cos(), x[:, :3].cos(), x[0, 5].cos()
    ids = (torch.arange(37, device=device) // 9).expand(2, 37)
    return [(x, taps, history, bias, ids, True), (x.bfloat16(), taps, history, None, None, False)]
