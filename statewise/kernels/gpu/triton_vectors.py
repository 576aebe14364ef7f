"""Rows that begin at whole vectors of 16 bytes. By itself Triton sees only those at multiples of 16 numbers."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def eighths(number):
    """A number of which the launch has seen that it is a multiple of 8, so that the compiler loads whole vectors."""
    return tl.multiple_of(number.to(tl.int64), 8)


def are_eighths(*sizes: int) -> bool:
    """Whether all rows begin at a whole vector of numbers of two bytes: what a launch says before :func:`eighths`."""
    return all(size % 8 == 0 for size in sizes)
