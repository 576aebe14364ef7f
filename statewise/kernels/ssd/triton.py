"""The launches of SSD in Triton: one forwards (three where there are few sequences), three backwards."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from statewise.kernels.gpu import on_device_of, options, pieces
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.triton_products import product
from statewise.kernels.ssd import pytorch
from statewise.kernels.ssd.reference import Arguments
from statewise.kernels.ssd.triton_adjoint import of_groups, of_heads, states_and_gradients
from statewise.kernels.ssd.triton_kernels import chain_pieces, sweep

REGISTERS = 255  # of a thread at most
_CHAINED = 1024  # numbers of a state that a program chains
_LEAST_CHUNKS = 16  # of a piece


class Tile(NamedTuple):
    """What a program holds: steps of a chunk, of a head's width and of its states so many at most, and its warps."""

    q: int
    p: int
    n: int
    warps: int


class Tiles(NamedTuple):
    """The tiles of a kind of products that spill nothing on any card; the three backwards have one length of chunks."""

    ahead: tuple[Tile, ...]  # the first that holds all states, else the last, which splits them
    states: Tile
    heads: Tile
    groups: Tile


TILES = {
    "bfloat16": Tiles(
        (Tile(32, 32, 64, 4), Tile(32, 32, 128, 4)), *(Tile(64, 64, 64, 8), Tile(64, 32, 32, 8), Tile(64, 32, 64, 8))
    ),
    "float32": Tiles((Tile(16, 16, 64, 2),), *(Tile(32, 32, 32, 4), Tile(32, 16, 16, 4), Tile(32, 16, 16, 4))),
}


def tiles_of(x: Tensor) -> Tiles:
    return TILES["bfloat16" if x.dtype == torch.bfloat16 else "float32"]


def refusal(given: Arguments) -> str | None:
    return None


def forward(given: Arguments) -> tuple[Tensor, Tensor]:
    """y and the state after the last step."""
    x = given.x
    if not x.numel() or not given.h0.numel():
        return pytorch.forward(given)
    layout = _laid_out(given)
    b, length, h, p = x.shape
    ahead = tiles_of(x).ahead
    tile = next((tile for tile in ahead if layout.n <= tile.n), ahead[-1])
    chunks, programs, blocks = triton.cdiv(length, tile.q), triton.cdiv(p, tile.p), triton.cdiv(layout.n, tile.n)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    parts = y if blocks == 1 else torch.empty(blocks, *x.shape, dtype=torch.float32, device=x.device)
    state = torch.empty(given.h0.shape, dtype=torch.float32, device=x.device)
    n_pieces = pieces(x.device, b * h * programs * blocks, chunks, _LEAST_CHUNKS)
    each = triton.cdiv(chunks, n_pieces)
    n_pieces = triton.cdiv(chunks, each)
    sizes = (b, length, h, h // layout.g, p, layout.n, n_pieces, each, *layout.strides)
    fixed: dict[str, Any] = {"PRODUCT": product(x), **_blocks(tile)}
    fixed |= options(x.device, tile.warps, REGISTERS)
    grid = (b * h * n_pieces, programs, blocks)
    start = layout.h0
    with on_device_of(x):
        if n_pieces > 1:
            ends, start = torch.empty(2, b * h * n_pieces, p, layout.n, dtype=torch.float32, device=x.device)
            decay = torch.empty(b * h * n_pieces, dtype=torch.float32, device=x.device)
            sweep[grid](*layout.inputs, None, *layout.scales, None, ends, decay, *sizes, ENDS=True, **fixed)
            chain_pieces[(b * h, triton.cdiv(p * layout.n, _CHAINED))](
                layout.h0, ends, decay, start, p * layout.n, n_pieces, BLOCK=_CHAINED
            )
        sweep[grid](*layout.inputs, start, *layout.scales, parts, state, None, *sizes, ENDS=False, **fixed)
    return y if blocks == 1 else parts.sum(0).to(x.dtype), state


def _blocks(tile: Tile) -> dict[str, Any]:
    return {"Q": tile.q, "P": tile.p, "N": tile.n}


def backward(grad_y: Tensor, grad_state: Tensor, given: Arguments) -> tuple[Tensor | None, ...]:
    """Gradients of x, log_a, B, C, h0, dt and D; None where there was none."""
    x = given.x
    if not x.numel() or not given.h0.numel():
        return pytorch.backward(grad_y, grad_state, given)
    layout, slope = _laid_out(given), _by_steps(grad_y)
    b, length, h, p = x.shape
    n, g, device = layout.n, layout.g, x.device
    tiles = tiles_of(x)
    chunks = triton.cdiv(length, tiles.states.q)
    before, after = torch.empty(2, b, h, chunks, p, n, dtype=_kept(x), device=device)
    dx, d_log_a, dB, dC, dh0 = (torch.empty(m.shape, dtype=m.dtype, device=device) for m in given[:5])
    d_dt = None if given.dt is None else torch.empty(given.dt.shape, dtype=torch.float32, device=device)
    dD = None if given.D is None else torch.empty(b, h, chunks, dtype=torch.float32, device=device)
    sizes = (length, h, h // g, p, n, chunks, *slope.stride()[:2], *layout.strides)
    dt, D, segments = layout.scales
    u, log_a, B, C = layout.inputs
    with on_device_of(x):
        states_and_gradients[(b * h, triton.cdiv(p, tiles.states.p) * triton.cdiv(n, tiles.states.n), 2)](
            slope, grad_state.contiguous(), u, log_a, B, C, layout.h0, dt, segments, before, after, dh0, *sizes,
            PRODUCT=product(x), **_blocks(tiles.states), **options(device, tiles.states.warps, REGISTERS),
        )  # fmt: skip
        of_heads[(b * h * chunks,)](
            slope, u, log_a, B, C, dt, D, segments, before, after, dx, d_log_a, d_dt, dD, *sizes,
            PRODUCT=product(x), **_blocks(tiles.heads), **options(device, tiles.heads.warps, REGISTERS),
        )  # fmt: skip
        of_groups[(b * g * chunks, triton.cdiv(n, tiles.groups.n), 2)](
            slope, u, log_a, B, C, dt, segments, before, after, dB, dC, *sizes,
            PRODUCT=product(x), **_blocks(tiles.groups), **options(device, tiles.groups.warps, REGISTERS),
        )  # fmt: skip
    return dx, d_log_a, dB, dC, dh0, d_dt, None if dD is None else dD.sum((0, 2))


class _Layout(NamedTuple):
    """What the kernels read: x, B and C with their strides along rows and steps, all else side by side."""

    inputs: tuple[Tensor, ...]  # x, log_a, B, C
    h0: Tensor
    scales: tuple[Tensor | None, ...]  # dt, D, segments
    strides: tuple[int, ...]
    g: int
    n: int


def _laid_out(given: Arguments) -> _Layout:
    x, log_a, B, C, h0, dt, D, segments, _ = given
    x, B, C = (_by_steps(m) for m in (x, B, C))
    ids = None if segments is None else segments.long().contiguous()
    scales = (*(None if m is None else m.contiguous() for m in (dt, D)), ids)
    strides = tuple(stride for m in (x, B, C) for stride in m.stride()[:2])
    return _Layout((x, log_a.contiguous(), B, C), h0.contiguous(), scales, strides, *B.shape[2:])


def _by_steps(m: Tensor) -> Tensor:
    """m (batch, length, a, b), copied only where a step's a * b numbers do not lie together."""
    return m if m.stride(3) == 1 and m.stride(2) == m.shape[3] else m.contiguous()


def _kept(x: Tensor) -> torch.dtype:
    return torch.bfloat16 if x.dtype == torch.bfloat16 else torch.float32


def builds() -> list[Build]:
    """The heaviest of each: packed, with dt and D."""
    found = []
    strides = "x_row x_step B_row B_step C_row C_step"
    small = pointers(fp32="log_a dt D", i64="segments")
    ahead = numbers(i32=f"rows length heads per_group width states n_pieces chunks {strides}")
    back = numbers(i32=f"length heads per_group width states chunks grad_row grad_step {strides}")
    sixteens = f"width states grad_row grad_step {strides}"
    for name, tiles in TILES.items():
        kind = "bf16" if name == "bfloat16" else "fp32"
        long = pointers(**{kind: "grad x B C y before after d_x d_B d_C"})
        given: dict[str, Any] = {**long, **small, **pointers(fp32="start last grad_state h0 d_h0 d_log_a d_dt d_D")}
        given |= {"PRODUCT": name, "decay": None}
        last = tiles.ahead[-1]
        launches: list[tuple[Any, Tile, dict[str, Any]]] = [
            *((sweep, tile, {**ahead, "ENDS": False}) for tile in tiles.ahead),
            (sweep, last, {**ahead, "ENDS": True, "start": None, "y": None, "decay": "*fp32"}),
            (states_and_gradients, tiles.states, back),
            (of_heads, tiles.heads, back),
            (of_groups, tiles.groups, back),
        ]
        for kernel, tile, more in launches:
            all_of_them = {**given, **more, **_blocks(tile)}
            own = {key: all_of_them[key] for key in kernel.arg_names}
            label = f"{name}, {tile.q} x {tile.p} x {tile.n}"
            label += ", ends" if more.get("ENDS") else ""
            found.append(
                Build(kernel, own, tile.warps, registers=REGISTERS, products=True, sixteens=sixteens, label=label)
            )
    chained = {**pointers(fp32="h0 ends decay start"), **numbers(i32="size n_pieces"), "BLOCK": _CHAINED}
    return [*found, Build(chain_pieces, chained, 4, label=f"{_CHAINED}")]


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    b, length, h, p, g, n = 1, 70, 4, 20, 2, 24
    x = torch.linspace(-2, 3, b * length * h * p, device=device).sin().view(b, length, h, p)
    keys = x.flatten(2)[..., : g * n].reshape(b, length, g, n)
    log_a, state = -x[..., 0].abs(), torch.linspace(-1, 1, b * h * p * n, device=device).view(b, h, p, n)
    ids = (torch.arange(length, device=device) // 31).expand(b, length)
    steps, skip = x[..., 1].abs(), x[0, 0, :, 0]
    half = (m.bfloat16() for m in (x, keys, keys.cos()))
    narrow_x, narrow_B, narrow_C = half
    return [
        (Arguments(x, log_a, keys, keys.cos(), state, steps, skip, ids, 64),),
        (Arguments(narrow_x, log_a, narrow_B, narrow_C, state, None, None, None, 64),),
    ]
