"""y = x W^T + b, on the faster matrix library for each call."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from statewise.kernels import backend
from statewise.kernels.exact.switch import is_exact, unseen
from statewise.kernels.linear import native, onednn
from statewise.kernels.linear.native import FEW, refusal
from statewise.kernels.registration import register
from statewise.precision import rounds_projections

__all__ = ["linear", "linear_reference"]

# Multiply-adds below which PyTorch's own call costs less than what an operator of ours costs in Python.
_WORTH_IT = 2**21
_PLAIN = (nn.Parameter, Tensor)


def linear_reference(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_j = sum_k W_jk x_k + b_j. Shapes as :func:`linear`."""
    y = torch.einsum("...k,jk->...j", x, weight)
    return y if bias is None else y + bias


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (m, k), weight (n, k), of any strides -> x W^T + b (m, n)"""
    if backend.c_runs("linear", refusal(x, weight)):
        return native.product(x, weight, bias)
    if onednn.available() and x.device.type == "cpu" and x.dtype == torch.float32:
        return onednn.product(x, weight, bias)
    return F.linear(x, weight, bias)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:2])


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Written with the operator itself, so that every higher derivative exists."""
    x, weight = ctx.saved_tensors
    for_x, for_weight, for_bias = ctx.needs_input_grad
    return (
        _operator(grad, weight.t(), None) if for_x else None,
        _operator(grad.t(), x.t(), None) if for_weight else None,
        grad.sum(0) if for_bias else None,
    )


_operator = register(
    "linear",
    "Tensor x, Tensor weight, Tensor? bias",
    _product,
    takes={"x": "m k: any", "weight": "n k: as x", "bias": "n: as x"},
    gives={"y": "m n: as x"},
    setup_context=_setup_context,
    backward=_backward,
    is_projection=True,
)


def _fits_exactly(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether exact mode has nothing to refuse."""
    if weight.ndim != 2 or x.shape[-1] != weight.shape[1] or (bias is not None and bias.shape != weight.shape[:1]):
        return False
    given = (x, weight) if bias is None else (x, weight, bias)
    return all(m.dtype == torch.float32 and m.device.type == "cpu" for m in given)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_j = sum_k W_jk x_k + b_j, as ``torch.nn.functional.linear``.

    Shapes:   x: (..., k)   weight: (n, k)   bias: (n,)   ->   (..., n)
    Cost:     the same products in every library. PyTorch takes MKL for float32 on a CPU, which on an AMD processor has
              less than half the speed of our C code or of oneDNN. Which runs depends on the call alone (device, dtype,
              size), never on a switch of the process: C where it is, else oneDNN, else PyTorch's choice; and that
              also for other dtypes, under autocast, in compiled code and where the product is small.
    Numerics: plain float32; C sums in one order whatever the number of threads. On CUDA TF32 in a run with
              ``matmul="fast"``, or where the process is set so.
    Errors:   InputError or PyTorch's own for shapes that disagree.
    """
    if type(weight) not in _PLAIN and hasattr(weight, "product"):  # a quantised one: what it makes of its bits itself
        of_bits: Tensor | None = weight.product(x, bias)
        if of_bits is not None:
            return of_bits
    n_rows = x.numel() // max(x.shape[-1], 1) if x.ndim else 0
    in_float32 = x.dtype == weight.dtype == torch.float32
    rounded = in_float32 and rounds_projections(x.device) and not torch.is_autocast_enabled(x.device.type)
    if (
        not rounded
        and not is_exact()
        and (
            torch.compiler.is_compiling()  # first, since the number of rows may have no value there
            or not in_float32
            or x.device.type != "cpu"
            or n_rows * weight.numel() < _WORTH_IT
            or (n_rows <= FEW and torch.is_grad_enabled())  # its gradients would read the weight twice
            or torch.is_autocast_enabled("cpu")
        )
    ):
        return F.linear(x, weight, bias)
    if is_exact() and n_rows and not torch.is_grad_enabled() and _fits_exactly(x, weight, bias):
        with unseen():  # what the operator would come to, in one look instead of three
            return native.product(x.reshape(-1, x.shape[-1]), weight, bias).reshape(*x.shape[:-1], len(weight))
    y: Tensor = _operator(x.reshape(-1, x.shape[-1]), weight, bias)
    return y.reshape(*x.shape[:-1], weight.shape[0])
