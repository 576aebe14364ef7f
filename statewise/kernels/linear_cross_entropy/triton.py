"""Losses of a block of logits, and in place of the logits their gradient, in Triton.

The products before and behind are those of PyTorch's own library: three for each block of tokens, where a kernel that
kept no block of logits at all would need five, as it has to make the logits again for each gradient. Here a row is read
once, or twice where it is too long for registers, and written once.
"""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.gpu import on_device_of
from statewise.kernels.gpu.build import Build, numbers, pointers
from statewise.kernels.linear_cross_entropy.pytorch import NO_TARGET


class Tile(NamedTuple):
    """What a program holds at one time: ``logits`` of each of ``rows`` tokens, and its warps."""

    rows: int
    logits: int
    warps: int
    whole: bool  # whether that is the whole vocabulary; else it is walked through twice


# the last has so many warps that few programs are at work at one time: their rows are still cached at the second look
TILES = (Tile(4, 512, 4, True), Tile(1, 4096, 8, True), Tile(1, 8192, 16, False))


@triton.jit
def softmax_rows(
    logits, targets, coefficients, losses, n, vocab, none,
    EIGHTHS: tl.constexpr, WHOLE: tl.constexpr, ROWS: tl.constexpr, LOGITS: tl.constexpr,
):  # fmt: skip
    """losses (n,) of logits (n, vocab) at targets (n,), 0 where a target is ``none``; one outside the vocabulary makes
    NaN. With coefficients (n,) the gradient of their products takes the place of the logits."""
    if EIGHTHS:  # else the compiler sees whole vectors only in a vocabulary that is a multiple of 16
        vocab = tl.multiple_of(vocab.to(tl.int64), 8)
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS).to(tl.int64)
    is_row = row < n
    own = tl.load(targets + row, mask=is_row, other=0)
    inside = (own >= 0) & (own < vocab)
    counts = own != none
    at_own = tl.load(logits + (row * vocab + own), mask=is_row & inside, other=0.0).to(tl.float32)
    highest = tl.full((ROWS,), float("-inf"), tl.float32)
    base = tl.zeros((ROWS,), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    ahead = _loaded(logits, row, 0, vocab, is_row, LOGITS)
    x = ahead.to(tl.float32)
    for start in range(0, LOGITS if WHOLE else vocab, LOGITS):
        if not WHOLE:
            x = ahead.to(tl.float32)
            ahead = _loaded(logits, row, start + LOGITS, vocab, is_row, LOGITS)  # under way while this is summed
        highest = tl.maximum(highest, tl.max(x, 1))
        before = base
        base = tl.where(tl.abs(highest) < float("inf"), highest, 0.0)  # a difference of infinities is not a number
        total = tl.where(total > 0.0, total * tl.exp(before - base), total)
        total += tl.sum(tl.exp(x - base[:, None]), 1)
    total = base + tl.log(total)
    loss = tl.where(inside, total - at_own, float("nan"))
    tl.store(losses + row, tl.where(counts, loss, 0.0), mask=is_row)
    if coefficients is not None:
        tl.debug_barrier()  # a program's own logit has been read when the first slope is written
        scale = tl.load(coefficients + row, mask=is_row, other=0.0)
        scale = tl.where(inside, scale, float("nan"))
        for start in range(0, LOGITS if WHOLE else vocab, LOGITS):
            column = start + tl.arange(0, LOGITS).to(tl.int64)
            real = is_row[:, None] & (column < vocab)[None, :]
            at = row[:, None] * vocab + column[None, :]
            if not WHOLE:
                x = tl.load(logits + at, mask=real, other=0.0).to(tl.float32)
            slope = tl.exp(x - total[:, None]) - tl.where(column[None, :] == own[:, None], 1.0, 0.0)
            slope = tl.where(counts[:, None], slope * scale[:, None], 0.0)
            tl.store(logits + at, slope.to(logits.dtype.element_ty), mask=real)


@triton.jit
def _loaded(logits, row, start, vocab, is_row, LOGITS: tl.constexpr):
    column = start + tl.arange(0, LOGITS).to(tl.int64)
    real = is_row[:, None] & (column < vocab)[None, :]
    return tl.load(logits + (row[:, None] * vocab + column[None, :]), mask=real, other=float("-inf"))


def refusal(x: Tensor, weight: Tensor, targets: Tensor, coefficients: Tensor | None) -> str | None:
    return None


def rows(logits: Tensor, targets: Tensor, coefficients: Tensor | None) -> Tensor:
    """Shapes and meaning as in pytorch.py."""
    n, vocab = logits.shape
    losses = torch.empty(n, dtype=torch.float32, device=logits.device)
    if n:
        tile = next((tile for tile in TILES if vocab <= tile.logits), TILES[-1])
        with on_device_of(logits):
            softmax_rows[(triton.cdiv(n, tile.rows),)](
                logits, targets, coefficients, losses, n, vocab, NO_TARGET,
                EIGHTHS=vocab % 8 == 0, WHOLE=tile.whole, ROWS=tile.rows, LOGITS=tile.logits, num_warps=tile.warps,
            )  # fmt: skip
    return losses


def builds() -> list[Build]:
    found = []
    for kind, eighths in itertools.product(("bf16", "fp16", "fp32"), (True, False)):
        given = {**pointers(fp32="losses", i64="targets"), **numbers(i32="n vocab", i64="none"), "logits": f"*{kind}"}
        for tile in TILES:
            fixed: dict[str, Any] = {"EIGHTHS": eighths, "WHOLE": tile.whole, "ROWS": tile.rows, "LOGITS": tile.logits}
            size = f"{kind}, {tile.rows} x {tile.logits}{'' if tile.whole else ' of more'}"
            size += "" if eighths else ", any size"
            for coefficients, label in ((None, "losses"), ("*fp32", "gradients")):
                arguments = {**given, **fixed, "coefficients": coefficients}
                found.append(Build(softmax_rows, arguments, tile.warps, label=f"{size}, {label}"))
    return found


def samples(device: torch.device) -> list[tuple[Any, ...]]:
    found = []
    for n, vocab in ((5, 300), (3, 1025), (3, 20000)):
        rising = torch.linspace(-20, 30, n * vocab, device=device).view(n, vocab)  # each block has a larger largest
        logits = rising + 8 * rising.sin()
        targets = torch.arange(n, device=device) * (vocab // n)
        targets[1] = NO_TARGET
        scales = torch.linspace(-1, 2, n, device=device)
        found += [(logits.to(dtype), targets, scales) for dtype in (torch.float32, torch.bfloat16)]
    return found


def trial(path: Any, logits: Tensor, targets: Tensor, coefficients: Tensor) -> list[Tensor]:
    """The losses of a path, and the gradient that it leaves instead of a copy of the logits."""
    slope = logits.clone()
    return [path.rows(slope, targets, coefficients), slope]
