"""What the selective scan in PyTorch works on at a time: some rows, channels and chunks of time of its arguments.

A block holds its states as (b, t, g, n, c): channels last, so that every product broadcasts along memory, and sums over
states are matrix products. On a CPU a block is one chunk of time and stays in the cache. Where every call is a launch
it has all rows and channels and many chunks, each a row of its own. Complex numbers are PyTorch's own inside.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.pairs import as_complex
from statewise.kernels.selective_scan.signature import Arguments

# Of the states in a block: two float32 megabytes, more than the cache of a core. Measured on one thread: with a quarter
# of that a forward pass takes a fifth longer, because of its many calls, and with twice as many a tenth.
_CACHED_NUMBERS = 2**19
_RESIDENT_NUMBERS = 2**26  # the same off the CPU: 256 MiB, of which a backward pass holds about six at once
_CHUNKS_AT_ONCE = 64  # more would save few launches: the way from chunk to chunk has as many steps as chunks


class Block(NamedTuple):
    """Chunks of time of some rows and channels: u, delta (b, t, g, 1, c), A (g, n, c), B, C (b, t, g, n, 1).

    With several chunks b is rows times chunks, the chunks of a row one after the other.
    """

    u: Tensor
    delta: Tensor
    A: Tensor
    B: Tensor
    C: Tensor
    passes: Tensor | None  # (t, b, 1, 1, 1), whether the state before a step reaches it; None: always
    exact: bool
    chunks: int


class Span(NamedTuple):
    """Steps that are computed at once: ``chunks`` chunks, of which ``first`` is the first."""

    first: int
    chunks: int
    start: int
    stop: int


def is_launched(device: torch.device) -> bool:
    """Whether each call is a launch, which for small tensors takes longer than their arithmetic."""
    return device.type != "cpu"


def blocks(arguments: Arguments, chunk_length: int) -> Iterator[tuple[slice, slice, slice]]:
    """(rows, groups, channels of a group) of the blocks."""
    b, length, d = arguments.u.shape
    g, n = arguments.B.shape[2:4]
    room = max(1, _CACHED_NUMBERS // max(1, n * min(length, chunk_length)))  # channels, of all rows
    if is_launched(arguments.u.device):
        room = b * d
    channels = max(1, min(d // g, room))
    groups = max(1, min(g, room // channels))
    rows = max(1, room // (channels * groups))
    for row in range(0, b, rows):
        for group in range(0, g, groups):
            for channel in range(0, d // g, channels):
                yield slice(row, row + rows), slice(group, group + groups), slice(channel, channel + channels)


def spans(arguments: Arguments, chunk_length: int) -> list[Span]:
    """The whole time in its order; a last chunk that is shorter comes alone."""
    b, length, d = arguments.u.shape
    at_once = 1
    if is_launched(arguments.u.device):
        each = arguments.h0.element_size() / 4 * (2 if arguments.is_complex else 1) * (3 if arguments.exact else 1)
        numbers = int(each * b * d * arguments.B.shape[3] * chunk_length)  # the exact hold has tensors of its own
        at_once = max(1, min(_CHUNKS_AT_ONCE, _RESIDENT_NUMBERS // max(1, numbers)))
    whole = length // chunk_length
    found = []
    for first in range(0, whole, at_once):
        chunks = min(at_once, whole - first)
        found.append(Span(first, chunks, first * chunk_length, (first + chunks) * chunk_length))
    if length % chunk_length:
        found.append(Span(whole, 1, whole * chunk_length, length))
    return found


def folded(m: Tensor, chunks: int) -> Tensor:
    """(rows, chunks * t, ...) -> (rows * chunks, t, ...); a copy where there are several chunks."""
    return m if chunks == 1 else m.unflatten(1, (chunks, -1)).flatten(0, 1)


def unfolded(m: Tensor, chunks: int) -> Tensor:
    """(rows * chunks, t, ...) -> (rows, chunks * t, ...)"""
    return m if chunks == 1 else m.unflatten(0, (-1, chunks)).flatten(1, 2)


def by_group(m: Tensor, g: int) -> Tensor:
    """(..., d) -> (..., g, d/g)"""
    return m.unflatten(-1, (g, m.shape[-1] // g))


def states_by_group(m: Tensor, g: int, is_complex: bool) -> Tensor:
    """(..., d, n[, 2]) -> (..., g, n, d/g), complex if it is; a view."""
    m = as_complex(m) if is_complex else m
    return m.unflatten(-2, (g, m.shape[-2] // g)).transpose(-1, -2)


class Views(NamedTuple):
    """The arguments with their groups as an axis of its own."""

    u: Tensor  # (b, l, g, c)
    raw: Tensor  # (b, l, g, c)  dt
    A: Tensor  # (g, n, c)
    B: Tensor  # (b, l, g, n)
    C: Tensor
    h0: Tensor  # (b, g, n, c)
    D: Tensor | None  # (g, c)
    gate: Tensor | None
    dt_bias: Tensor | None
    passes: Tensor | None  # (b, l, 1, 1, 1)

    def at(self, rows: slice, groups: slice, channels: slice) -> Views:
        """One block of all of them, over the whole time."""
        u, raw, A, B, C, h0, D, gate, dt_bias, passes = self
        sequence = (rows, slice(None), groups)
        return Views(
            u[(*sequence, channels)],
            raw[(*sequence, channels)],
            A[groups, :, channels],
            B[sequence],
            C[sequence],
            h0[rows, groups, :, channels],
            None if D is None else D[groups, channels],
            None if gate is None else gate[(*sequence, channels)],
            None if dt_bias is None else dt_bias[groups, channels],
            None if passes is None else passes[rows],
        )

    def during(self, span: Span, softplus: bool, exact: bool) -> tuple[Block, Tensor]:
        """The block of these chunks, and dt + dt_bias before the softplus."""
        u, raw, B, C = (folded(m[:, span.start : span.stop], span.chunks) for m in (self.u, self.raw, self.B, self.C))
        raw = raw if self.dt_bias is None else raw + self.dt_bias
        delta = softplus_of(raw) if softplus else raw
        passes = None
        if self.passes is not None:
            passes = folded(self.passes[:, span.start : span.stop], span.chunks).transpose(0, 1)
        block = Block(
            u.unsqueeze(3), delta.unsqueeze(3), self.A, B.unsqueeze(4), C.unsqueeze(4), passes, exact, span.chunks
        )
        return block, raw


def views_of(arguments: Arguments) -> Views:
    u, dt, A, B, C, h0, D, gate, dt_bias, segments, _, _ = arguments
    g, is_complex = B.shape[2], arguments.is_complex
    passes = None
    if segments is not None:
        passes = segments == torch.cat([torch.zeros_like(segments[:, :1]), segments[:, :-1]], 1)
        passes = passes[..., None, None, None]
    return Views(
        by_group(u, g),
        by_group(dt, g),
        states_by_group(A, g, is_complex),
        as_complex(B) if is_complex else B,
        as_complex(C) if is_complex else C,
        states_by_group(h0, g, is_complex),
        None if D is None else by_group(D, g),
        None if gate is None else by_group(gate, g),
        None if dt_bias is None else by_group(dt_bias, g),
        passes,
    )


def softplus_of(x: Tensor) -> Tensor:
    return F.softplus(x, threshold=40.0)  # above 40 the linear stand-in is exact to rounding; e^x would overflow
