"""How long the FFTs are, and how much of the work one block holds."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

# Numbers in one block of FFTs: a float32 megabyte, so that the copies, the products and both FFTs of a block meet
# in the cache, and small enough calls that PyTorch's cost for each (about 25 microseconds an FFT) stays a few percent.
_BLOCK = 2**18
_GROUP = 2**19  # numbers of the padded filters whose spectra are kept at once: what bounds the memory
_CHANNELS = 32  # but so many channels at least: fewer waste the cache lines of the transposed copies
_AT_LEAST = 4  # FFTs in one call: a long one alone takes five times as long as one of four (measured with MKL)
_ELSEWHERE = 2**27  # both, on a device that is not a CPU


class Sizes(NamedTuple):
    """n: length of the FFT; chunk: outputs that one FFT gives; group, block: channels; rows: of the batch."""

    n: int
    chunk: int
    group: int
    block: int
    rows: int


def fast_size(at_least: int) -> int:
    """The smallest even 2^a 3^b 5^c that is not below ``at_least``: lengths that every FFT library is fast at."""
    best = 2 ** max(1, math.ceil(math.log2(max(at_least, 2))))
    fives = 1
    while fives < best:
        threes = fives
        while threes < best:
            twos = 2 ** max(1, math.ceil(math.log2(max(at_least / threes, 2))))
            best = min(best, twos * threes) if twos * threes >= at_least else best
            threes *= 3
        fives *= 5
    return best


def n_fft(length: int, taps: int) -> int:
    """The FFT of overlap-save: one for the whole sequence, or a power of 2 for chunks of a much longer one."""
    whole = fast_size(length + taps - 1)
    sizes = [whole]
    n = max(1024, 2 ** math.ceil(math.log2(2 * taps)))
    while n < whole:
        sizes.append(n)
        n *= 2
    return min(sizes, key=lambda n: -(-length // (n - taps + 1)) * n * math.log2(n))


def sizes(batch: int, length: int, taps: int, width: int, columns: int, device: torch.device) -> Sizes:
    """columns: how many sequences each channel has in a row of the batch, inputs or outputs, whichever are more."""
    n = n_fft(length, taps)
    in_group, in_block = (_GROUP, _BLOCK) if device.type == "cpu" else (_ELSEWHERE, _ELSEWHERE)
    at_once = max(_AT_LEAST, in_block // n)  # FFTs in one call
    group = max(1, min(width, max(_CHANNELS, in_group // (n * columns))))
    block = max(1, min(group, at_once // columns))
    rows = max(1, min(batch, at_once // (columns * group))) if block == group else 1
    return Sizes(n, n - taps + 1, group, block, rows)
