"""The short convolution whose gradients add up in one order wherever a sequence is cut: convolution_ordered.c."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.errors import InputError
from statewise.kernels.exact.pointwise import apply
from statewise.kernels.exact.switch import unseen
from statewise.kernels.short_convolution import native as in_c


def convolve_exactly(
    u: Tensor, taps: Tensor, history: Tensor, segments: Tensor | None, *, bias: Tensor | None, activation: str | None
) -> tuple[Tensor, Tensor, Tensor]:
    """:func:`statewise.kernels.short_convolution.short_convolution`, and again u and the history, for the state behind
    them to be made of.

    Errors:  InputError for numbers other than float32 on the CPU.
    """
    for name, m in (("x", u), ("taps", taps), ("history", history)):
        if m.dtype != torch.float32 or m.device.type != "cpu":
            raise InputError(f"exact mode convolves in float32 on the CPU; got {name} of {m.dtype} on {m.device}")
    ids = None if segments is None else segments.to(torch.int64).contiguous()
    given = [m for m in (u, taps, history, bias) if m is not None]
    if u.numel() and not (torch.is_grad_enabled() and any(m.requires_grad for m in given)):
        with unseen():
            return in_c.forward(u, taps, history, bias, ids, activation == "silu"), u, history
    y, u, history = _Convolution.apply(u, taps, history, bias, ids, activation == "silu")
    return y, u, history


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, taps: Tensor, history: Tensor, bias: Tensor | None, ids: Tensor | None, silu: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(u, taps, history, bias, ids)
        ctx.silu = silu
        ctx.set_materialize_grads(False)
        y = in_c.forward(u, taps, history, bias, ids, silu) if u.numel() else torch.empty_like(u)
        return y, u.detach(), history.detach()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor | None, du: Tensor | None, dhistory: Tensor | None) -> tuple[Tensor | None, ...]:
        u, taps, history, bias, ids = ctx.saved_tensors
        width, n_before = math.prod(u.shape[2:]), history.shape[1]
        parts = ((dhistory, history), (du, u))
        later = [torch.zeros_like(m) if g is None else g for g, m in parts]
        dpast = torch.cat([m.reshape(*m.shape[:2], width) for m in later], 1)
        if dy is None or not u.numel():
            dtaps, dbias = torch.zeros_like(taps), None if bias is None else torch.zeros_like(bias)
        else:
            slope = dy
            if ctx.silu:
                slope = apply("silu_backward", in_c.forward(u, taps, history, bias, ids, False), dy)
            _, dtaps, _, dbias = in_c.backward(slope, u, taps, history, bias, ids, False)
            columns = taps.t().repeat_interleave(width // taps.shape[0], 1).contiguous()
            native.function("short_convolution_ordered", torch.float32, "pppp" + "l" * 5)(
                *(slope.contiguous(), columns, ids, dpast),
                *(*u.shape[:2], width, taps.shape[1], native.n_threads()),
            )
        dhistory, du = dpast[:, :n_before].reshape(history.shape), dpast[:, n_before:].reshape(u.shape)
        return du, dtaps, dhistory, None if bias is None else dbias, None, None
