"""How a block FFT is split, and how much of the work one block holds."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

# Numbers of one spectrum of a block: half a float32 megabyte, so that a filter, an input and what becomes of it are in
# the cache together.
_BLOCK = 2**17
_ELSEWHERE = 2**27  # on a device that is not a CPU: 512 MiB each, of which there are several
_COLUMNS = 16  # but so many columns at least: with fewer the products are no better than products with vectors
_MOST_OUTER = 64  # N1: the matrices of the outer transforms, 4 N N1 numbers, are to stay in a cache


class BlockSizes(NamedTuple):
    """n1, n2: the transform; chunk: outputs of one; group: channels, rows: of the batch in one block."""

    n1: int
    n2: int
    chunk: int
    group: int
    rows: int


def block_sizes(batch: int, length: int, taps: int, width: int, columns: int, device: torch.device) -> BlockSizes:
    """columns: how many sequences each channel has in a row of the batch."""
    n1, n2 = best_split(length, taps)
    numbers = _BLOCK if device.type == "cpu" else _ELSEWHERE
    at_once = max(_COLUMNS, numbers // (n1 * n2))  # columns of a block
    group = max(1, min(width, at_once // columns))
    rows = max(1, min(batch, at_once // (columns * group)))
    return BlockSizes(n1, n2, n1 * n2 - taps + 1, group, rows)


@functools.lru_cache(maxsize=256)
def best_split(length: int, taps: int) -> tuple[int, int]:
    """N1 and N2 of the least work: one transform for the whole sequence, or overlap-save with shorter ones."""
    needed = [length + taps - 1]
    n = 2 * taps
    while n < needed[0]:
        needed.append(n)
        n *= 2
    splits = [split(n) for n in needed]
    return min(splits, key=lambda s: -(-length // (s[0] * s[1] - taps + 1)) * work(*s))


def split(at_least: int) -> tuple[int, int]:
    """N1 N2 >= at_least with the least work; N2 is even, and a multiple of 8 where it is larger than that."""
    found = []
    for n1 in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, _MOST_OUTER):
        n2 = -(-at_least // n1)
        found.append((n1, -(-n2 // 8) * 8 if n2 > 8 else n2 + n2 % 2))
    return min(found, key=lambda s: work(*s))


def work(n1: int, n2: int) -> int:
    """The work of one transform and a filter half as long as it: N2 for the inner products (of real numbers with half
    of the rows, at twice the speed of the outer ones), 8 N1 for the outer ones, and what each number costs beside
    that."""
    return n1 * n2 * (n2 + 8 * n1 + 32)
