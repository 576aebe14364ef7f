"""RMSNorm over the last axis as one differentiable operator."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.backend import c_runs
from statewise.kernels.registration import register
from statewise.kernels.rms_norm import native
from statewise.kernels.rms_norm.native import wrong_rows
from statewise.kernels.rms_norm.reference import rms_norm_reference
from statewise.kernels.stored import full_precision, refuse_unreal, stored_refusal

__all__ = ["rms_norm", "rms_norm_reference"]

_TAKES = {"x": "*rows width: floating", "weight": "sets width: full x"}


def _in_sets(x: Tensor, weight: Tensor) -> Tensor:
    """(n_sets, rows, width): each set of rows has a weight of its own, as several models at once have."""
    return x.reshape(weight.shape[0], x.shape[:-1].numel() // max(weight.shape[0], 1), x.shape[-1]).to(weight.dtype)


def _forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    if c_runs("rms_norm", stored_refusal(x=x, weight=weight)):
        return native.forward(x, None, weight, eps)
    if weight.shape[0] == 1:
        return F.rms_norm(x.to(weight.dtype), weight.shape[1:], weight[0], eps).to(x.dtype).contiguous()
    y = F.rms_norm(_in_sets(x, weight), weight.shape[1:], None, eps) * weight.unsqueeze(1)
    return y.to(x.dtype).reshape(x.shape)


def _adjoint(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if c_runs("rms_norm", stored_refusal(x=x, weight=weight)):
        grad_x, _, grad_weight = native.backward(grad, x, None, weight, eps)
        return grad_x, grad_weight
    u, g = _in_sets(x, weight), _in_sets(grad, weight)
    r = u.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
    normed = u * r
    grad_weight = (g * normed).sum(1)
    a = g * weight.unsqueeze(1)
    grad_x = a.addcmul_(normed, (normed * a).mean(-1, keepdim=True), value=-1).mul_(r)
    return grad_x.to(x.dtype).reshape(x.shape), grad_weight


def _fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _fake_adjoint(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    dx, dweight = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (x, weight))
    return dx, dweight


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.eps = inputs
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *_rms_norm_backward(grad, *ctx.saved_tensors, ctx.eps), None


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through the definition: rare, so it need not be fast."""
    given = ctx.saved_tensors
    dtype = given[2].dtype
    with torch.enable_grad():
        grad, x, weight = leaves = [m.detach().to(dtype).requires_grad_() for m in given]
        y = rms_norm_reference(_in_sets(x, weight), weight.unsqueeze(1), ctx.eps)
        first = torch.autograd.grad(y, (x, weight), grad.reshape(y.shape), create_graph=True)
        second = torch.autograd.grad(first, leaves, [g.to(dtype) for g in grads], materialize_grads=True)
    return *(s.to(m.dtype) for s, m in zip(second, given)), None


_rms_norm = register(
    "rms_norm",
    "(Tensor x, Tensor weight, float eps) -> Tensor",
    _forward,
    takes=_TAKES,
    needs=wrong_rows,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)
_rms_norm_backward = register(
    "rms_norm_backward",
    "(Tensor grad, Tensor x, Tensor weight, float eps) -> (Tensor, Tensor)",
    _adjoint,
    takes={"grad": "*rows width: floating", **_TAKES},
    needs=wrong_rows,
    fake=_fake_adjoint,
    setup_context=_setup_context,
    backward=_second_backward,
)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis.

    Shapes:   x: (..., width) with at least one axis before the last   weight: (width,)   ->   as x
    Cost:     in C one pass over x, and one over x and dy for the gradients; only x is kept for them.
    Numerics: computed in float32, or float64 if an input is; returned in the dtype of x.
    Errors:   InputError if the shapes disagree, and for complex numbers or integers.
    Source:   Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), eps=0.0)
    tensor([[0.8485, 1.1314]])
    """
    if x.ndim < 2 or weight.shape != x.shape[-1:]:
        raise InputError(
            f"rms_norm needs x (..., width) and weight (width,); got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    refuse_unreal("rms_norm", x=x, weight=weight)
    dtype = torch.promote_types(full_precision(x.dtype), full_precision(weight.dtype))
    stored = x if full_precision(x.dtype) == dtype else x.to(dtype)
    y: Tensor = _rms_norm(stored, weight.to(dtype).unsqueeze(0), eps)
    return y.to(x.dtype)
