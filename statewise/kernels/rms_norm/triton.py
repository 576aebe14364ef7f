"""RMSNorm, with a gate or without, and its adjoint in Triton.

One pass over x (and z) and one over x, z and dy for the gradients; where a group is too wide to stay in registers, a
second look at it finds it in the cache. The gradient of the weight is summed over the rows of a program, and then over
programs in their order, which depend on the shapes alone: the same bits on every run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.gpu import on_device_of, options
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.triton_vectors import are_eighths, eighths
from statewise.kernels.rms_norm import pytorch
from statewise.kernels.rms_norm.native import NO_GATE
from statewise.kernels.stored import plain_rows

# of the rows, each with a gradient of the weight of its own, among programs of 8 warps: two at one time on each of the
# 132 processors of a large card, which is what the registers allow; of fewer warps there are more shares, of more fewer
_SHARES = 264


class Tile(NamedTuple):
    """What a program holds at one time: ``rows`` of ``width`` features of a group, and its warps."""

    rows: int
    width: int
    warps: int
    whole: bool  # whether that is all of a group; else its features are walked through twice, the second time cached


TILES = (
    Tile(4, 256, 2, True),
    Tile(2, 1024, 4, True),
    Tile(1, 2048, 4, True),
    Tile(1, 4096, 8, True),
    Tile(1, 8192, 16, True),
    Tile(1, 4096, 8, False),
)
_ONE_BY_ONE = Tile(1, 2048, 8, False)


@triton.jit
def norm_forward(
    x, z, weight, y, n_rows, x_stride, z_stride, width, inverse, eps,
    GATE: tl.constexpr, EIGHTHS: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """x, z (n_rows, n_groups * width) of any stride; weight (n_groups * width,); y in rows side by side."""
    if EIGHTHS:
        x_stride, z_stride, width = eighths(x_stride), eighths(z_stride), eighths(width)
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * width
    total = tl.num_programs(1).to(tl.int64) * width
    is_row = rows < n_rows
    column = tl.arange(0, WIDTH).to(tl.int64)
    if WHOLE:
        real = is_row[:, None] & (column < width)[None, :]
        u = _load(x, rows, x_stride, first + column, real).to(tl.float32)
        w = tl.load(weight + first + column, mask=column < width, other=0.0).to(tl.float32)
        if GATE != 0:
            gate = _silu(_load(z, rows, z_stride, first + column, real).to(tl.float32))
            if GATE == 1:
                u = u * gate
        r = tl.rsqrt(tl.sum(u * u, 1) * inverse + eps)
        out = u * r[:, None] * w[None, :]
        if GATE == 2:
            out = out * gate
        tl.store(y + rows[:, None] * total + (first + column)[None, :], out.to(y.dtype.element_ty), mask=real)
    else:
        squares = tl.zeros((ROWS, WIDTH), tl.float32)
        for start in range(0, width, WIDTH):
            here = start + column
            real = is_row[:, None] & (here < width)[None, :]
            u = _load(x, rows, x_stride, first + here, real).to(tl.float32)
            if GATE == 1:
                u = u * _silu(_load(z, rows, z_stride, first + here, real).to(tl.float32))
            squares += u * u
        r = tl.rsqrt(tl.sum(squares, 1) * inverse + eps)
        for start in range(0, width, WIDTH):
            here = start + column
            real = is_row[:, None] & (here < width)[None, :]
            u = _load(x, rows, x_stride, first + here, real).to(tl.float32)
            w = tl.load(weight + first + here, mask=here < width, other=0.0).to(tl.float32)
            out = u * r[:, None] * w[None, :]
            if GATE != 0:
                out = out * _silu(_load(z, rows, z_stride, first + here, real).to(tl.float32))
            tl.store(y + rows[:, None] * total + (first + here)[None, :], out.to(y.dtype.element_ty), mask=real)


@triton.jit
def norm_backward(
    grad, x, z, weight, dx, dz, partial, n_rows, grad_stride, x_stride, z_stride, width, tiles, inverse, eps,
    GATE: tl.constexpr, EIGHTHS: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """dx, dz as x, in rows side by side; partial (programs, n_groups * width): each of ``tiles * ROWS`` rows. It has to
    be of zeros unless a group is WHOLE.

    With u what is normed, n = r u and a = w dy (times a gate behind it): du = r (a - n mean(n a)).
    """
    if EIGHTHS:
        grad_stride, x_stride = eighths(grad_stride), eighths(x_stride)
        z_stride, width = eighths(z_stride), eighths(width)
    share = tl.program_id(0).to(tl.int64)
    first = tl.program_id(1).to(tl.int64) * width
    total = tl.num_programs(1).to(tl.int64) * width
    column = tl.arange(0, WIDTH).to(tl.int64)
    so_far = partial + share * total + first
    rows = share * tiles * ROWS + tl.arange(0, ROWS).to(tl.int64)
    if WHOLE:
        inside = column < width
        w = tl.load(weight + first + column, mask=inside, other=0.0).to(tl.float32)
        d_weight = tl.zeros((WIDTH,), tl.float32)
        real = (rows < n_rows)[:, None] & inside[None, :]
        loaded = _operands(grad, x, z, rows, grad_stride, x_stride, z_stride, first + column, real, GATE)
        for tile in range(0, tiles):
            is_row = rows < n_rows
            real = is_row[:, None] & inside[None, :]
            at = rows[:, None] * total + (first + column)[None, :]
            rows += ROWS
            ahead = ((rows < n_rows) & (tile + 1 < tiles))[:, None] & inside[None, :]  # under way during this tile
            then = _operands(grad, x, z, rows, grad_stride, x_stride, z_stride, first + column, ahead, GATE)
            u, outer = _inner(loaded, GATE)
            # of a row that is not there 1: with eps = 0 it would be infinite, and 0 times that is no number
            r = tl.where(is_row, tl.rsqrt(tl.sum(u * u, 1) * inverse + eps), 1.0)
            mean = r * tl.sum(u * (outer * w[None, :]), 1) * inverse
            d_weight += tl.sum(_store_slopes(loaded, w, r, mean, dx, dz, at, real, GATE), 0)
            loaded = then
        tl.store(so_far + column, d_weight, mask=inside)
    else:
        for _ in range(0, tiles):
            is_row = rows < n_rows
            squares = tl.zeros((ROWS, WIDTH), tl.float32)
            along = tl.zeros((ROWS, WIDTH), tl.float32)
            for start in range(0, width, WIDTH):
                here = start + column
                real = is_row[:, None] & (here < width)[None, :]
                loaded = _operands(grad, x, z, rows, grad_stride, x_stride, z_stride, first + here, real, GATE)
                w = tl.load(weight + first + here, mask=here < width, other=0.0).to(tl.float32)
                u, outer = _inner(loaded, GATE)
                squares += u * u
                along += u * (outer * w[None, :])
            r = tl.where(is_row, tl.rsqrt(tl.sum(squares, 1) * inverse + eps), 1.0)
            mean = r * tl.sum(along, 1) * inverse
            for start in range(0, width, WIDTH):
                here = start + column
                real = is_row[:, None] & (here < width)[None, :]
                loaded = _operands(grad, x, z, rows, grad_stride, x_stride, z_stride, first + here, real, GATE)
                w = tl.load(weight + first + here, mask=here < width, other=0.0).to(tl.float32)
                at = rows[:, None] * total + (first + here)[None, :]
                d_weight = tl.sum(_store_slopes(loaded, w, r, mean, dx, dz, at, real, GATE), 0)
                d_weight += tl.load(so_far + here, mask=here < width, other=0.0)
                tl.store(so_far + here, d_weight, mask=here < width)
            rows += ROWS


@triton.jit
def _load(m, rows, stride, columns, real):
    return tl.load(m + rows[:, None] * stride + columns[None, :], mask=real, other=0.0)


@triton.jit
def _operands(grad, x, z, rows, grad_stride, x_stride, z_stride, columns, real, GATE: tl.constexpr):
    """Numbers of x, dy and, where there is a gate, z, as they are stored."""
    found = (_load(x, rows, x_stride, columns, real), _load(grad, rows, grad_stride, columns, real))
    if GATE != 0:
        found = found + (_load(z, rows, z_stride, columns, real),)  # type: ignore[assignment]
    return found


@triton.jit
def _inner(loaded, GATE: tl.constexpr):
    """What is normed, and the gradient of what the norm gives, as multiplied by the weight."""
    u, outer = loaded[0].to(tl.float32), loaded[1].to(tl.float32)
    if GATE == 1:
        u = u * _silu(loaded[2].to(tl.float32))
    if GATE == 2:
        outer = outer * _silu(loaded[2].to(tl.float32))
    return u, outer


@triton.jit
def _store_slopes(loaded, w, r, mean, dx, dz, at, real, GATE: tl.constexpr):
    """Stores the gradients of x and z, and gives that of the weight in each row."""
    u, outer = _inner(loaded, GATE)
    normed = u * r[:, None]
    du = (outer * w[None, :] - normed * mean[:, None]) * r[:, None]
    if GATE != 0:
        raw = loaded[2].to(tl.float32)
        sigmoid = tl.sigmoid(raw)
        slope = sigmoid * (1.0 + raw * (1.0 - sigmoid))
        if GATE == 1:
            d_gate = du * loaded[0].to(tl.float32)
            du = du * (raw * sigmoid)
        else:
            d_gate = loaded[1].to(tl.float32) * normed * w[None, :]
        tl.store(dz + at, (d_gate * slope).to(dz.dtype.element_ty), mask=real)
    tl.store(dx + at, du.to(dx.dtype.element_ty), mask=real)
    return outer * normed


@triton.jit
def _silu(m):
    return m * tl.sigmoid(m)


def tiles_of(gate: int, narrow: bool, whole_vectors: bool) -> tuple[Tile, ...]:
    """The last is for wider groups. A gate's gradients, and numbers that come one by one or have 32 bits (not
    ``narrow``), need so many registers that the widest whole groups would spill."""
    if gate == NO_GATE and narrow and whole_vectors:
        return TILES
    widest = 4096 if gate == NO_GATE or whole_vectors else 2048
    whole = tuple(tile for tile in TILES if tile.whole and tile.width <= widest)
    return *whole, TILES[-1] if whole_vectors else _ONE_BY_ONE


def tile_for(width: int, gate: int, dtype: torch.dtype, whole_vectors: bool) -> Tile:
    tiles = tiles_of(gate, dtype.itemsize == 2, whole_vectors)
    return next((tile for tile in tiles if width <= tile.width), tiles[-1])


def _warps_back(tile: Tile, gate: int) -> int:
    """A gate's gradients are much arithmetic, for which twice the warps have half of the registers' contents each."""
    return tile.warps if gate == NO_GATE else 2 * tile.warps


def _limit(warps: int, narrow: bool, whole_vectors: bool) -> int | None:
    """Registers of a thread at most. Numbers that come one by one or have 32 bits may have all there are; without a
    limit the assembler spills some of theirs to have fewer."""
    return None if narrow and whole_vectors else min(255, 2048 // warps)


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
    strides = (rows.stride(0), 0 if gates is None else gates.stride(0))
    are_whole = are_eighths(width, *strides)
    tile = tile_for(width, gate, x.dtype, are_whole)
    with on_device_of(x):
        norm_forward[(triton.cdiv(rows.shape[0], tile.rows), n_groups)](
            rows, gates, weight.contiguous(), y, rows.shape[0], *strides, width, 1 / width, eps,
            GATE=gate, EIGHTHS=are_whole, WHOLE=tile.whole, ROWS=tile.rows, WIDTH=tile.width,
            **options(x.device, tile.warps, _limit(tile.warps, x.dtype.itemsize == 2, are_whole)),
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
    strides = (slope.stride(0), rows.stride(0), 0 if gates is None else gates.stride(0))
    are_whole = are_eighths(width, *strides)
    tile = tile_for(width, gate, x.dtype, are_whole)
    warps = _warps_back(tile, gate)
    tiles = triton.cdiv(triton.cdiv(n_rows, tile.rows), max(1, _SHARES * 8 // warps))
    shares = triton.cdiv(n_rows, tile.rows * tiles)
    make = torch.empty if tile.whole else torch.zeros
    partial = make(shares, rows.shape[1], dtype=torch.float32, device=x.device)
    with on_device_of(x):
        norm_backward[(shares, n_groups)](
            slope, rows, gates, weight.contiguous(), dx, dz, partial, n_rows, *strides, width, tiles, 1 / width, eps,
            GATE=gate, EIGHTHS=are_whole, WHOLE=tile.whole, ROWS=tile.rows, WIDTH=tile.width,
            **options(x.device, warps, _limit(warps, x.dtype.itemsize == 2, are_whole)),
        )  # fmt: skip
    return dx, dz, partial.sum(0)


GATES = ("", "gate first, ", "gate last, ")


# Kinds of numbers, and whether rows are whole vectors of eight
_BUILT = tuple((kind, whole_vectors) for kind in ("bf16", "fp16", "fp32") for whole_vectors in (True, False))


def builds_with(gate: int) -> list[Build]:
    found = []
    for kind, whole_vectors in _BUILT:
        given = {
            **pointers(**{kind: "x y grad dx"}),
            **pointers(fp32="weight partial"),
            "GATE": gate,
            "EIGHTHS": whole_vectors,
        }
        given |= dict.fromkeys(("z", "dz"), f"*{kind}" if gate else None)
        given |= numbers(i32="n_rows x_stride z_stride grad_stride width tiles", fp32="inverse eps")
        for tile in tiles_of(gate, kind != "fp32", whole_vectors):
            given |= {"WHOLE": tile.whole, "ROWS": tile.rows, "WIDTH": tile.width}
            label = f"{kind}, {GATES[gate]}{tile.rows} x {tile.width}{'' if tile.whole else ' of more'}"
            label += "" if whole_vectors else ", any size"
            for kernel, warps in ((norm_forward, tile.warps), (norm_backward, _warps_back(tile, gate))):
                own = {key: given[key] for key in kernel.arg_names}
                limit = _limit(warps, kind != "fp32", whole_vectors)
                found.append(Build(kernel, own, warps, registers=limit, label=label))
    return found


def builds() -> list[Build]:
    return builds_with(NO_GATE)


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    wide = torch.linspace(-2, 3, 3 * 5 * 300, device=device).sin().view(3, 5, 300)
    x, weight = wide[..., :290], wide[0, 0, :290].cos()
    return [(x.to(dtype), weight, 1e-5) for dtype in (torch.float32, torch.bfloat16)]
