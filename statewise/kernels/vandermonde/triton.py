"""The launches of the Vandermonde product in Triton (triton_kernels.py): one forwards, one backwards."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from statewise.kernels.gpu import on_device_of, options, pieces
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.gpu.triton_products import product
from statewise.kernels.stored import plain
from statewise.kernels.vandermonde import pytorch
from statewise.kernels.vandermonde.triton_kernels import sums_of_powers, sums_over_steps

REGISTERS = 255
_RATE, _TURNS = 2.0**52, 2.0**64  # units of log2 |A| and of its angle
_LEAST_BLOCKS = 4  # of a piece


class Tile(NamedTuple):
    """What a program holds: lines, steps of each, states, and its warps."""

    rows: int
    steps: int
    states: int
    warps: int


AHEAD = (Tile(16, 64, 32, 4), Tile(64, 64, 16, 8))  # for few lines, and for many
BACK = Tile(32, 32, 16, 4)


def refusal(c: Tensor, A: Tensor, length: int) -> str | None:
    return None


def forward(c: Tensor, A: Tensor, length: int) -> Tensor:
    """c (w, p, n) and A (w, n), both real or both complex -> (w, p, length), real."""
    (w, p, n), given = c.shape, _prepared(c, A)
    K = torch.empty(w, p, length, dtype=torch.float32, device=c.device)
    if not w * p * n * length:
        return K.zero_()
    tile = next((tile for tile in AHEAD if p * length <= tile.rows * tile.steps), AHEAD[-1])
    lines = triton.cdiv(length, tile.steps)
    blocks = triton.cdiv(p * lines, tile.rows)
    with on_device_of(c):
        sums_of_powers[(w * blocks,)](
            torch.view_as_real(plain(given.c)), given.rate, given.turns, K, p, n, length, lines, blocks,
            **_fixed(c, tile), **options(c.device, tile.warps, REGISTERS),
        )  # fmt: skip
    return K


def backward(grad: Tensor, c: Tensor, A: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """The gradients of c and A for one of K (w, p, length)."""
    w, p, n = c.shape
    if not w * p * n * length:
        return pytorch.backward(grad, c, A, length)
    given, lines = _prepared(c, A), triton.cdiv(length, BACK.steps)
    blocks = triton.cdiv(lines, BACK.rows)
    of_states = triton.cdiv(n, BACK.states)
    n_pieces = pieces(c.device, w * p * of_states, blocks, _LEAST_BLOCKS)
    each = triton.cdiv(blocks, n_pieces)
    n_pieces = triton.cdiv(blocks, each)
    sums = torch.empty(n_pieces, w, p, 4, n, dtype=torch.float32, device=c.device)
    with on_device_of(c):
        sums_over_steps[(w * p, of_states, n_pieces)](
            plain(grad), given.rate, given.turns, sums, w, p, n, length, lines, each,
            **_fixed(c, BACK), **options(c.device, BACK.warps, REGISTERS),
        )  # fmt: skip
    re, im, slope_re, slope_im = sums.sum(0).unbind(2)
    scale = 2 if c.is_complex() else 1
    dc = torch.complex(re, -im) * scale + given.no_number.unsqueeze(1)
    dA = (torch.complex(slope_re, slope_im) * given.c).sum(1).conj_physical()  # c is doubled already
    return (dc, dA) if c.is_complex() else (dc.real.contiguous(), dA.real.contiguous())


class _Prepared(NamedTuple):
    """c twice if it is one of a conjugate pair, and log A as the kernels take it."""

    c: Tensor
    rate: Tensor
    turns: Tensor
    no_number: Tensor  # 0 where A is finite, else NaN, which fixed point does not have


def _prepared(c: Tensor, A: Tensor) -> _Prepared:
    scale = 2 if c.is_complex() else 1
    no_number = (A - A).to(torch.complex64)
    wide = A.to(torch.complex128)
    rate = wide.abs().log2().nan_to_num(0.0).clamp(-1000, 1000).mul(_RATE).round().long()
    turns = wide.angle().nan_to_num(0.0) / (2 * math.pi)
    turns = torch.where(turns >= 0.5, turns - 1, turns).mul(_TURNS).long()
    return _Prepared(c.to(torch.complex64) * scale + no_number.unsqueeze(1), rate, turns, no_number)


def _fixed(c: Tensor, tile: Tile) -> dict[str, Any]:
    return {"PRODUCT": product(c.real), "ROWS": tile.rows, "STEPS": tile.steps, "STATES": tile.states}


def builds() -> list[Build]:
    found = []
    for kernel, tile in (*((sums_of_powers, tile) for tile in AHEAD), (sums_over_steps, BACK)):
        given: dict[str, Any] = {**pointers(fp32="c K grad sums", i64="rate turns")}
        given |= numbers(i32="channels outputs n length lines blocks")
        given |= {"PRODUCT": "float32", "ROWS": tile.rows, "STEPS": tile.steps, "STATES": tile.states}
        own = {key: given[key] for key in kernel.arg_names}
        label = f"{tile.rows} x {tile.steps} x {tile.states}"
        found.append(Build(kernel, own, tile.warps, registers=REGISTERS, products=True, label=label))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    w, p, n, length = 2, 2, 35, 4500
    real = torch.linspace(-2, 3, w * p * n, device=device).sin().view(w, p, n)
    A = torch.polar(1 - real[:, 0].abs() / 100, real[:, 1] * 3)
    A[0, :2] = torch.tensor([0, 1], device=device)
    found = [(torch.complex(real, real.cos()), A, length), (real, -real[:, 0].abs().sqrt(), 100)]
    if device.type == "cuda":  # so long that its steps are summed in pieces
        found.append((found[0][0][:1], A[:1], 2 * _LEAST_BLOCKS * BACK.rows * BACK.steps))
    return found
