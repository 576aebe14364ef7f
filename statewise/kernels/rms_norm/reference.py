"""The definition of RMSNorm, in plain differentiable PyTorch."""

from __future__ import annotations

from torch import Tensor


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis. Shapes: x (..., width), weight (width,)."""
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight
