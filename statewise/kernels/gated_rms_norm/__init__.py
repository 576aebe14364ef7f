"""RMSNorm with a SiLU gate before or after it as one differentiable operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.arguments import Sizes
from statewise.kernels.gated_rms_norm import native, pytorch
from statewise.kernels.gated_rms_norm.reference import gated_rms_norm_reference
from statewise.kernels.stored import refuse_unreal, stored_refusal
from statewise.precision import as_dtype, full_precision

__all__ = ["gated_rms_norm", "gated_rms_norm_reference"]


def definition(x: Tensor, z: Tensor, weight: Tensor, eps: float, n_groups: int, norm_before_gate: bool) -> Tensor:
    """The reference in the dtype of the weight, returned in that of x: what the registered operator computes."""
    u, gate = (m.to(weight.dtype) for m in (x, z))
    y = gated_rms_norm_reference(u, gate, weight, eps, n_groups=n_groups, norm_before_gate=norm_before_gate)
    return y.to(x.dtype)


def _wrong_groups(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    width, groups = sizes["width"], given["n_groups"]
    if 1 <= groups <= max(width, 1) and width % groups == 0:  # 0 features have no end of divisors
        return None
    return f"n_groups of at least 1 that divides the width of {width}; got {groups}"


_gated_rms_norm = register_with_adjoint(
    "gated_rms_norm",
    "Tensor x, Tensor z, Tensor weight, float eps, int n_groups, bool norm_before_gate",
    native,
    pytorch,
    definition=definition,
    takes={"x": "*rows width: floating", "z": "*rows width: as x", "weight": "width: full x"},
    gives={"y": "*rows width: as x"},
    needs=_wrong_groups,
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
    dtype = full_precision(x.dtype, z.dtype, weight.dtype)
    if x.dtype == z.dtype and full_precision(x.dtype) == dtype:
        dtype = x.dtype  # stored narrower than computed
    weight = as_dtype(weight, full_precision(dtype))
    x_z = as_dtype(x, dtype), as_dtype(z, dtype)
    y: Tensor = _gated_rms_norm(*x_z, weight, eps, n_groups, norm_before_gate)
    return as_dtype(y, x.dtype)
