"""The definition of GELU with the tanh approximation, in plain differentiable PyTorch."""

from __future__ import annotations

import math

from torch import Tensor


def gelu_tanh_reference(x: Tensor) -> Tensor:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, element by element."""
    return 0.5 * x * (1 + (math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)).tanh())
