"""RMSNorm and its adjoint in PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: (..., width); weight: (width,)."""
    return F.rms_norm(x.to(weight.dtype), weight.shape, weight, eps).to(x.dtype).contiguous()


def backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight."""
    u, g = rows_of(x, weight), rows_of(grad, weight)
    r = u.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = u * r
    grad_weight = (g * normed).sum(0)
    a = g * weight
    grad_x = a.addcmul_(normed, (normed * a).mean(-1, keepdim=True), value=-1).mul_(r)
    return grad_x.to(x.dtype).reshape(x.shape), grad_weight


def rows_of(x: Tensor, weight: Tensor) -> Tensor:
    """x as (rows, width), in the dtype of the weight."""
    return x.reshape(x.shape[:-1].numel(), x.shape[-1]).to(weight.dtype)
