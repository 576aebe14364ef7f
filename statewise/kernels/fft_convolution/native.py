"""The convolution in C (fft_convolution.inc.h): channels in the lanes of vectors, time in the cache."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.backend import backend, refusal_of
from statewise.kernels.fft_convolution.pytorch import compute_dtype
from statewise.native.memory import empty

_VECTOR_BYTES = 64  # of the widest instruction set
_ITEMS = 16  # into how many pieces the work is cut at least, where there are rows enough


def refusal(u: Tensor, **others: Tensor | None) -> str | None:
    """Why C cannot take these tensors or, unless it was asked for by name, why PyTorch is faster; None if neither."""
    columns = u.shape[2] * u.shape[3]
    if backend() != "c" and columns * compute_dtype(u, *others.values()).itemsize < _VECTOR_BYTES // 2:
        return f"{columns} columns leave most of a vector empty, and PyTorch's FFT is faster"
    return refusal_of(u=u, **others)


class Plan(NamedTuple):
    """m complex points for windows of n = 2 m real numbers, and the passes of their transform."""

    points: int
    passes: Tensor  # the radices, then where the factors of each pass begin
    factors: Tensor


def forward(u: Tensor, K: Tensor, history: Tensor | None) -> Tensor:
    """u (b, l, w, t), K (w, p, taps), history (b, taps - 1, w, t) -> y (b, l, w, p, t)."""
    (b, l, w, t), (p, taps), dtype = u.shape, K.shape[1:], compute_dtype(u, K, history)
    if u.numel() * p == 0:
        return torch.zeros(b, l, w, p, t, dtype=u.dtype)
    inputs, before, filters = _plain(u, dtype), _plain(history, dtype), _filters(K, t, dtype)
    plan, n_shares = _plan_for(u, taps, history, dtype), _shares(b, w * t, dtype)
    scratch = _scratch(plan, 2, dtype)
    found = []
    for j in range(p):
        y = empty(b, l, w, t, dtype=dtype)
        native.function("fft_convolution_forward", dtype, "ppppllllllllpppll")(
            *(inputs, before, filters[j], y, b, l, _n_history(history), taps, w * t, plan.points, n_shares),
            *(len(plan.passes) // 2, plan.passes, plan.factors, scratch, scratch.shape[1], native.n_threads()),
        )
        found.append(y)
    return (found[0].unsqueeze(3) if p == 1 else torch.stack(found, 3)).to(u.dtype)


def backward(grad: Tensor, u: Tensor, K: Tensor, history: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Gradients of u, K and history."""
    (b, l, w, t), (p, taps), dtype = u.shape, K.shape[1:], compute_dtype(u, K, history)
    if grad.numel() == 0:
        return torch.zeros_like(u), torch.zeros_like(K), None if history is None else torch.zeros_like(history)
    inputs, before, filters = _plain(u, dtype), _plain(history, dtype), _filters(K, t, dtype)
    plan, n_shares = _plan_for(u, taps, history, dtype), _shares(b, w * t, dtype)
    scratch = _scratch(plan, 4, dtype)
    found: list[tuple[Tensor, Tensor | None]] = []
    dK = torch.empty(p, n_shares, taps, w, t, dtype=dtype)
    for j in range(p):
        du = empty(b, l, w, t, dtype=dtype)
        d_history = None if history is None else empty(*history.shape, dtype=dtype)
        native.function("fft_convolution_backward", dtype, "pppppppllllllllpppll")(
            *(_plain(grad[:, :, :, j], dtype), inputs, before, filters[j], du, d_history, dK[j]),
            *(b, l, _n_history(history), taps, w * t, plan.points, n_shares),
            *(len(plan.passes) // 2, plan.passes, plan.factors, scratch, scratch.shape[1], native.n_threads()),
        )
        found.append((du, d_history))
    du, d_history = found[0]
    for more, more_history in found[1:]:
        du += more
        if d_history is not None and more_history is not None:
            d_history += more_history
    d_filters = (dK[:, 0] if n_shares * t == 1 else dK.sum((1, 4)).unsqueeze(3)).squeeze(3)  # (p, taps, w)
    dK_out = torch.empty(K.shape, dtype=K.dtype)
    for j in range(p):
        dK_out[:, j] = d_filters[j].mT
    return du.to(u.dtype), dK_out, d_history if history is None or d_history is None else d_history.to(history.dtype)


def _plain(x: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if x is None else x.to(dtype).contiguous()


def _filters(K: Tensor, t: int, dtype: torch.dtype) -> Tensor:
    """(w, p, taps) -> (p, taps, w t): channels in the lanes, as the inputs have them."""
    filters = empty(K.shape[1], K.shape[2], K.shape[0], dtype=dtype)
    for j in range(K.shape[1]):
        filters[j] = K[:, j].mT
    return filters if t == 1 else filters.repeat_interleave(t, 2)


def _n_history(history: Tensor | None) -> int:
    return 0 if history is None else history.shape[1]


def _shares(batch: int, columns: int, dtype: torch.dtype) -> int:
    """Into how many shares the rows of the batch are cut: of the shapes alone, so that the sums are always the same."""
    vectors = -(-columns * dtype.itemsize // _VECTOR_BYTES)
    return min(batch, -(-_ITEMS // vectors))


def _scratch(plan: Plan, planes: int, dtype: torch.dtype) -> Tensor:
    return empty(native.n_threads(), planes * plan.points * 2 * _VECTOR_BYTES // dtype.itemsize, dtype=dtype)


def _plan_for(u: Tensor, taps: int, history: Tensor | None, dtype: torch.dtype) -> Plan:
    return _plan(_points(u.shape[1] + _n_history(history), taps), dtype, native.instruction_set() == "avx512")


@functools.lru_cache(maxsize=64)
def _points(length: int, taps: int) -> int:
    """m of the cheapest overlap-save: one window for everything, or windows for chunks of a longer sequence."""
    sizes = sorted(odd << k for odd in (1, 3, 5) for k in range(2, 48))
    last = next(m for m in sizes if 2 * m >= length + taps - 1)
    sizes = [m for m in sizes if taps <= m and 128 <= m < last] + [last]
    return min(sizes, key=lambda m: -(-length // (2 * m - taps + 1)) * m * (math.log2(m) + 4))


@functools.lru_cache(maxsize=16)
def _plan(points: int, dtype: torch.dtype, by_eight: bool) -> Plan:
    """by_eight: radix 8 (it needs 32 registers), else 4. Angles are exact or rounded once, in turns, in float64."""
    radices = _radices(points, by_eight)
    turns = torch.tensor([0.25], dtype=torch.float64)  # c of each block: i for the whole
    offsets, factors, n_factors = [], [], 0
    for radix in radices:
        if radix % 2:
            angles = torch.stack([turns * j / radix for j in range(1, radix)], 1)
            children = torch.stack([turns / radix + j / radix for j in range(radix)], 1)
        else:
            angles = torch.stack([turns / 2, turns / 4, turns / 8, turns / 8 + 0.125][: max(1, radix // 2)], 1)
            children = turns[:, None]
            while children.shape[1] < radix:
                children = torch.stack([children / 2, children / 2 + 0.5], 2).flatten(1)
        offsets.append(n_factors)
        factors.append(torch.view_as_real(torch.polar(torch.ones_like(angles), 2 * math.pi * angles)).flatten())
        n_factors += factors[-1].numel()
        turns = children.flatten()
    return Plan(points, torch.tensor(radices + offsets), torch.cat(factors).to(dtype))


def _radices(points: int, by_eight: bool) -> list[int]:
    """The radices of 1, 3 or 5 times a power of 2 that is at least 4."""
    twos = (points & -points).bit_length() - 1
    odd = points >> twos
    first = [odd] if odd > 1 else []
    if not by_eight:
        return [*first, *[2] * (twos % 2), *[4] * (twos // 2)]
    fours = {0: 0, 1: 2, 2: 1}[twos % 3]
    return [*first, *[8] * ((twos - 2 * fours) // 3), *[4] * fours]
