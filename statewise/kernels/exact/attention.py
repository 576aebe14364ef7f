"""Softmax attention in C whose sums go over the keys one by one: attention.inc.h."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.errors import InputError

_LANES = 16  # of the widest vector


class Later:
    """What the gradient of a call's keys waits for: what the calls behind it have added, before its own queries add.

    pending: the adjoint's arguments, once its queries have been there
    """

    def __init__(self) -> None:
        self.pending: tuple[Any, ...] | None = None


def attend_exactly(q: Tensor, k: Tensor, v: Tensor, low: Tensor, high: Tensor, later: Later | None = None) -> Tensor:
    """y_t = sum_s softmax_s(q_t . k_s / sqrt(d_head)) v_s over the keys low_t <= s < high_t, 0 where there are none.

    Shapes:  q: (batch, length, n_heads, d_head)   k, v: (batch, n_keys, n_kv_heads, d_head)   ->   as q; where v is k
             itself, the gradients of both uses are one sum, in one order
             low, high: (batch or 1, length)
             later: of :func:`remember`, whose first two results are k and v
    Errors:  InputError for numbers other than float32 on the CPU, and for values of another width than the keys.
    """
    for name, m in (("q", q), ("k", k), ("v", v)):
        if m.dtype != torch.float32 or m.device.type != "cpu":
            raise InputError(f"exact mode attends in float32 on the CPU; got {name} of {m.dtype} on {m.device}")
    if v.shape[-1] != q.shape[-1]:
        raise InputError(
            f"exact mode attends with values as wide as keys; got {v.shape[-1]} and {q.shape[-1]}: use another layer"
        )
    low, high = (m.to(torch.int64).expand(q.shape[:2]).contiguous() for m in (low, high))
    y: Tensor = _Attention.apply(q * q.shape[-1] ** -0.5, k, None if v is k else v, low, high, later)
    return y


def remember(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Later]:
    """k and v for the queries of a call, again for the state behind it, and what joins their gradients in one order."""
    later = Later()
    return (*_Remember.apply(k, v, later), later)


class _Remember(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, v: Tensor, later: Later) -> tuple[Tensor, ...]:
        ctx.later, ctx.shapes = later, (k.shape, v.shape)
        ctx.set_materialize_grads(False)
        return k.detach(), v.detach(), k.detach(), v.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        pending, ctx.later.pending = ctx.later.pending, None
        after = grads[2:]
        if pending is None:
            return (*after, None)
        q, k, v, low, high, y, dy = pending
        dk, dv = _begun(k, after[0]), None if v is None else _begun(v, after[1])
        _call_backward(q, k, v, low, high, y, dy, None, dk, dv)
        return dk, after[1] if dv is None else dv, None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor | None, low: Tensor, high: Tensor, later: Later | None
    ) -> Tensor:
        q, k, v = q.contiguous(), k.contiguous(), None if v is None else v.contiguous()
        y = torch.zeros_like(q)
        batch, length, heads, width = q.shape
        n_keys, groups = k.shape[1:3]
        if y.numel() and n_keys:
            threads, each = native.n_threads(), _LANES * (width + n_keys)
            native.function("attention_ordered", torch.float32, "p" * 7 + "l" * 8)(
                *(q, k, k if v is None else v, low, high, y, q.new_empty(each * threads)),
                *(batch, length, n_keys, heads, groups, width, each, threads),
            )
        ctx.save_for_backward(q, k, v, low, high, y)
        ctx.later = later
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, low, high, y = ctx.saved_tensors
        dy, dq = dy.contiguous(), torch.zeros_like(q)
        if ctx.later is not None:
            ctx.later.pending = (q, k, v, low, high, y, dy)
            _call_backward(q, k, v, low, high, y, dy, dq, None, None)
            return dq, None, None, None, None, None
        dk, dv = torch.zeros_like(k), None if v is None else torch.zeros_like(v)
        _call_backward(q, k, v, low, high, y, dy, dq, dk, dv)
        return dq, dk, dv, None, None, None


def _begun(m: Tensor, grad: Tensor | None) -> Tensor:
    """A copy of what a sum of gradients of m begins with."""
    return m.new_zeros(m.shape) if grad is None else grad.clone(memory_format=torch.contiguous_format)


def _call_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    low: Tensor,
    high: Tensor,
    y: Tensor,
    dy: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
) -> None:
    """Without values they are the keys, and dk is the gradient of both."""
    batch, length, heads, width = q.shape
    n_keys, groups = k.shape[1:3]
    if not q.numel() or not n_keys:
        return
    threads = min(native.n_threads(), batch * groups)
    each = _LANES * (width + 2 * n_keys * (heads // groups))
    native.function("attention_ordered_backward", torch.float32, "p" * 11 + "l" * 8)(
        *(q, k, k if v is None else v, low, high, y, dy, dq, dk, dk if v is None else dv, q.new_empty(each * threads)),
        *(batch, length, n_keys, heads, groups, width, each, threads),
    )
