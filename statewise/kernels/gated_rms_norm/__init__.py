"""RMSNorm with a SiLU gate before or after it as one differentiable operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.backend import c_runs
from statewise.kernels.gated_rms_norm import pytorch
from statewise.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from statewise.kernels.registration import register
from statewise.kernels.rms_norm import native
from statewise.kernels.rms_norm.native import GATE_FIRST, GATE_LAST, wrong_rows
from statewise.kernels.stored import full_precision, refuse_unreal, stored_refusal

__all__ = ["gated_rms_norm", "gated_rms_norm_reference"]

_TAKES = {"x": "*rows width: floating", "z": "*rows width: as x", "weight": "sets width: full x"}


def _definition(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    """With weights (n_sets, width), in their dtype: each set of rows has its own, as several models at once have."""
    n_sets, width = weight.shape
    x, z = (m.reshape(n_sets, x.shape[:-1].numel() // max(n_sets, 1), width).to(weight.dtype) for m in (x, z))
    weight = weight.unsqueeze(1)
    return gated_rms_norm_reference(x, z, weight, eps, n_groups=n_groups, norm_before_gate=norm_before_gate)


def _forward(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    if c_runs("gated_rms_norm", stored_refusal(x=x, z=z, weight=weight)):
        gate = GATE_LAST if norm_before_gate else GATE_FIRST
        return native.forward(x, z, weight, eps, n_groups=n_groups, gate=gate)
    return pytorch.forward(x, z, weight, eps, n_groups, norm_before_gate)


def _adjoint(
    grad: Tensor, x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    if c_runs("gated_rms_norm", stored_refusal(x=x, z=z, weight=weight)):
        gate = GATE_LAST if norm_before_gate else GATE_FIRST
        grad_x, grad_z, grad_weight = native.backward(grad, x, z, weight, eps, n_groups=n_groups, gate=gate)
        assert grad_z is not None  # as z is
        return grad_x, grad_z, grad_weight
    return pytorch.backward(grad, x, z, weight, eps, n_groups, norm_before_gate)


def _fake(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _fake_adjoint(
    grad: Tensor, x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dz, dweight = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (x, z, weight))
    return dx, dz, dweight


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, eps, n_groups, norm_before_gate = inputs
    ctx.options = (eps, n_groups, norm_before_gate)
    ctx.save_for_backward(*tensors)


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    return *_gated_rms_norm_backward(grad, *ctx.saved_tensors, *ctx.options), None, None, None


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through the definition: rare, so it need not be fast."""
    given = ctx.saved_tensors
    dtype = given[3].dtype
    with torch.enable_grad():
        grad, *inputs = leaves = [m.detach().to(dtype).requires_grad_() for m in given]
        y = _definition(*inputs, *ctx.options)
        first = torch.autograd.grad(y, inputs, grad.reshape(y.shape), create_graph=True)
        second = torch.autograd.grad(first, leaves, [g.to(dtype) for g in grads], materialize_grads=True)
    return *(s.to(m.dtype) for s, m in zip(second, given)), None, None, None


_gated_rms_norm = register(
    "gated_rms_norm",
    "(Tensor x, Tensor z, Tensor weight, float eps, int n_groups, bool norm_before_gate) -> Tensor",
    _forward,
    takes=_TAKES,
    needs=wrong_rows,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)
_gated_rms_norm_backward = register(
    "gated_rms_norm_backward",
    "(Tensor grad, Tensor x, Tensor z, Tensor weight, float eps, int n_groups, bool norm_before_gate) "
    "-> (Tensor, Tensor, Tensor)",
    _adjoint,
    takes={"grad": "*rows width: floating", **_TAKES},
    needs=wrong_rows,
    fake=_fake_adjoint,
    setup_context=_setup_context,
    backward=_second_backward,
)


def gated_rms_norm(
    x: Tensor, z: Tensor, weight: Tensor, eps: float = 1e-5, *, n_groups: int = 1, norm_before_gate: bool = False
) -> Tensor:
    """RMSNorm(x * SiLU(z)), or with ``norm_before_gate`` RMSNorm(x) * SiLU(z); each group normed by itself.

    Shapes:   x, z: (..., width) with at least one axis before the last   weight: (width,)   ->   as x; the mean square
              is over width / n_groups features
    Cost:     in C one pass over x and z, and one over x, z and dy for the gradients; only x and z are kept for them.
    Numerics: computed in float32, or float64 if an input is; returned in the dtype of x.
    Errors:   InputError if the shapes disagree, n_groups does not divide width, and for complex numbers or integers.
    Source:   Dao & Gu 2024, arXiv:2405.21060, sec. 7.2 (the norm) and sec. 8.1 (groups, for tensor parallelism).
    """
    if x.ndim < 2 or x.shape != z.shape or weight.shape != x.shape[-1:]:
        raise InputError(
            "gated_rms_norm needs x and z (..., width) and weight (width,); "
            f"got {tuple(x.shape)}, {tuple(z.shape)} and {tuple(weight.shape)}"
        )
    if not 1 <= n_groups <= max(x.shape[-1], 1) or x.shape[-1] % n_groups:
        raise InputError(f"gated_rms_norm: n_groups={n_groups} does not divide the width {x.shape[-1]}")
    refuse_unreal("gated_rms_norm", x=x, z=z, weight=weight)
    dtype = torch.promote_types(x.dtype, torch.promote_types(z.dtype, full_precision(weight.dtype)))
    if x.dtype == z.dtype and full_precision(x.dtype) == dtype:
        dtype = x.dtype  # stored narrower than computed
    weight = weight.to(full_precision(dtype)).unsqueeze(0)
    y: Tensor = _gated_rms_norm(x.to(dtype), z.to(dtype), weight, eps, n_groups, norm_before_gate)
    return y.to(x.dtype)
