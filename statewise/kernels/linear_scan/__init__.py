"""The diagonal linear recurrence h_t = a_t * h_{t-1} + b_t as one differentiable operator."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.linear_scan.batching import vmap_rule
from statewise.kernels.linear_scan.blocked import linear_scan_blocked
from statewise.kernels.linear_scan.reference import linear_scan_reference
from statewise.kernels.registration import register

__all__ = ["linear_scan", "linear_scan_reference"]


def _fake(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    return torch.empty(b.shape, dtype=b.dtype, device=b.device)


def _setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
    a, _, h0 = inputs
    ctx.save_for_backward(a, output, h0)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    # The adjoint runs the same recurrence backwards in time: g_t = grad_t + conj(a_{t+1}) g_{t+1}.
    # It is written with the operator itself, so every higher derivative exists.
    a, h, h0 = ctx.saved_tensors
    if h.shape[1] == 0:
        return torch.zeros_like(a), torch.zeros_like(h), torch.zeros_like(h0)
    a = a.conj()
    a_next = torch.cat([a[:, 1:], torch.zeros_like(a[:, :1])], 1)
    g = _linear_scan(a_next.flip(1), grad.flip(1), torch.zeros_like(h0)).flip(1)
    h_before = torch.cat([h0.unsqueeze(1), h[:, :-1]], 1)
    return g * h_before.conj(), g, a[:, 0] * g[:, 0]


_linear_scan = register(
    "linear_scan",
    "(Tensor a, Tensor b, Tensor h0) -> Tensor",
    linear_scan_blocked,
    fake=_fake,
    setup_context=_setup_context,
    backward=_backward,
    vmap=vmap_rule,
)


def linear_scan(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """Diagonal linear recurrence: h_t = a_t * h_{t-1} + b_t.

    Shapes:   a, b: (batch, length, ...)   h0: (batch, ...)   ->   h: (batch, length, ...); a may be expanded
    Cost:     O(length) work in O(sqrt(length)) vectorised steps; memory 2x that of b.
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
