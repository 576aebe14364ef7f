"""The launches of a step's kernels in Triton, with their tiles."""

from __future__ import annotations

import itertools
import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from statewise.kernels.gpu import on_device_of, options
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.step import MAX_ROWS, MULTIPLE
from statewise.kernels.step import triton_kernels as kernels
from statewise.kernels.step.pytorch import IntegerMatrix, Layer, Norm, Shift, pack, trial

__all__ = ["builds", "holds", "mamba2_step", "norm_matvec", "refusal", "samples", "trial"]

MAX_K = 8192  # numbers of a row of a weight, which a program holds whole
MAX_TAPS = 4
MAX_STATES = 256  # of a head's channel; MULTIPLE divides how many there are
_PROGRAMS = 264  # at least, two for each processor of the largest cards
_CHANNELS = 512  # that a program shifts
_WIDE = 8208  # columns of a matrix alone in the samples: programs of 16 warps


class Tile(NamedTuple):
    """rows: of the weight that a program holds; k: numbers of each, or bytes of 4 bits; warps: its own"""

    rows: int
    k: int
    warps: int


class StateTile(NamedTuple):
    """p, n: how much of a head's width and of its states a program holds; warps: its own"""

    p: int
    n: int
    warps: int


# By the bits of a weight's number, and whether several rows of x pass by each: a program has the first tile that holds
# a row. It holds few rows of a weight, so that the smallest models too have programs enough. In float32 and bfloat16 a
# thread holds up to 64 numbers. Each integer gets a register as it is multiplied, and rows of x take some too
_FLOATS = {
    16: (Tile(8, 1024, 4), Tile(4, 2048, 4), Tile(4, 4096, 8), Tile(2, 8192, 16)),
    32: (Tile(8, 1024, 4), Tile(4, 2048, 4), Tile(4, 4096, 8), Tile(1, 8192, 16)),
}
TILES = {
    **{(bits, several): tiles for bits, tiles in _FLOATS.items() for several in (False, True)},
    (8, False): (Tile(4, 2048, 4), Tile(2, 4096, 4), Tile(2, 8192, 8), Tile(2, 16_384, 16)),
    (8, True): (Tile(2, 2048, 4), Tile(2, 4096, 8), Tile(2, 8192, 16), Tile(1, 16_384, 16)),
    (4, False): (Tile(4, 1024, 4), Tile(2, 2048, 4), Tile(2, 4096, 8), Tile(2, 8192, 16)),
    (4, True): (Tile(2, 1024, 4), Tile(2, 2048, 8), Tile(1, 4096, 16), Tile(1, 8192, 16)),
}
# The first that holds all states and leaves every processor its programs, else the last that holds them
STATE_TILES = (StateTile(64, 64, 4), StateTile(32, 128, 4), StateTile(8, 128, 2), StateTile(16, 256, 4))


def tile_for(k: int, bits: int, n_rows: int) -> Tile:
    """k: columns of the weight, a multiple of 16; bits: of a number; n_rows: of x"""
    stored = k if bits > 4 else -(-k // 64) * 32
    return next(tile for tile in TILES[bits, n_rows > 1] if stored <= tile.k)


def _limit(tile: Tile, bits: int) -> int | None:
    """How many registers a thread of 16 warps, or for integers of any, may have: all there are. Without a number the
    assembler would spill some, to have room for a second program."""
    return min(255, 2048 // tile.warps) if tile.warps == 16 or bits <= 8 else None


def refusal(*given: Any) -> str | None:
    return None


def holds(k: int, groups: int = 1) -> bool:
    """Whether a layer's weight with k columns, behind a norm of this many groups, has a tile."""
    return k <= MAX_K and k % (groups * MULTIPLE) == 0


def norm_matvec(
    x: Tensor,
    norm: Norm | None,
    weight: Tensor | IntegerMatrix,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    shift: Shift | None = None,
    *,
    out: Tensor,
) -> Tensor:
    """As ``pytorch.py`` has it; all tensors are contiguous."""
    (n_rows, k), n_out = x.shape, out.shape[1]
    if isinstance(weight, IntegerMatrix):
        data, scales, bits = weight.data, weight.scales, weight.bits
    else:
        data, scales, bits = weight, None, 8 * weight.element_size()
    tile = tile_for(k, bits, n_rows)
    if shift is None or not shift.inputs.numel():
        taps, programs, sizes = 1, 0, (0, 0, 0, 0)
        state: tuple[Tensor | None, ...] = (None, None)
    else:
        width = shift.inputs.shape[2]
        programs = triton.cdiv(width, _CHANNELS)
        taps, state = shift.inputs.shape[1] + 1, (shift.inputs, shift.projected)
        sizes = (programs, width, shift.first, shift.projected.stride(0))
    norm_weight, eps, groups, offset = (None, 0.0, 1, 0.0) if norm is None else norm
    group = k // groups
    with on_device_of(x):
        kernels.norm_matvec[(programs + triton.cdiv(n_out, tile.rows),)](
            x, norm_weight, data, scales, bias, residual, out, *state, n_out, k, group, 1 / group, eps, float(offset),
            *sizes,
            BITS=bits, ROWS=n_rows, GROUPS=groups, TAPS=taps, M=tile.rows, K=tile.k, C=_CHANNELS,
            **options(x.device, tile.warps, _limit(tile, bits)),
        )  # fmt: skip
    return out


def state_tile(n_rows: int, heads: int, d_head: int, d_state: int) -> StateTile:
    found = [tile for tile in STATE_TILES if d_state <= tile.n]
    if d_state <= 128:
        found.remove(STATE_TILES[-1])
    return next((tile for tile in found if n_rows * heads * triton.cdiv(d_head, tile.p) >= _PROGRAMS), found[-1])


def mamba2_step(projected: Tensor, inputs: Tensor, h: Tensor, layer: Layer) -> Tensor:
    """As ``pytorch.py`` has it; all tensors are contiguous."""
    n_rows, heads, d_head, d_state = h.shape
    u = torch.empty(n_rows, heads * d_head, dtype=torch.float32, device=h.device)
    tile = state_tile(n_rows, heads, d_head, d_state)
    with on_device_of(h):
        kernels.mamba2_step[(n_rows * heads, triton.cdiv(d_head, tile.p))](
            projected, inputs, h, layer.taps, layer.bias, layer.A_log, layer.dt_bias, layer.D, u,
            heads, heads // layer.n_groups, d_head, d_state, layer.n_groups, *layer.dt_limit,
            TAPS=layer.taps.shape[1], LIMIT=layer.dt_limit != (0.0, math.inf), P=tile.p, N=tile.n,
            **options(h.device, tile.warps),
        )  # fmt: skip
    return u


def builds() -> list[Build]:
    """Each tile for one row and for several, in each of a product's places that can ask for it; steps of states."""
    found = []
    for (bits, several), tiles in TILES.items():
        for kind, tile in itertools.product(("bf16", "fp16", "fp32"), tiles):
            columns = tile.k * (2 if bits == 4 else 1)
            places = (*(("first", "last") if columns <= MAX_K else ()), *(("alone",) if bits <= 8 else ()))
            if bits <= 8 or (kind == "fp32") == (bits == 32):
                found += [_matvec_build(tile, kind, bits, MAX_ROWS if several else 1, place) for place in places]
    for kind, part in itertools.product(("bf16", "fp16", "fp32"), STATE_TILES):
        given = {**pointers(fp32="inputs h a_log dt_bias skip u"), "TAPS": MAX_TAPS, "LIMIT": True}
        given |= {**dict.fromkeys(("projected", "taps", "conv_bias"), f"*{kind}"), "P": part.p, "N": part.n}
        given |= numbers(i32="heads heads_each d_head d_state groups", fp32="low high")
        label = f"{kind}, {part.p} x {part.n}"
        found.append(Build(kernels.mamba2_step, given, part.warps, sixteens="d_state", label=label))
    return found


def _matvec_build(tile: Tile, kind: str, bits: int, rows: int, place: str) -> Build:
    """place: of the product that begins a layer ("first"), that ends it ("last", with residual and shift, and several
    groups of its norm), or of one "alone", without a norm"""
    behind = place == "last"
    given: dict[str, Any] = dict.fromkeys(("norm_weight", "weight", "bias", "y"), f"*{kind}")
    if place == "alone":
        given["norm_weight"] = None
    given |= {"x": "*fp32" if behind else f"*{kind}", "residual": f"*{kind}" if behind else None}
    given |= {"inputs": "*fp32" if behind else None, "projected": f"*{kind}" if behind else None}
    given |= {"scales": None if bits > 8 else "*bf16", "BITS": bits}
    if bits <= 8:
        given["weight"] = "*i8" if bits == 8 else "*u8"
    sizes = "n_out k group_width shift_programs width first projected_stride"
    given |= numbers(i32=sizes, fp32="inverse eps offset")
    given |= {"ROWS": rows, "GROUPS": 8 if behind else 1, "TAPS": MAX_TAPS if behind else 1}
    given |= {"M": tile.rows, "K": tile.k, "C": _CHANNELS}
    label = f"{kind if bits > 8 else f'int{bits}, {kind}'}, {place}, {rows} tokens, {tile.rows} x {tile.k}"
    sixteens = "k group_width"
    return Build(kernels.norm_matvec, given, tile.warps, registers=_limit(tile, bits), sixteens=sixteens, label=label)


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    """Layers of odd sizes, of which ``trial`` computes a step."""
    full, narrow = torch.float32, torch.bfloat16
    cases = (
        (full, 2, 1, 20, 32, 0),
        (narrow, 3, 2, 16, 16, 0),
        (full, 2, 2, 20, 16, 8),
        (full, 1, 1, 20, 48, 4),
        (narrow, 3, 2, 20, 32, 4),
    )
    return [_sample(device, *sizes) for sizes in cases]


def _sample(
    device: torch.device, dtype: torch.dtype, rows: int, groups: int, d_head: int, d_state: int, bits: int
) -> Any:
    d_model, heads, taps = 48, 4, 4
    d_inner = heads * d_head
    width = d_inner + 2 * groups * d_state

    def numbers_of(*shape: int, scale: float = 1.0, phase: float = 0.0, kind: torch.dtype = dtype) -> Tensor:
        count = torch.arange(math.prod(shape), device=device)
        waves = (count * count % 977).float().mul_(1.7).add_(phase).sin_()  # squares, so that few products cancel
        return waves.mul_(scale).view(shape).to(kind)

    full = torch.float32
    layer = Layer(
        numbers_of(width, taps),
        numbers_of(width, phase=1.0),
        numbers_of(heads, kind=full),
        numbers_of(heads, scale=3.0, phase=-2.0, kind=full),
        numbers_of(heads, phase=0.5, kind=full),
        groups,
        (0.0, math.inf),
    )
    before = Norm(numbers_of(d_model, phase=0.3), 1e-5)
    behind = Norm(numbers_of(d_inner, phase=0.6), 1e-5, groups)
    first = numbers_of(d_inner + width + heads, d_model, scale=0.2)
    second, bias = numbers_of(d_model, d_inner, scale=0.2, phase=0.1), numbers_of(d_model)
    inputs = numbers_of(rows, taps - 1, width, kind=full)
    h = numbers_of(rows, heads, d_head, d_state, kind=full)
    pair = tuple(_integers(m, bits) for m in (first, second)) if bits else (first, second)
    wide = (numbers_of(rows, _WIDE), _integers(numbers_of(3, _WIDE), bits)) if bits else None
    return numbers_of(rows, d_model, phase=2.0), before, pair[0], behind, pair[1], bias, layer, inputs, h, wide


def _integers(m: Tensor, bits: int) -> IntegerMatrix:
    """Integers that fill their bits, with scales that differ."""
    n_rows, n_columns = m.shape
    q = (m * (127 if bits == 8 else 7) / m.abs().max()).round().to(torch.int8)
    scales = torch.arange(n_rows * (1 if bits == 8 else -(-n_columns // 32)), device=m.device).cos() * 0.02
    return pack(q, scales.view(n_rows, -1).bfloat16(), bits)
