"""The launches of a step's kernels in Triton, with their tiles."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from statewise.kernels.gpu import on_device_of, options, power_of_two
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.step import MAX_ROWS
from statewise.kernels.step import triton_kernels as kernels
from statewise.kernels.step.pytorch import IntegerMatrix, Layer, Norm, Shift, pack, trial

__all__ = ["builds", "mamba2_step", "norm_matvec", "refusal", "samples", "trial"]

MAX_K = 8192  # numbers of a row of a weight, which a program holds whole
MAX_TAPS = 16
_PROGRAMS = 264  # at least, two for each processor of the largest cards
_REGISTERS = {4: 64, 8: 64, 16: 32}  # of a thread, for weights: by the warps of a program
_INTEGERS = {8: 64, 4: 32}  # bytes of a thread, by their bits: each number gets a register as it is multiplied
_CHANNELS = 512  # that a program shifts
_STATE = 4096  # numbers of a state that a program holds at most
_WIDE = 8200  # columns of a matrix alone in the samples: programs of 16 warps


class Tile(NamedTuple):
    """rows: of the weight that a program holds; k: numbers of each, or bytes of 4 bits, at least; warps: its own"""

    rows: int
    k: int
    warps: int


def tile_for(n_out: int, k: int, bits: int, n_rows: int) -> Tile:
    """As much of the weight as its registers hold, and less where there would be few programs. bits: of a number"""
    if bits in _INTEGERS:
        wide = power_of_two(k if bits == 8 else -(-k // 64) * 32, 64)
        # several rows of x pass by each weight, and take registers: then 16 numbers of a row for a thread instead of 32
        warps = min(16, max(4, power_of_two(k) // (1024 if n_rows == 1 else 512)))
        held = _INTEGERS[bits] // (1 if n_rows == 1 else 4 if bits == 4 and k > 4096 else 2)
        rows = max(1, min(16, warps * 32 * held // wide))
    else:
        wide = power_of_two(k, 64)
        warps = max(4, wide // 512) if wide > 2048 else 4
        registers = _REGISTERS[warps] // (2 if warps == 16 and n_rows > 1 else 1)
        rows = max(1, min(16, warps * registers * 1024 // (wide * bits)))
    while rows > 2 and triton.cdiv(n_out, rows) < _PROGRAMS:
        rows //= 2
    return Tile(rows, wide, warps)


def _limit(tile: Tile) -> int | None:
    """How many registers programs of 16 warps may have. Without a number they would get half as many, and spill."""
    return 128 if tile.warps == 16 else None


def refusal(*given: Any) -> str | None:
    return None


def norm_matvec(
    x: Tensor,
    norm: Norm | None,
    weight: Tensor | IntegerMatrix,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    shift: Shift | None = None,
    *,
    out: Tensor,
    tile: Tile | None = None,
) -> Tensor:
    """As ``pytorch.py`` has it; all tensors are contiguous."""
    (n_rows, k), n_out = x.shape, out.shape[1]
    if isinstance(weight, IntegerMatrix):
        data, scales, bits = weight.data, weight.scales, weight.bits
    else:
        data, scales, bits = weight, None, 8 * weight.element_size()
    tile = tile or tile_for(n_out, k, bits, n_rows)
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
            **options(x.device, tile.warps, _limit(tile)),
        )  # fmt: skip
    return out


def state_tile(n_rows: int, heads: int, d_head: int, d_state: int) -> tuple[int, int, int]:
    """How much of a head's width and states a program has, and its warps: as leaves every processor a program."""
    n = power_of_two(d_state, 16)
    p = min(power_of_two(d_head, 4), max(4, _STATE // n))
    while p > 4 and n_rows * heads * triton.cdiv(d_head, p) < _PROGRAMS:
        p //= 2
    return p, n, 2 if p * n <= 1024 else 4


def mamba2_step(projected: Tensor, inputs: Tensor, h: Tensor, layer: Layer) -> Tensor:
    """As ``pytorch.py`` has it; all tensors are contiguous."""
    n_rows, heads, d_head, d_state = h.shape
    u = torch.empty(n_rows, heads * d_head, dtype=torch.float32, device=h.device)
    p, n, warps = state_tile(n_rows, heads, d_head, d_state)
    with on_device_of(h):
        kernels.mamba2_step[(n_rows * heads, triton.cdiv(d_head, p))](
            projected, inputs, h, layer.taps, layer.bias, layer.A_log, layer.dt_bias, layer.D, u,
            heads, heads // layer.n_groups, d_head, d_state, layer.n_groups, *layer.dt_limit,
            TAPS=layer.taps.shape[1], LIMIT=layer.dt_limit != (0.0, math.inf), P=p, N=n,
            **options(h.device, warps),
        )  # fmt: skip
    return u


def builds() -> list[Build]:
    found = []
    for kind, narrow in (("bf16", True), ("fp32", False)):
        for k in (1024, 2048, 4096, 8192):
            for rows in (1, MAX_ROWS):
                if narrow or k in (2048, 8192):
                    found += [_matvec_build(kind, k, rows, where) for where in ("first", "last")]
        for p, n, warps in ((8, 128, 2), (32, 128, 4), (16, 256, 4), (64, 64, 4)):
            given = {**pointers(fp32="inputs h a_log dt_bias skip u"), "TAPS": 4, "LIMIT": False, "P": p, "N": n}
            given |= dict.fromkeys(("projected", "taps", "conv_bias"), f"*{kind}")
            given |= numbers(i32="heads heads_each d_head d_state groups", fp32="low high")
            label = f"{kind}, {p} x {n}"
            found.append(Build(kernels.mamba2_step, given, warps, sixteens="heads d_head d_state", label=label))
    for bits in _INTEGERS:
        for rows in (1, MAX_ROWS):
            for k in (2048, 4096, 8192):
                found.append(_matvec_build("bf16", k, rows, "first", bits))
                found += [_matvec_build("bf16", k, rows, "last", bits, groups) for groups in (1, 8)]
            found.append(_matvec_build("fp32", 4096, rows, "last", bits))
            found += [_matvec_build(kind, k, rows, "alone", bits) for kind in ("bf16", "fp32") for k in (2048, 16_384)]
    return found


def _matvec_build(kind: str, k: int, rows: int, where: str, bits: int = 0, groups: int = 8) -> Build:
    """where: the product that begins a layer ("first"), that ends it ("last"), with residual and shift, or one
    "alone", without a norm; bits: of integers; groups: of the norm that ends a layer"""
    behind, width = where == "last", bits or (16 if kind == "bf16" else 32)
    tile = tile_for(k if behind else 2**15, k, width, rows)
    given: dict[str, Any] = dict.fromkeys(("norm_weight", "weight", "bias", "y"), f"*{kind}")
    if where == "alone":
        given["norm_weight"] = None
    given |= {"x": "*fp32" if behind else f"*{kind}", "residual": f"*{kind}" if behind else None}
    given |= {"inputs": "*fp32" if behind else None, "projected": f"*{kind}" if behind else None}
    given |= {"scales": "*bf16" if bits else None, "BITS": width}
    if bits:
        given["weight"] = "*i8" if bits == 8 else "*u8"
    sizes = "n_out k group_width shift_programs width first projected_stride"
    given |= numbers(i32=sizes, fp32="inverse eps offset")
    given |= {"ROWS": rows, "GROUPS": groups if behind else 1, "TAPS": 4 if behind else 1, "C": _CHANNELS}
    given |= {"M": tile.rows, "K": tile.k}
    numbers_of = f"int{bits}, {kind}" if bits else kind
    label = f"{numbers_of}, {where}, {rows} tokens, {tile.rows} x {tile.k}"
    label += f", {groups} group" if behind and groups == 1 else ""
    sixteens = "n_out k group_width width first projected_stride"
    return Build(kernels.norm_matvec, given, tile.warps, registers=_limit(tile), sixteens=sixteens, label=label)


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    """Layers of odd sizes, of which ``trial`` computes a step."""
    full, narrow = torch.float32, torch.bfloat16
    cases = (
        (full, 2, 1, 20, 24, 0),
        (narrow, 3, 2, 16, 16, 0),
        (full, 2, 2, 20, 16, 8),
        (full, 1, 1, 20, 24, 4),
        (narrow, 3, 2, 20, 24, 4),
    )
    return [_sample(device, *sizes) for sizes in cases]


def _sample(
    device: torch.device, dtype: torch.dtype, rows: int, groups: int, d_head: int, d_state: int, bits: int
) -> Any:
    d_model, heads, taps = 40, 4, 4
    d_inner = heads * d_head
    width = d_inner + 2 * groups * d_state

    def numbers_of(*shape: int, scale: float = 1.0, phase: float = 0.0, kind: torch.dtype = dtype) -> Tensor:
        found = torch.arange(math.prod(shape), device=device, dtype=torch.float32).mul_(1.7).add_(phase).sin()
        return found.mul_(scale).view(shape).to(kind)

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
