"""RMSNorm, with a gate or without, and its adjoint in Triton.

One pass over x (and z) and one over x, z and dy for the gradients; where a group is too wide to stay in registers, the
second look at it finds it in the cache. The gradient of the weight is summed over the rows of a program, and then over
programs in their order, which depend on the shapes alone: the same bits on every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.gpu import on_device_of
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.rms_norm import pytorch
from statewise.kernels.rms_norm.native import NO_GATE
from statewise.kernels.stored import plain_rows

_SHARES = 256  # of the rows, each with a gradient of the weight of its own


class Tile(NamedTuple):
    """What a program holds at one time: ``rows`` of ``width`` features of a group, and its warps."""

    rows: int
    width: int
    warps: int
    whole: bool  # whether that is all of a group; else its features are walked through twice, the second time cached


TILES = (Tile(2, 256, 2, True), Tile(2, 1024, 8, True), Tile(2, 1024, 16, False))


@triton.jit
def norm_forward(
    x, z, weight, y, n_rows, x_stride, z_stride, width, inverse, eps,
    GATE: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """x, z (n_rows, n_groups * width) of any stride; weight (n_groups * width,); y in rows side by side."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * width
    total = tl.num_programs(1).to(tl.int64) * width
    is_row = rows < n_rows
    squares = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(0, WIDTH if WHOLE else width, WIDTH):
        column = start + tl.arange(0, WIDTH).to(tl.int64)
        real = is_row[:, None] & (column < width)[None, :]
        u = tl.load(x + rows[:, None] * x_stride + (first + column)[None, :], mask=real, other=0.0).to(tl.float32)
        if GATE == 1:
            raw = tl.load(z + rows[:, None] * z_stride + (first + column)[None, :], mask=real, other=0.0)
            u = u * _silu(raw.to(tl.float32))
        squares += u * u
    r = tl.rsqrt(tl.sum(squares, 1) * inverse + eps)
    for start in range(0, WIDTH if WHOLE else width, WIDTH):
        column = start + tl.arange(0, WIDTH).to(tl.int64)
        real = is_row[:, None] & (column < width)[None, :]
        u = tl.load(x + rows[:, None] * x_stride + (first + column)[None, :], mask=real, other=0.0).to(tl.float32)
        w = tl.load(weight + first + column, mask=column < width, other=0.0).to(tl.float32)
        out = u * r[:, None] * w[None, :]
        if GATE != 0:
            raw = tl.load(z + rows[:, None] * z_stride + (first + column)[None, :], mask=real, other=0.0)
            out = out * _silu(raw.to(tl.float32))
        at = rows[:, None] * total + (first + column)[None, :]
        tl.store(y + at, out.to(y.dtype.element_ty), mask=real)


@triton.jit
def norm_backward(
    grad, x, z, weight, dx, dz, partial, n_rows, grad_stride, x_stride, z_stride, width, tiles, inverse, eps,
    GATE: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx, dz as x, in rows side by side; partial (programs, n_groups * width), zeros: each of ``tiles * ROWS`` rows.

    With u what is normed, n = r u and a = w dy (times a gate behind it): du = r (a - n mean(n a)).
    """
    share = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * width
    total = tl.num_programs(1).to(tl.int64) * width
    d_weight = tl.zeros((WIDTH,), tl.float32)
    for tile in range(0, tiles):
        rows = (share * tiles + tile) * ROWS + tl.arange(0, ROWS).to(tl.int64)
        is_row = rows < n_rows
        squares = tl.zeros((ROWS, WIDTH), tl.float32)
        along = tl.zeros((ROWS, WIDTH), tl.float32)
        for start in range(0, WIDTH if WHOLE else width, WIDTH):
            column = start + tl.arange(0, WIDTH).to(tl.int64)
            real = is_row[:, None] & (column < width)[None, :]
            u = tl.load(x + rows[:, None] * x_stride + (first + column)[None, :], mask=real, other=0.0).to(tl.float32)
            a = tl.load(grad + rows[:, None] * grad_stride + (first + column)[None, :], mask=real, other=0.0)
            a = a.to(tl.float32) * tl.load(weight + first + column, mask=column < width, other=0.0)[None, :]
            if GATE != 0:
                raw = tl.load(z + rows[:, None] * z_stride + (first + column)[None, :], mask=real, other=0.0)
                gate = _silu(raw.to(tl.float32))
                if GATE == 1:
                    u = u * gate
                else:
                    a = a * gate
            squares += u * u
            along += u * a
        r = tl.rsqrt(tl.sum(squares, 1) * inverse + eps)
        mean = r * tl.sum(along, 1) * inverse
        for start in range(0, WIDTH if WHOLE else width, WIDTH):
            column = start + tl.arange(0, WIDTH).to(tl.int64)
            inside = column < width
            real = is_row[:, None] & inside[None, :]
            x_ = tl.load(x + rows[:, None] * x_stride + (first + column)[None, :], mask=real, other=0.0).to(tl.float32)
            g = tl.load(grad + rows[:, None] * grad_stride + (first + column)[None, :], mask=real, other=0.0)
            g = g.to(tl.float32)
            w = tl.load(weight + first + column, mask=inside, other=0.0).to(tl.float32)
            at = rows[:, None] * total + (first + column)[None, :]
            u = x_
            outer = g
            if GATE != 0:
                raw = tl.load(z + rows[:, None] * z_stride + (first + column)[None, :], mask=real, other=0.0)
                raw = raw.to(tl.float32)
                sigmoid = tl.sigmoid(raw)
                slope = sigmoid * (1.0 + raw * (1.0 - sigmoid))
                if GATE == 1:
                    u = x_ * (raw * sigmoid)
                else:
                    outer = g * (raw * sigmoid)
            normed = u * r[:, None]
            du = (outer * w[None, :] - normed * mean[:, None]) * r[:, None]
            if GATE == 1:
                tl.store(dz + at, (du * x_ * slope).to(dz.dtype.element_ty), mask=real)
                du = du * (raw * sigmoid)
            if GATE == 2:
                tl.store(dz + at, (g * normed * w[None, :] * slope).to(dz.dtype.element_ty), mask=real)
            tl.store(dx + at, du.to(dx.dtype.element_ty), mask=real)
            here = tl.sum(outer * normed, 0)
            if WHOLE:
                d_weight += here
            else:
                so_far = partial + share * total + first + column
                tl.store(so_far, tl.load(so_far, mask=inside, other=0.0) + here, mask=inside)
    if WHOLE:
        column = tl.arange(0, WIDTH).to(tl.int64)
        tl.store(partial + share * total + first + column, d_weight, mask=column < width)


@triton.jit
def _silu(m):
    return m * tl.sigmoid(m)


def tile_for(width: int) -> Tile:
    return next((tile for tile in TILES if width <= tile.width), TILES[-1])


def refusal(x: Tensor, weight: Tensor, eps: float) -> str | None:
    return None


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return normed(x, None, weight, eps) if x.numel() else pytorch.forward(x, weight, eps)


def backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if not x.numel():
        return pytorch.backward(grad, x, weight, eps)
    dx, _, d_weight = gradients(grad, x, None, weight, eps)
    return dx, d_weight


def normed(
    x: Tensor, z: Tensor | None, weight: Tensor, eps: float, *, n_groups: int = 1, gate: int = NO_GATE
) -> Tensor:
    """x, z: (..., width), of the same dtype and not empty; weight: (width,)."""
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    rows, gates = plain_rows(x), None if z is None else plain_rows(z)
    width = rows.shape[1] // n_groups
    tile = tile_for(width)
    with on_device_of(x):
        norm_forward[(triton.cdiv(rows.shape[0], tile.rows), n_groups)](
            rows, gates, weight.contiguous(), y, rows.shape[0], rows.stride(0), 0 if gates is None else gates.stride(0),
            width, 1 / width, eps,
            GATE=gate, WHOLE=tile.whole, ROWS=tile.rows, WIDTH=tile.width, num_warps=tile.warps,
        )  # fmt: skip
    return y


def gradients(
    grad: Tensor, x: Tensor, z: Tensor | None, weight: Tensor, eps: float, *, n_groups: int = 1, gate: int = NO_GATE
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of x, z and weight."""
    rows, gates, slope = plain_rows(x), None if z is None else plain_rows(z), plain_rows(grad)
    dx = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    dz = None if z is None else torch.empty(z.shape, dtype=z.dtype, device=z.device)
    n_rows, width = rows.shape[0], rows.shape[1] // n_groups
    tile = tile_for(width)
    tiles = triton.cdiv(triton.cdiv(n_rows, tile.rows), _SHARES)
    shares = triton.cdiv(n_rows, tile.rows * tiles)
    partial = torch.zeros(shares, rows.shape[1], dtype=torch.float32, device=x.device)
    with on_device_of(x):
        norm_backward[(shares, n_groups)](
            slope, rows, gates, weight.contiguous(), dx, dz, partial, n_rows, slope.stride(0), rows.stride(0),
            0 if gates is None else gates.stride(0), width, tiles, 1 / width, eps,
            GATE=gate, WHOLE=tile.whole, ROWS=tile.rows, WIDTH=tile.width, num_warps=tile.warps,
        )  # fmt: skip
    return dx, dz, partial.sum(0)


GATES = ("", "gate first, ", "gate last, ")


def builds_with(gate: int) -> list[Build]:
    given = {**pointers(bf16="x", fp32="weight"), "z": "*bf16" if gate else None, "GATE": gate}
    given |= numbers(i32="n_rows x_stride z_stride width", fp32="inverse eps")
    ahead = {**given, **pointers(bf16="y")}
    back = {**given, **pointers(bf16="grad dx", fp32="partial"), "dz": given["z"]}
    back |= numbers(i32="grad_stride tiles")
    found = []
    for tile in TILES:
        fixed = {"WHOLE": tile.whole, "ROWS": tile.rows, "WIDTH": tile.width}
        label = f"{GATES[gate]}{tile.rows} x {tile.width}{'' if tile.whole else ' of more'}"
        found.append(Build(norm_forward, {**ahead, **fixed}, tile.warps, label=label))
        found.append(Build(norm_backward, {**back, **fixed}, tile.warps, label=label))
    return found


def builds() -> list[Build]:
    return builds_with(NO_GATE)


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    wide = torch.linspace(-2, 3, 3 * 5 * 300, device=device).sin().view(3, 5, 300)
    x, weight = wide[..., :290], wide[0, 0, :290].cos()
    return [(x.to(dtype), weight, 1e-5) for dtype in (torch.float32, torch.bfloat16)]
