"""Whatever a launch asks for the offline gate compiles: dtypes, tiles, warps, registers, on each family of cards."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from interpreted import long_but, needs_interpreter
from launched import CARDS, Card, recorded, why_not_built
from torch import Tensor

from statewise.kernels import gpu
from statewise.kernels.gpu.build import Build
from statewise.kernels.selective_scan.signature import Arguments as Scan
from statewise.kernels.ssd.reference import Arguments as SSD
from statewise.kernels.step import pytorch

pytestmark = [
    needs_interpreter,
    pytest.mark.skipif(not gpu.interprets(), reason="a GPU runs what is launched"),
]
NARROW, FULL, COMPLEX = (torch.bfloat16, torch.float16), torch.float32, torch.complex64
KINDS = (*NARROW, FULL)
Run = Callable[[], Any]


def room(*shape: int, dtype: torch.dtype = FULL) -> Tensor:
    return torch.empty(shape, dtype=dtype)


def ids(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


def norms() -> Iterator[Run]:
    plain, gated = gpu.module("rms_norm"), gpu.module("gated_rms_norm")
    widths = (1, 8, 24, 256, 260, 1000, 1024, 1536, 2048, 2049, 2560, 4096, 5120, 8192, 8200, 20_001)
    for dtype, width, rows in itertools.product(KINDS, widths, (1, 4099)):
        x, weight = room(rows, width, dtype=dtype), room(width)
        wide = room(rows, width + 3, dtype=dtype)[:, :width]  # rows that begin anywhere
        for m in (x, wide):
            yield lambda m=m, w=weight: (plain.forward(m, w, 1e-5), plain.backward(m, m, w, 1e-5))
        for groups, last in itertools.product((1, 4) if width % 4 == 0 else (1,), (False, True)):
            options = (weight, 1e-5, groups, last)
            yield lambda m=x, o=options: (gated.forward(m, m, *o), gated.backward(m, m, m, *o))


def convolutions() -> Iterator[Run]:
    path = gpu.module("short_convolution")
    for dtype, taps, width, options in itertools.product(KINDS, range(1, 9), (1, 24, 1536, 1540), (False, True)):
        x = room(2, 90, width, dtype=dtype)
        bias, segments = (room(width), ids(2, 90)) if options else (None, None)
        given = (x, room(width, taps), room(2, taps - 1, width), bias, segments, options)
        yield lambda x=x, g=given: (path.forward(*g), path.backward(x, *g))


def linear_scans() -> Iterator[Run]:
    path = gpu.module("linear_scan")
    for dtype, rows, length, width in itertools.product((*KINDS, COMPLEX), (1, 64), (1, 33, 5000), (1, 24, 100)):
        x, h0 = room(rows, length, width, dtype=dtype), room(rows, width, dtype=dtype)
        yield lambda x=x, h0=h0: (path.forward(x, x, h0), path.backward(x, x, x, h0))


def diagonal_scans() -> Iterator[Run]:
    path = gpu.module("diagonal_scan")
    for dtype, n, options in itertools.product(KINDS, (1, 3, 16, 17, 64, 100, 256, 300), (False, True)):
        u, A, state = room(2, 35, 5, 2, dtype=dtype), room(5, n, dtype=COMPLEX), room(2, 5, 2, n, 2)
        given = (u, A, A, A, room(5) if options else None, state, ids(2) if options else None)
        yield lambda u=u, s=state, g=given: (path.forward(*g), path.backward(u, s, *g))


def selective_scans() -> Iterator[Run]:
    path = gpu.module("selective_scan")
    states = (1, 4, 13, 16, 17, 32, 64, 100, 128, 256, 500, 1000, 1024)
    sizes = ((10, 1), (16, 16), (1536, 1), (64, 2))
    for dtype, n, (d, g), exact, options in itertools.product(
        (FULL, torch.bfloat16), states, sizes, (False, True), (False, True)
    ):
        u, keys, state, kept = room(1, 40, d, dtype=dtype), room(1, 40, g, n), room(1, d, n), room(1, 2, n, d)
        others = (room(d), u, room(d), ids(1, 40), True) if options else (None, None, None, None, False)
        given = Scan(u, u, room(d, n), keys, keys, state, *others, exact)

        def run(given: Scan = given, u: Tensor = u, state: Tensor = state, kept: Tensor = kept) -> None:
            path.forward(given, torch.empty_like(u), state, kept, path.CHUNK)
            path.backward(u, state, kept, given, path.CHUNK)

        yield run


def ssds() -> Iterator[Run]:
    path = gpu.module("ssd")
    widths, states = (1, 16, 48, 64, 128), (1, 24, 48, 64, 128, 192, 300)
    sizes = ((1, 5, 2, 1), (1, 2050, 2, 2), (4, 100, 8, 1))
    for dtype, p, n, (b, l, h, g) in itertools.product(KINDS, widths, states, sizes):
        x, keys, state = room(b, l, h, p, dtype=dtype), room(b, l, g, n, dtype=dtype), room(b, h, p, n)
        given = SSD(x, room(b, l, h), keys, keys, state, room(b, l, h), room(h), ids(b, l), 64)
        yield lambda x=x, s=state, g=given: (path.forward(g), path.backward(x, s, g))


def losses() -> Iterator[Run]:
    path = gpu.module("linear_cross_entropy")
    vocabularies = (1, 8, 257, 512, 513, 4096, 5000, 8192, 50_277, 50_280)
    for dtype, size, scales in itertools.product(KINDS, vocabularies, (None, room(3))):
        logits = room(3, size, dtype=dtype)
        yield lambda x=logits, s=scales: path.rows(x, ids(3), s)


def long_convolutions() -> Iterator[Run]:
    path = gpu.module("fft_convolution")
    sizes = (
        (5, 5),
        (1024, 1024),
        (1500, 1500),
        (4000, 4000),
        (8192, 8192),
        (3000, 100),
        (20_000, 4000),
        (20_000, 8192),
    )
    for dtype, (length, taps), p, b in itertools.product(NARROW, (*sizes, (5000, 2000)), (1, 2), (1, 16)):
        u, K, slope = room(b, length, 2, 1, dtype=dtype), room(2, p, taps), room(b, length, 2, p, 1, dtype=dtype)
        past = room(b, taps - 1, 2, 1, dtype=dtype)
        for before in (None, past):
            yield lambda u=u, K=K, s=slope, h=before: (path.forward(u, K, h), path.backward(s, u, K, h))


def time_invariant() -> Iterator[Run]:
    powers, fractions = gpu.module("vandermonde"), gpu.module("cauchy")
    for dtype, (w, p, n, length) in itertools.product(
        (FULL, COMPLEX), ((2, 1, 3, 10), (2, 2, 35, 4500), (300, 1, 64, 1000))
    ):
        c, A, slope = room(w, p, n, dtype=dtype), room(w, n, dtype=dtype), room(w, p, length)
        yield lambda c=c, A=A, s=slope, l=length: (powers.forward(c, A, l), powers.backward(s, c, A, l))
    for w, k, n, m in ((2, 1, 3, 10), (2, 9, 35, 450)):
        v, z, poles, slope = (room(*shape, dtype=COMPLEX) for shape in ((w, k, n), (1, m), (w, n), (w, k, m)))
        yield lambda v=v, z=z, l=poles, s=slope: (fractions.forward(v, z, l), fractions.backward(s, v, z, l, True))


def steps() -> Iterator[Run]:
    """As statewise/decoding/gpu_layers.py and product call them."""
    path = gpu.module("step")
    sizes = ((16, 5), (768, 3352), (1536, 768), (2560, 50_277), (5120, 2560), (8192, 100))
    for dtype, rows, (k, n), bits in itertools.product(KINDS, (1, 2, 8), sizes, (None, 8, 4)):
        x, weight, bias, y = (room(*shape, dtype=dtype) for shape in ((rows, k), (n, k), (n,), (rows, n)))
        given: Any = weight
        if bits is not None:
            scales = room(n, 1 if bits == 8 else -(-k // 32), dtype=torch.bfloat16)
            given = pytorch.pack(torch.zeros(n, k, dtype=torch.int8), scales, bits)
            yield lambda x=x, w=given, b=bias, y=y: path.norm_matvec(x, None, w, b, out=y)
        norm = pytorch.Norm(room(k, dtype=dtype), 1e-5)
        yield lambda x=x, m=norm, w=given, b=bias, y=y: path.norm_matvec(x, m, w, b, out=y)
        logits = y.float()
        yield lambda x=x, m=norm, w=given, y=logits: path.norm_matvec(x, m, w, out=y)
        shift = pytorch.Shift(room(rows, 3, 700), room(rows, 900, dtype=dtype), 10)
        for groups in (group for group in (1, 2, 4, 16) if k % (16 * group) == 0):
            end = (x.float(), norm._replace(n_groups=groups), given, bias, y, shift)
            yield lambda e=end, y=y: path.norm_matvec(*e, out=y)
    states = ((4, 20, 32, 4, 1), (24, 64, 128, 4, 1), (64, 64, 128, 4, 8), (80, 64, 256, 3, 1), (64, 64, 64, 2, 2))
    for dtype, rows, (heads, p, n, taps, groups) in itertools.product(KINDS, (1, 8), (*states, (1, 16, 16, 1, 1))):
        width = heads * p + 2 * groups * n
        per_head = (room(heads), room(heads), room(heads))
        for limit in ((0.0, float("inf")), (0.01, 0.5)):
            layer = pytorch.Layer(room(width, taps, dtype=dtype), room(width, dtype=dtype), *per_head, groups, limit)
            projected = room(rows, heads * p + width + heads, dtype=dtype)
            given = (projected, room(rows, taps - 1, width), room(rows, heads, p, n), layer)
            yield lambda g=given: path.mamba2_step(*g)


@functools.cache
def all_builds() -> list[Build]:
    return [build for kernel in gpu.KERNELS for build in gpu.module(kernel).builds()]


RUNS = (norms, convolutions, linear_scans, diagonal_scans, selective_scans, ssds, losses, long_convolutions)


@pytest.mark.parametrize("card", long_but([CARDS[1]], CARDS), ids=lambda card: card.target)
@pytest.mark.parametrize("runs", [*RUNS, time_invariant, steps], ids=lambda runs: runs.__name__)
def test_every_launch_is_compiled_by_the_gate(runs: Callable[[], Iterator[Run]], card: Card) -> None:
    builds = all_builds()
    n_launches, not_built = 0, set()
    for run in runs():
        with recorded(card) as launches:
            run()
        n_launches += len(launches)
        not_built |= {why_not_built(launch, builds, card) for launch in launches}
    assert n_launches >= 18
    assert not_built == {None}
