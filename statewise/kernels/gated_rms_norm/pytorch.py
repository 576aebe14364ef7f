"""The gated norm and its adjoint in PyTorch, written out: inside an operator there is no autograd."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.rms_norm.pytorch import rows_of


def forward(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    """x, z: (..., width); weight: (width,)."""
    u, gate = rows_of(x, weight), F.silu(rows_of(z, weight))
    u = u if norm_before_gate else u * gate
    groups = u.unflatten(-1, (n_groups, -1))
    y = F.rms_norm(groups, groups.shape[-1:], None, eps).flatten(-2) * weight
    y = y.mul_(gate) if norm_before_gate else y
    return y.to(x.dtype).reshape(x.shape).contiguous()


def backward(
    grad: Tensor, x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, z and weight: with a = w dy (times the gate where that comes after) and r = 1 / rms(u),
    du = r (a - n mean(n a)) where n = r u, the means being over groups."""
    x_, z_, grad_ = (rows_of(m, weight) for m in (x, z, grad))
    gate = F.silu(z_)
    u = x_ if norm_before_gate else x_ * gate
    outer = grad_ * gate if norm_before_gate else grad_
    u_groups, a = (m.unflatten(-1, (n_groups, -1)) for m in (u, outer * weight))
    r = u_groups.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = u_groups * r
    mean = (normed * a).mean(-1, keepdim=True)
    grad_u = a.addcmul_(normed, mean, value=-1).mul_(r).flatten(-2)
    normed = normed.flatten(-2)
    grad_weight = (outer * normed).sum(0)
    grad_gate = grad_ * normed * weight if norm_before_gate else grad_u * x_
    grad_x = grad_u if norm_before_gate else grad_u * gate
    grad_z = torch.ops.aten.silu_backward(grad_gate, z_)
    grad_x, grad_z = (m.to(x.dtype).reshape(x.shape).contiguous() for m in (grad_x, grad_z))
    return grad_x, grad_z, grad_weight
