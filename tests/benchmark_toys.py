"""A benchmark of which every figure is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from statewise.benchmark.case import Missing


def fixed(milliseconds: float) -> Callable[[], Callable[[], Any]]:
    """A side that takes about so long, by busy arithmetic."""
    import time

    def action() -> torch.Tensor:
        end = time.perf_counter() + milliseconds / 1e3
        while time.perf_counter() < end:
            pass
        return torch.zeros(2)

    return lambda: action


def missing() -> Any:
    raise Missing('nothing is not installed; pip install "statewise[bench]"')
