"""How far the float32 scan is from its definition in float64."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from statewise.benchmark.case import OURS, with_kernels
from statewise.benchmark.workloads import scan


def scan_error(side: str, quick: bool) -> float:
    """max |y - y64| / max |y64| at the size of 130M parameters."""
    tensors = scan.inputs(32 if quick else 2048, 16 if quick else 1536)
    h0 = torch.zeros(1, tensors[0].shape[2], tensors[2].shape[1])
    return _error(side, tensors, h0)


def scan_error_of_any_shape(side: str, quick: bool) -> float:
    """The worst over shapes that fit no vector, batches, groups, initial states; final states count too."""
    lengths = (1, 33) if quick else (1, 2, 63, 257)
    shapes = itertools.product((3, 20) if quick else (1, 3, 16, 20, 64), lengths, (1, 3), (1, 2, 6))
    worst = 0.0
    for n_states, length, batch, groups in shapes:
        u, dt, A, B, C, D, gate = scan.inputs(length, 6, n_states, batch)
        B, C = (m.expand(-1, -1, groups, -1) * torch.arange(1.0, groups + 1)[:, None] for m in (B, C))
        h0 = torch.randn(batch, 6, n_states, generator=torch.Generator().manual_seed(length))
        worst = max(worst, _error(side, [u, dt, A, B, C, D, gate], h0))
    return worst


def _error(side: str, tensors: list[Tensor], h0: Tensor) -> float:
    from statewise.kernels.selective_scan import selective_scan, selective_scan_reference

    def arguments(dtype: torch.dtype) -> tuple[list[Tensor], dict[str, Any]]:
        u, dt, A, B, C, D, gate = (m.to(dtype) for m in tensors)
        return [u, dt, A, B, C, h0.to(dtype)], {"D": D, "gate": gate, "softplus": True}

    function = with_kernels("c" if side == OURS else "torch", selective_scan)
    with torch.no_grad():
        positional, named = arguments(torch.float32)
        found = function(*positional, **named)
        positional, named = arguments(torch.float64)
        known = selective_scan_reference(*positional, **named)
    pairs = zip(found, known)
    return max(float((y.double() - exact).abs().max() / exact.abs().max()) for y, exact in pairs)
