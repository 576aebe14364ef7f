"""GELU and the gradient of its input in PyTorch, which has both."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def forward(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh").contiguous()


def backward(grad: Tensor, x: Tensor) -> tuple[Tensor]:
    return (torch.ops.aten.gelu_backward(grad, x, approximate="tanh").contiguous(),)
