"""The diagonal scan in Triton: the states of a program's channels in registers, time walked once, step by step.

More states than a program holds are split over programs, and the parts of y are summed, in their order. It reads
prompts; callers that want gradients have faster ways on a GPU, and its adjoint is that of the definition.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.diagonal_scan.pytorch import backward
from statewise.kernels.diagonal_scan.reference import diagonal_scan_reference
from statewise.kernels.gpu import on_device_of
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.stored import plain

__all__ = ["backward", "builds", "forward", "refusal", "samples", "trial"]

TILES = ((32, 16), (16, 64), (4, 256))  # channels, and states of each
WARPS = 2


@triton.jit
def scan(
    u, A, B, C, D, state, lengths, y, after, length, width, r, n, line,
    WIDTH: tl.constexpr, STATES: tl.constexpr,
):  # fmt: skip
    """u (rows, length, width), y (blocks, rows, length, width), to be summed over blocks of STATES; A, B, C
    (width / r, n) and state, after (rows, width, n): pairs, a channel a line."""
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1).to(tl.int64) * WIDTH + tl.arange(0, WIDTH).to(tl.int64)
    block = tl.program_id(2).to(tl.int64)
    k = block * STATES + tl.arange(0, STATES).to(tl.int64)
    channel = c < width
    inside = channel[:, None] & (k < n)[None, :]
    system = (c.to(tl.int32) // r).to(tl.int64)
    at = system[:, None] * line + k[None, :] * 2
    a, a_im = tl.load(A + at, mask=inside, other=0.0), tl.load(A + (at + 1), mask=inside, other=0.0)
    b, b_im = tl.load(B + at, mask=inside, other=0.0), tl.load(B + (at + 1), mask=inside, other=0.0)
    read, read_im = tl.load(C + at, mask=inside, other=0.0) * 2.0, tl.load(C + (at + 1), mask=inside, other=0.0) * 2.0
    at_state = (row * width + c)[:, None] * line + k[None, :] * 2
    h = tl.load(state + at_state, mask=inside, other=0.0)
    h_im = tl.load(state + (at_state + 1), mask=inside, other=0.0)
    skip = tl.zeros((WIDTH,), tl.float32)
    if D is not None:
        skip = tl.load(D + system, mask=channel & (block == 0), other=0.0)
    end = length
    if lengths is not None:
        end = tl.minimum(tl.load(lengths + row), length).to(tl.int32)
    for t in range(0, end):
        x = tl.load(u + ((row * length + t) * width + c), mask=channel, other=0.0)
        before = h
        h = a * before - a_im * h_im + b * x[:, None]
        h_im = a * h_im + a_im * before + b_im * x[:, None]
        at_step = ((block * tl.num_programs(0) + row) * length + t) * width + c
        tl.store(y + at_step, tl.sum(read * h - read_im * h_im, 1) + skip * x, mask=channel)
    tl.store(after + at_state, h, mask=inside)
    tl.store(after + (at_state + 1), h_im, mask=inside)


def refusal(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> str | None:
    return None


def forward(
    u: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor | None, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    if not u.numel() or not state.numel():
        return diagonal_scan_reference(u, A, B, C, D, state, lengths)
    rows, length, w, r = u.shape
    n = A.shape[1]
    after = torch.empty(state.shape, dtype=state.dtype, device=u.device)
    channels, states = next((tile for tile in TILES if n <= tile[1]), TILES[-1])
    blocks = triton.cdiv(n, states)
    y = torch.zeros(blocks, *u.shape, dtype=u.dtype, device=u.device)
    systems = (torch.view_as_real(plain(m)) for m in (A, B, C))
    others = (None if m is None else plain(m) for m in (D, state, lengths))
    with on_device_of(u):
        scan[(rows, triton.cdiv(w * r, channels), blocks)](
            plain(u), *systems, *others, y, after, length, w * r, r, n, 2 * n,
            WIDTH=channels, STATES=states, num_warps=WARPS,
        )  # fmt: skip
    return y[0] if blocks == 1 else y.sum(0), after


def builds() -> list[Build]:
    given = {**pointers(fp32="u A B C D state y after", i64="lengths"), **numbers(i32="length width r n line")}
    return [
        Build(scan, {**given, "WIDTH": channels, "STATES": states}, WARPS, label=f"{channels} x {states}")
        for channels, states in TILES
    ]


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    u = torch.linspace(-2, 3, 2 * 9 * 10, device=device).sin().view(2, 9, 5, 2)
    real = torch.linspace(-2, 3, 15, device=device).sin().view(5, 3)
    A, B = torch.polar(real.abs(), real * 3), torch.complex(real, real.cos())
    state = torch.linspace(-2, 3, 2 * 10 * 3 * 2, device=device).cos().view(2, 5, 2, 3, 2)
    return [(u, A, B, B * 1j, real[:, 0], state, torch.tensor([9, 4], device=device))]


def trial(path: Any, *sample: Any) -> list[Tensor]:
    """y and the state of a path, or of the definition where there is none."""
    return list(diagonal_scan_reference(*sample) if path is None else path.forward(*sample))
