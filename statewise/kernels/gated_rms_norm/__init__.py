"""RMSNorm with a SiLU gate before or after it as one differentiable operator."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.gated_rms_norm import native, pytorch
from statewise.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from statewise.kernels.rms_norm.native import wrong_rows
from statewise.kernels.rms_norm.pytorch import in_sets
from statewise.kernels.stored import refuse_unreal, stored_refusal
from statewise.precision import full_precision

__all__ = ["gated_rms_norm", "gated_rms_norm_reference"]


def _definition(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    u, gate, own = in_sets(x, weight), in_sets(z, weight), weight.unsqueeze(1)
    y = gated_rms_norm_reference(u, gate, own, eps, n_groups=n_groups, norm_before_gate=norm_before_gate)
    return y.to(x.dtype).reshape(x.shape)


_gated_rms_norm = register_with_adjoint(
    "gated_rms_norm",
    "Tensor x, Tensor z, Tensor weight, float eps, int n_groups, bool norm_before_gate",
    native,
    pytorch,
    definition=_definition,
    takes={"x": "*rows width: floating", "z": "*rows width: as x", "weight": "sets width: full x"},
    gives={"y": "*rows width: as x"},
    needs=wrong_rows,
    refusal=stored_refusal,
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
