"""The linear recurrence in C (linear_scan.c): blocks of channels in registers, forwards and backwards."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.backend import refusal_of
from statewise.kernels.stored import plain
from statewise.native.memory import empty

_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def refusal(a: Tensor, b: Tensor, h0: Tensor) -> str | None:
    """Why C cannot take these; None if it can."""
    if b.dtype not in _DTYPES:
        return f"b is {b.dtype}, but it needs float32 or float64, real or complex"
    return refusal_of(a=a, b=b, h0=h0)


def forward(a: Tensor, b: Tensor, h0: Tensor) -> Tensor:
    """a, b (batch, length, ...), h0 (batch, ...) -> h like b."""
    h = empty(*b.shape, dtype=b.dtype)
    if h.numel() == 0:
        return h
    numbers, row, step = expanded(a)
    native.function("linear_scan_forward", b.real.dtype, "pppplllllll")(
        *(numbers, plain(b), plain(h0), h, *_sizes(b), row, step, native.n_threads())
    )
    return h


def backward(grad: Tensor, a: Tensor, h: Tensor, h0: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a (of its whole shape), b and h0 for one of h."""
    if h.numel() == 0:
        da, g, dh0 = (torch.zeros(x.shape, dtype=x.dtype) for x in (h, h, h0))
        return da, g, dh0
    da, g, dh0 = (empty(*x.shape, dtype=x.dtype) for x in (h, h, h0))
    numbers, row, step = expanded(a)
    native.function("linear_scan_backward", h.real.dtype, "ppppppplllllll")(
        *(plain(grad), numbers, plain(h), plain(h0), da, g, dh0, *_sizes(h), row, step, native.n_threads())
    )
    return da, g, dh0


def _sizes(b: Tensor) -> tuple[int, int, int, int]:
    """Rows, steps, real numbers in a step of a row, and whether they are pairs."""
    parts = 2 if b.is_complex() else 1
    return b.shape[0], b.shape[1], b[0, 0].numel() * parts, parts - 1


def expanded(a: Tensor) -> tuple[Tensor, int, int]:
    """a without copies over rows and times that it is expanded over, and its strides there in real numbers."""
    each_row, each_step = a.stride(0) != 0 and a.shape[0] > 1, a.stride(1) != 0 and a.shape[1] > 1
    a = a if each_row else a[:1]
    a = plain(a if each_step else a[:, :1])
    parts = 2 if a.is_complex() else 1
    return a, a.stride(0) * parts if each_row else 0, a[0, 0].numel() * parts if each_step else 0
