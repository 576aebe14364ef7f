"""GELU with the tanh approximation as one differentiable operator."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.gelu_tanh import native, pytorch
from statewise.kernels.gelu_tanh.reference import gelu_tanh_reference
from statewise.kernels.stored import refuse_unreal, stored_refusal

__all__ = ["gelu_tanh", "gelu_tanh_reference"]

# Elements below which PyTorch's own call costs less than what an operator of ours costs in Python.
_WORTH_IT = 2**15


_gelu = register_with_adjoint(
    "gelu_tanh",
    "Tensor x",
    native,
    pytorch,
    definition=gelu_tanh_reference,
    takes={"x": "*shape: floating"},
    gives={"y": "*shape: as x"},
    refusal=stored_refusal,
)


def gelu_tanh(x: Tensor) -> Tensor:
    """x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2, as ``torch.nn.functional.gelu(x, approximate="tanh")``.

    Shapes:   any
    Cost:     one pass over x, and one over x and dy for the gradient: about a fifth of PyTorch's time. Small tensors,
              other dtypes and compiled code take PyTorch's own.
    Numerics: computed in float32, float64 for float64; returned in the dtype of x.
    Errors:   InputError for integers and complex numbers.
    Source:   Hendrycks & Gimpel 2016, arXiv:1606.08415, sec. 2.

    >>> gelu_tanh(torch.tensor([-1.0, 0.0, 1.0]))
    tensor([-0.1588,  0.0000,  0.8412])
    """
    refuse_unreal("gelu_tanh", x=x)
    if torch.compiler.is_compiling() or x.numel() < _WORTH_IT or x.device.type != "cpu":
        return F.gelu(x, approximate="tanh")
    y: Tensor = _gelu(x)
    return y
