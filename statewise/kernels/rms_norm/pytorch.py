"""RMSNorm and its adjoint in PyTorch."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: (..., width); weight: (n_sets, width), the rows of x being so many equal shares."""
    if weight.shape[0] == 1:
        return F.rms_norm(x.to(weight.dtype), weight.shape[1:], weight[0], eps).to(x.dtype).contiguous()
    y = F.rms_norm(in_sets(x, weight), weight.shape[1:], None, eps) * weight.unsqueeze(1)
    return y.to(x.dtype).reshape(x.shape)


def backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The gradients of x and weight."""
    u, g = in_sets(x, weight), in_sets(grad, weight)
    r = u.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = u * r
    grad_weight = (g * normed).sum(1)
    a = g * weight.unsqueeze(1)
    grad_x = a.addcmul_(normed, (normed * a).mean(-1, keepdim=True), value=-1).mul_(r)
    return grad_x.to(x.dtype).reshape(x.shape), grad_weight


def in_sets(x: Tensor, weight: Tensor) -> Tensor:
    """(n_sets, rows, width): each set of rows has a weight of its own, as several models at once have."""
    return x.reshape(weight.shape[0], x.shape[:-1].numel() // max(weight.shape[0], 1), x.shape[-1]).to(weight.dtype)
