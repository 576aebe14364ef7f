"""The launches of the fused convolution (triton_kernels.py): one forwards, and two for gradients.

It is for inputs of 16 bits. In float32 each product would be three, which takes longer than ``torch.fft`` with all its
journeys through the memory. So float32 is left to pytorch.py, and so are a history of another dtype than its inputs and
a long sequence with a filter of more than 8,192 taps.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from statewise.kernels.fft_convolution import pytorch
from statewise.kernels.fft_convolution.triton_kernels import convolve_windows, products_of_spectra
from statewise.kernels.fft_convolution.triton_transform import Tables, responses, spectra, tables
from statewise.kernels.gpu import on_device_of, options, pieces
from statewise.kernels.gpu.build import Build, numbers, pointers

REGISTERS, WARPS = 255, 4  # WARPS: of programs on AMD's cards, and of those that sum over rows
_LEAST_WINDOWS = 4  # of a piece
_NARROW = (torch.bfloat16, torch.float16)
_LARGEST = 2.0**13  # number of a scaled filter's spectrum, times n


class Tile(NamedTuple):
    """Half a window is ``half`` rows of n2 numbers; ``block`` rows of its spectrum are made at a time, each from
    ``stripe`` of its own rows after the other. ``warps``: on NVIDIA's cards."""

    half: int
    n2: int
    block: int
    stripe: int
    warps: int

    @property
    def size(self) -> int:
        return self.half * self.n2

    def cost(self, halves: int) -> int:
        """Multiplications for a window."""
        return self.half * (self.half * self.n2 * 2 * (halves + 1) + 8 * self.n2 * self.n2)


# Rows of 32: the table F2 is a right factor, all of which every warp holds
TILES = (
    Tile(32, 32, 32, 32, 4),
    Tile(64, 32, 64, 32, 4),
    Tile(128, 32, 64, 32, 8),
    Tile(256, 32, 64, 32, 8),
)


class Cut(NamedTuple):
    """Windows for a convolution. ``halves``: of each that are read: 1 of one that is alone, else 2."""

    tile: Tile
    halves: int

    def windows(self, length: int) -> int:
        """How many give ``length`` outputs."""
        return 1 if self.halves == 1 else triton.cdiv(length, self.tile.size)


def cut(length: int, taps: int) -> Cut | None:
    """The cheapest for a sequence with its history: one window, or several, each of which also reads the half before
    what it gives; None if the filter is longer than half the largest window."""
    found = [Cut(tile, 1) for tile in TILES if length <= tile.size]
    found += [Cut(tile, 2) for tile in TILES if taps <= tile.size < length]
    return min(found, key=lambda one: one.windows(length) * one.tile.cost(one.halves), default=None)


def refusal(u: Tensor, K: Tensor, history: Tensor | None) -> str | None:
    return None


def _cut_for(u: Tensor, K: Tensor, history: Tensor | None) -> Cut | None:
    """None if pytorch.py is to compute it."""
    is_narrow = u.dtype in _NARROW and (history is None or history.dtype == u.dtype)
    return cut(_steps_of(history) + u.shape[1], K.shape[2]) if is_narrow and u.numel() * K.shape[1] else None


def forward(u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    """u (b, l, w, t), K (w, p, taps), history (b, taps - 1, w, t) -> y (b, l, w, p, t)."""
    (b, l, w, t), p, before = u.shape, K.shape[1], _steps_of(history)
    chosen = _cut_for(u, K, history)
    if chosen is None:
        return pytorch.forward(u, K, history)
    x, y = _by_time(u, history), u.new_empty(b * t, w, p, l)
    with on_device_of(u):
        _convolve(x, K, y, chosen, _starts(chosen, before), correlates=False)
    return y.unflatten(0, (b, t)).permute(0, 4, 2, 3, 1)


def backward(grad: Tensor, u: Tensor, K: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of u, K and history, of ``grad`` (b, l, w, p, t)."""
    (b, l, w, t), (p, taps), before = u.shape, K.shape[1:], _steps_of(history)
    chosen = _cut_for(u, K, history)
    if chosen is None:
        return pytorch.backward(grad, u, K, history)
    x, slope = _by_time(u, history), _by_time(grad.flatten(2, 3), None)  # (b t, w p, l)
    dx = x.new_empty(b * t, w, p, before + l, dtype=u.dtype if p == 1 else torch.float32)
    tile, windows = chosen.tile, chosen.windows(l)
    n_blocks = tile.half // tile.block
    n_pieces = pieces(u.device, w * p * n_blocks, b * t * windows, _LEAST_WINDOWS)
    sums = torch.empty(n_pieces, w, p, 2, tile.half, tile.n2, dtype=torch.float32, device=u.device)
    with on_device_of(u):
        _convolve(slope, K, dx, chosen, (-before, 0), correlates=True)
        products_of_spectra[(w * p, n_blocks, n_pieces)](
            x, slope, *_tables(tile, u.device), sums, b * t, w, p, windows, before + l, l,
            *_starts(chosen, before), 0, HALVES=chosen.halves, PLACE=chosen.halves - 1, **_fixed(tile),
            **options(u.device, WARPS, REGISTERS),
        )  # fmt: skip
    dK = responses(sums.sum(0), min(taps, before + l))
    dK = torch.nn.functional.pad(dK, (0, taps - dK.shape[-1])).to(K.dtype)
    found = (dx.squeeze(2) if p == 1 else dx.sum(2)).unflatten(0, (b, t)).permute(0, 3, 2, 1)  # (b, time, w, t)
    d_history = None if history is None else found[:, :before].to(u.dtype)
    return found[:, before:].to(u.dtype), dK, d_history


def _convolve(x: Tensor, K: Tensor, y: Tensor, chosen: Cut, starts: tuple[int, int], *, correlates: bool) -> None:
    """x (rows, w, time), or (rows, w p, time) to correlate, into y (rows, w, p, time)."""
    (w, p), length, tile, windows = K.shape[:2], x.shape[-1], chosen.tile, chosen.windows(y.shape[-1])
    spectrum, scales = _scaled_spectra(K, tile)
    apart, each = p if correlates else 1, x.shape[0] * windows
    convolve_windows[(w * p * each,)](
        x, spectrum, scales, *_tables(tile, x.device), y, w, p, windows, each,
        w * apart * length, apart * length, length if correlates else 0, length, y.shape[-1], *starts, 0,
        CORRELATES=correlates, HALVES=chosen.halves, PLACE=0 if correlates else chosen.halves - 1,
        **_fixed(tile), **options(x.device, WARPS if torch.version.hip else tile.warps, REGISTERS),
    )  # fmt: skip


def _starts(chosen: Cut, before: int) -> tuple[int, int]:
    """Where the first window begins in the inputs and in the outputs: one that is alone at the oldest input, else half
    a window before the first output."""
    return (0, -before) if chosen.halves == 1 else (before - chosen.tile.size, 0)


def _steps_of(history: Tensor | None) -> int:
    return 0 if history is None else history.shape[1]


def _by_time(u: Tensor, history: Tensor | None) -> Tensor:
    """(b, l, w, t), behind its history -> (b t, w, time), with the times side by side."""
    past = u if history is None else torch.cat([history, u], 1)
    return past.permute(0, 3, 2, 1).contiguous().flatten(0, 1)


def _scaled_spectra(K: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """The spectra of filters as the kernel takes them, and the powers of two that they were divided by."""
    found = spectra(K[..., : tile.size], tile.half, tile.n2)
    largest = found.abs().amax((-3, -2, -1))
    is_usable = largest.isfinite() & (largest > 0)
    _, exponent = torch.frexp(torch.where(is_usable, largest, 1.0))
    scales = torch.ldexp(torch.full_like(largest, 4 * tile.size / _LARGEST), exponent)
    return found / scales[..., None, None, None], scales


def _fixed(tile: Tile) -> dict[str, int]:
    return {"HALF": tile.half, "N2": tile.n2, "BLOCK": tile.block, "STRIPE": tile.stripe}


@functools.lru_cache(maxsize=16)
def _tables(tile: Tile, device: torch.device) -> Tables:
    """As the kernels multiply by them."""
    first, twiddle, second = tables(tile.half, tile.n2, device)
    return Tables(first.half(), twiddle, second.half())


def builds() -> list[Build]:
    """For several outputs the gradient of u is summed in float32."""
    found = []
    for tile, halves, kind in itertools.product(TILES, (1, 2), ("bf16", "fp16")):
        found += _builds(tile, halves, kind, kind)
        found += [one for one in _builds(tile, halves, kind, "fp32") if one.arguments.get("CORRELATES")]
    return found


def _builds(tile: Tile, halves: int, x: str, y: str) -> list[Build]:
    from statewise.kernels.gpu.gate import SHARED

    given: dict[str, Any] = {**pointers(fp32="spectra scales twiddle sums", fp16="first second")}
    given |= {**pointers(**{x: "x grad"}), **pointers(**{y: "y"})}
    given |= numbers(i32="rows channels outputs windows each x_row x_channel x_output x_length y_length")
    given |= {**numbers(i32="x_start y_start still"), **_fixed(tile), "HALVES": halves}
    amd = tuple(target for target in SHARED if target.startswith("gfx"))
    nvidia = tuple(target for target in SHARED if target not in amd)
    label = f"{x} to {y}, {halves} x {tile.size:,} numbers"
    found = []

    def add(kernel: Any, warps: int, targets: tuple[str, ...] | None, label: str, **fixed: Any) -> None:
        own = {key: {**given, **fixed}[key] for key in kernel.arg_names}
        found.append(Build(kernel, own, warps, registers=REGISTERS, products=True, label=label, targets=targets))

    for correlates in (False, True):
        fixed = {"CORRELATES": correlates, "PLACE": 0 if correlates else halves - 1}
        for warps, targets in ((tile.warps, nvidia), (WARPS, amd)):
            add(convolve_windows, warps, targets, label + (", correlates" if correlates else ""), **fixed)
    add(products_of_spectra, WARPS, None, label, PLACE=halves - 1)
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    def case(b: int, l: int, w: int, t: int, p: int, taps: int, before: bool) -> tuple[Any, ...]:
        count = torch.arange(b * (l + taps - 1) * w * t, device=device)
        u = (count * count % 977).float().sin().view(b, -1, w, t)  # of every frequency
        u = (u * torch.linspace(0.01, 30, b, device=device).view(-1, 1, 1, 1)).to(torch.float16)  # and of several sizes
        K = torch.linspace(1, 9, w * p * taps, device=device).sin().view(w, p, taps)
        return u[:, taps - 1 :], K, u[:, : taps - 1] if before else None

    found = [case(2, 300, 2, 1, 1, 300, False), case(1, 1100, 2, 2, 2, 40, True), case(3, 2500, 1, 1, 1, 2500, False)]
    if device.type == "cuda":  # so many rows that they are summed in pieces
        found.append(case(2 * _LEAST_WINDOWS, 70, 1, 1, 1, 70, False))
    return found
