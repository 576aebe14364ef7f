"""RMSNorm over the last axis as one differentiable operator."""

from __future__ import annotations

from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.rms_norm import native, pytorch
from statewise.kernels.rms_norm.reference import rms_norm_reference
from statewise.kernels.stored import refuse_unreal, stored_refusal
from statewise.precision import as_dtype, full_precision

__all__ = ["rms_norm", "rms_norm_reference"]


def definition(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The reference in the dtype of the weight, returned in that of x: what the registered operator computes."""
    return rms_norm_reference(x.to(weight.dtype), weight, eps).to(x.dtype)


_rms_norm = register_with_adjoint(
    "rms_norm",
    "Tensor x, Tensor weight, float eps",
    native,
    pytorch,
    definition=definition,
    takes={"x": "*rows width: floating", "weight": "width: full x"},
    gives={"y": "*rows width: as x"},
    refusal=stored_refusal,
)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-5) -> Tensor:
    """x / sqrt(mean(x^2) + eps) * weight, over the last axis.

    Shapes:   x: (..., width) with at least one axis before the last   weight: (width,)   ->   as x
    Cost:     in C one pass over x, and one over x and dy for the gradients; only x is kept for them.
    Numerics: computed in float32, or float64 if an input is; returned in the dtype of x.
    Errors:   InputError if the shapes disagree, and for complex numbers or integers.
    Source:   Zhang & Sennrich 2019, arXiv:1910.07467, eq. 4.

    >>> import torch
    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.ones(2), eps=0.0)
    tensor([[0.8485, 1.1314]])
    """
    if x.ndim < 2 or weight.shape != x.shape[-1:]:
        raise InputError(
            f"rms_norm needs x (..., width) and weight (width,); got {tuple(x.shape)} and {tuple(weight.shape)}"
        )
    refuse_unreal("rms_norm", x=x, weight=weight)
    dtype = full_precision(x.dtype, weight.dtype)
    stored = x if full_precision(x.dtype) == dtype else x.to(dtype)
    y: Tensor = _rms_norm(stored, as_dtype(weight, dtype), eps)
    return as_dtype(y, x.dtype)
