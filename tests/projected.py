"""Signals and options of projection."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

THETA = 0.7


def randn(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)).to(dtype)


def options(measure: str, theta: float = THETA) -> dict[str, Any]:
    return {} if measure == "legs" else {"theta": theta}
