"""The definition of the Vandermonde product, in plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor


def vandermonde_reference(c: Tensor, A: Tensor, length: int) -> Tensor:
    """K_l = sum_n c_n A_n^l, or twice its real part, one l after the other. Shapes as the fast form's."""
    power = torch.ones_like(A)
    outputs = []
    for _ in range(length):
        outputs.append((c * (power.unsqueeze(1) if c.ndim == 3 else power)).sum(-1))
        power = power * A
    K = torch.stack(outputs, -1) if outputs else c[..., :0] * A.sum()
    return 2 * K.real if K.is_complex() else K


def vandermonde_differentiable(c: Tensor, A: Tensor, length: int) -> Tensor:
    """The same map with all powers in memory: what a second derivative is taken through."""
    table = torch.ones_like(A).unsqueeze(-1)
    square = A
    while table.shape[-1] < length:
        table = torch.cat([table, table * square.unsqueeze(-1)], -1)
        square = square * square
    K = c @ table[..., :length] if c.ndim == 3 else (c.unsqueeze(1) @ table[..., :length]).squeeze(1)
    return 2 * K.real if K.is_complex() else K
