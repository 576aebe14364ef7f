"""GELU with the tanh approximation as one differentiable operator."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels.backend import c_runs
from statewise.kernels.gelu_tanh import native
from statewise.kernels.gelu_tanh.reference import gelu_tanh_reference
from statewise.kernels.registration import register
from statewise.kernels.stored import refuse_unreal, stored_refusal

__all__ = ["gelu_tanh", "gelu_tanh_reference"]

# Elements below which PyTorch's own call costs less than what an operator of ours costs in Python.
_WORTH_IT = 2**15


def _forward(x: Tensor) -> Tensor:
    if c_runs("gelu_tanh", stored_refusal(x=x)):
        return native.gelu(x)
    return F.gelu(x, approximate="tanh").contiguous()


def _adjoint(grad: Tensor, x: Tensor) -> Tensor:
    if c_runs("gelu_tanh", stored_refusal(x=x)):
        return native.gelu(x, grad)
    return torch.ops.aten.gelu_backward(grad, x, approximate="tanh").contiguous()


def _fake(x: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _fake_adjoint(grad: Tensor, x: Tensor) -> Tensor:
    return _fake(x)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, grad: Tensor) -> Tensor:
    given = ctx.saved_tensors  # once: gradient checkpointing recomputes them and forbids a second look
    return _gelu_backward(grad.to(given[0].dtype), *given)


def _second_backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
    """The derivative of the adjoint, taken through the definition: rare, so it need not be fast."""
    with torch.enable_grad():
        first, x = leaves = [m.detach().requires_grad_() for m in ctx.saved_tensors]
        (slope,) = torch.autograd.grad(gelu_tanh_reference(x), x, first, create_graph=True)
        of_grad, of_x = torch.autograd.grad(slope, leaves, grad, materialize_grads=True)
    return of_grad, of_x


_gelu = register(
    "gelu_tanh",
    "(Tensor x) -> Tensor",
    _forward,
    takes={"x": "*shape: floating"},
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
)
_gelu_backward = register(
    "gelu_tanh_backward",
    "(Tensor grad, Tensor x) -> Tensor",
    _adjoint,
    takes={"grad": "*shape: as x", "x": "*shape: floating"},
    fake=_fake_adjoint,
    setup_context=_setup_context,
    backward=_second_backward,
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
    if x.numel() < _WORTH_IT or x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    y: Tensor = _gelu(x)
    return y
