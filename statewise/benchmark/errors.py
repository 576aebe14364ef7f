"""How far the elementary functions in C and every kernel are from float64, over the ranges that they are used in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import statewise.native as native
from statewise.benchmark.errors_of_kernels import KERNELS
from statewise.benchmark.processor import describe_here
from statewise.benchmark.timing import Progress

STRIDE, QUICK_STRIDE = 997, 99_991  # of the 2^32 patterns of a float32: a prime, so that all digits vary
TURNED = 2.0**20  # the largest phase, in radians, at which sine and cosine are promised to keep their digits
_AT_ONCE = 2**20
_TINY = torch.finfo(torch.float32).tiny
_ABOVE = 2.0**128 - 2.0**103  # rounds to infinity


@dataclass(frozen=True)
class Elementary:
    """A function in C, its definition in float64, and where it is held against it.

    least:  the size from which on errors are counted in units in the last place of the value; below it in those of
            ``least``
    """

    name: str
    definition: Callable[[Tensor], Tensor]
    most: float = math.inf  # |x|
    least: float = _TINY


def _softplus(x: Tensor) -> Tensor:
    return x.clamp(min=0) + torch.log1p(torch.exp(-x.abs()))


ELEMENTARY = (
    Elementary("exp", torch.exp),
    Elementary("exp2", torch.exp2),
    Elementary("sigmoid", torch.sigmoid),
    Elementary("softplus", _softplus),
    # one number of two, of which the size is 1: what counts is how far the point on the circle is off
    Elementary("sine", torch.sin, TURNED, 0.5),
    Elementary("cosine", torch.cos, TURNED, 0.5),
)


def apply_elementary(name: str, x: Tensor) -> Tensor:
    """The function of the library, float32 or float64, in the instruction set in use."""
    y = torch.empty_like(x)
    native.function(f"elementary_{name}", x.dtype, "ppl")(x, y, x.numel())
    return y


def in_last_places(found: Tensor, exact: Tensor, least: float) -> Tensor:
    """|found - exact| in units in the last place of the exact values, float64, as a float32 would have them."""
    exponents = torch.frexp(exact.abs().clamp(min=least)).exponent
    return (found.double() - exact).abs() / torch.ldexp(torch.ones_like(exact), exponents - 24)


def _patterns(stride: int) -> Iterator[Tensor]:
    """Float32 numbers: every ``stride``-th of all patterns of 32 bits, those of both infinities among them."""
    step = stride * _AT_ONCE
    for start in range(-(2**31), 2**31, step):
        bits = torch.arange(start, min(start + step, 2**31), stride, dtype=torch.int64)
        yield bits.to(torch.int32).view(torch.float32)
    yield torch.tensor([math.inf, -math.inf, 0.0, -0.0])


def elementary_error(function: Elementary, stride: int) -> tuple[float, float]:
    """The largest and the mean error in units in the last place. A result below the smallest normal number may be zero;
    one that rounds to infinity has to be that.
    """
    largest, total, count = 0.0, 0.0, 0
    for x in _patterns(stride):
        x = x[~x.isnan() & (x.abs() <= function.most)]
        exact, found = function.definition(x.double()), apply_elementary(function.name, x)
        units = in_last_places(found, exact, function.least)
        units = torch.where(exact.abs() >= _ABOVE, torch.where(found.double() == exact.float(), 0.0, math.inf), units)
        units = torch.where((exact.abs() < _TINY) & (found.abs() <= _TINY), units.clamp(max=0.0), units)
        if len(units):
            largest, total, count = max(largest, float(units.max())), total + float(units.sum()), count + len(units)
    return largest, total / count


def measure_errors(*, quick: bool = False, progress: Progress = lambda line: None) -> dict[str, Any]:
    """``elementary``: of each function and instruction set ``largest`` and ``mean`` in units in the last place.
    ``kernels``: of each kernel and range ``largest`` and ``mean`` of C and of PyTorch, of outputs and of gradients,
    relative to the largest value. ``processor``: a line, since PyTorch's errors depend on it.

    quick: fewer numbers, one small size: whether everything runs
    """
    elementary = []
    for function in ELEMENTARY:
        for instructions in native.instruction_sets():
            progress(f"{function.name}, {instructions}")
            with native.forced(instructions):
                largest, mean = elementary_error(function, QUICK_STRIDE if quick else STRIDE)
            elementary.append(
                {"name": function.name, "instructions": instructions, "largest": largest, "mean": mean}
                | ({} if math.isinf(function.most) else {"most": function.most})
            )
    found = []
    for kernel in KERNELS:
        for values in kernel.ranges:
            progress(f"{kernel.name}, {values}")
            found.append({"name": kernel.name, "range": values, "sides": kernel.errors(values, quick=quick)})
    return {"elementary": elementary, "kernels": found, "quick": quick, "processor": describe_here()}
