"""The product by oneDNN, which PyTorch has on board and calls for some fused layers."""

from __future__ import annotations

import functools

import torch
from torch import Tensor


@functools.cache
def available() -> bool:
    """Whether this PyTorch has oneDNN's linear layer, and whether it takes plain tensors in full precision."""
    if not torch.backends.mkldnn.is_available():
        return False
    try:
        x, weight = torch.tensor([[1.0, 2.0**-20]]), torch.tensor([[1.0, 1.0], [0.0, 1.0]])
        return bool(torch.equal(product(x, weight, None), torch.tensor([[1.0 + 2.0**-20, 2.0**-20]])))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (m, k), weight (n, k) -> x W^T + b; float32 and on the CPU."""
    if 0 in (*x.shape, *weight.shape):
        return torch.nn.functional.linear(x, weight, bias)
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y
