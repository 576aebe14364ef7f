"""The diagonal linear recurrence h_t = a_t * h_{t-1} + b_t as one differentiable operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.backend import c_runs
from statewise.kernels.gpu import triton_or
from statewise.kernels.linear_scan import native, pytorch
from statewise.kernels.linear_scan.pytorch import before
from statewise.kernels.linear_scan.reference import linear_scan_reference
from statewise.kernels.registration import register

__all__ = ["linear_scan", "linear_scan_reference"]


def _forward(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    path = native if c_runs("linear_scan", native.refusal(a, b, h0)) else triton_or(pytorch, "linear_scan", a, b, h0)
    h: Tensor = path.forward(a, b, h0)
    return h


def _adjoint(grad: Tensor, a: Tensor, h: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The adjoint is the same recurrence backwards in time: g_t = grad_t + conj(a_{t+1}) g_{t+1}."""
    c_can = c_runs("linear_scan", native.refusal(a, grad, h0))
    path = native if c_can else triton_or(pytorch, "linear_scan", a, grad, h0)
    da, db, dh0 = path.backward(grad, a, h, h0)
    return da, db, dh0


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    a, _, h0 = inputs
    ctx.save_for_backward(a, output, h0)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    a, h, h0 = ctx.saved_tensors
    da, db, dh0 = _linear_scan_backward(grad, a, h, h0)
    return da, db, dh0


def _setup_second(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs[1:], output[1])


def _second_backward(
    ctx: Any, d_da: Tensor | None, d_g: Tensor | None, d_dh0: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of g, da_t = g_t conj(h_{t-1}) and dh0 = conj(a_0) g_0, in terms of the operators: so every higher
    one exists.
    """
    a, h, h0, g = ctx.saved_tensors
    d_da, d_g = (torch.zeros_like(h) if x is None else x for x in (d_da, d_g))
    d_dh0 = torch.zeros_like(h0) if d_dh0 is None else d_dh0
    x = _linear_scan(a, d_g + d_da * before(h, h0), d_dh0)
    through_h = torch.cat([d_da.conj() * g, torch.zeros_like(h0).unsqueeze(1)], 1)  # of h0, then of each h
    d_h0 = through_h[:, 0]
    return x, before(x, d_dh0).conj() * g, through_h[:, 1:], d_h0


_linear_scan = register(
    "linear_scan",
    "Tensor a, Tensor b, Tensor h0",
    _forward,
    takes={"a": "batch length *rest: any", "b": "batch length *rest: as a", "h0": "batch *rest: as a"},
    gives={"h": "batch length *rest: as b"},
    setup_context=_setup_context,
    backward=_backward,
)
_linear_scan_backward = register(
    "linear_scan_backward",
    "Tensor grad, Tensor a, Tensor h, Tensor h0",
    _adjoint,
    takes={**dict.fromkeys(("grad", "a", "h"), "batch length *rest: as h0"), "h0": "batch *rest: any"},
    gives={**dict.fromkeys(("a", "b"), "batch length *rest: as h"), "h0": "batch *rest: as h0"},
    setup_context=_setup_second,
    backward=_second_backward,
)


def linear_scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Diagonal linear recurrence: h_t = a_t * h_{t-1} + b_t.

    Shapes:   a, b: (batch, length, ...)   h0: (batch, ...)   ->   h: (batch, length, ...); a may be expanded
    Cost:     O(length) work. In C one pass over a, b and h, and the adjoint another; a that is expanded over rows or
              times is not copied. In PyTorch O(sqrt(length)) vectorised steps; memory 2x that of b.
    Numerics: in the dtype of the inputs, float32 or wider, real or complex; stable for |a| <= 1.
    Errors:   InputError if the shapes or dtypes disagree; the message gives them.
    Source:   Blelloch (1990); Smith et al. 2023 (S5), arXiv:2208.04933, sec. 2.2.

    >>> linear_scan(torch.full((1, 3), 0.5), torch.ones(1, 3), torch.zeros(1))
    tensor([[1.0000, 1.5000, 1.7500]])
    """
    if b.ndim < 2 or a.shape != b.shape or h0.shape != b.shape[:1] + b.shape[2:]:
        raise InputError(
            "linear_scan needs a and b of one shape (batch, length, ...) and h0 of (batch, ...); "
            f"got a {tuple(a.shape)}, b {tuple(b.shape)}, h0 {tuple(h0.shape)}"
        )
    if not a.dtype == b.dtype == h0.dtype:
        raise InputError(f"linear_scan needs a, b and h0 of one dtype; got {a.dtype}, {b.dtype}, {h0.dtype}")
    h: Tensor = _linear_scan(a, b, h0)
    return h
