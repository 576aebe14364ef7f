"""The definition of RMSNorm with a SiLU gate, in plain differentiable PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_rms_norm_reference(
    x: Tensor, z: Tensor, weight: Tensor, eps: float = 1e-5, *, n_groups: int = 1, norm_before_gate: bool = False
) -> Tensor:
    """norm(x SiLU(z)) weight, or norm(x) weight SiLU(z). Shapes: x, z (..., width), weight (width,) or to broadcast."""
    gate = F.silu(z)
    groups = (x if norm_before_gate else x * gate).unflatten(-1, (n_groups, -1))
    y = (groups * torch.rsqrt(groups.square().mean(-1, keepdim=True) + eps)).flatten(-2) * weight
    return y * gate if norm_before_gate else y
