"""Time and memory on a device, and the two limits of a card: bytes and products a second."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

MOST_CALLS = 50


def milliseconds(action: Callable[[], Any], device: torch.device, *, seconds: float = 0.4) -> float:
    """The median of one call, behind warm-ups; on a GPU between two events of its stream.

    The calls are queued one behind the other, so that the GPU does not wait for Python, unless Python is the slower.
    """
    for _ in range(2):
        action()
    wait(device)
    begun = time.perf_counter()
    action()
    wait(device)
    n_calls = max(3, min(MOST_CALLS, int(seconds / max(time.perf_counter() - begun, 1e-6))))
    if device.type != "cuda":
        found = []
        for _ in range(n_calls):
            begun = time.perf_counter()
            action()
            found.append(1e3 * (time.perf_counter() - begun))
        return statistics.median(found)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n_calls + 1)]
    events[0].record()
    for event in events[1:]:
        action()
        event.record()
    wait(device)
    return statistics.median(a.elapsed_time(b) for a, b in pairwise(events))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(action: Callable[[], Any], device: torch.device) -> int | None:
    """The most that one call holds above what was there before; None where PyTorch does not count it."""
    if device.type != "cuda":
        action()
        return None
    action()  # what is loaded and compiled with the first call does not count
    wait(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    action()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def bandwidth(device: torch.device, n_bytes: int) -> float:
    """Bytes a second, read and written, of a copy."""
    source = torch.zeros(n_bytes // 8, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    taken = milliseconds(lambda: target.copy_(source), device)
    return 2e3 * source.numel() * 4 / taken


def products(device: torch.device, size: int, dtype: torch.dtype = torch.bfloat16) -> float:
    """Operations a second of a product of two square matrices: a multiplication and an addition are two."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    return 2e3 * size**3 / milliseconds(lambda: torch.mm(a, b, out=out), device)


def share(work: float, per_second: float, taken: float) -> float:
    """The part that was of use, of what the card could do in these milliseconds."""
    return work / per_second / (taken / 1e3)
