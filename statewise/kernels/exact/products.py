"""Products of matrices in the order of matmul.c: each number is summed by itself, over k, in blocks of 320."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.errors import InputError
from statewise.kernels.linear import native as matmul

_LARGE = 2**15  # multiply-adds of a product that is worth a call of its own; the order of its sums is the same


def times(x: Tensor, y: Tensor, bias: Tensor | None = None) -> Tensor:
    """x (m, k) times y (k, n), plus the bias (n,).

    Errors:  InputError for numbers other than float32, or complex ones of that width, on the CPU.
    """
    if x.is_complex() or y.is_complex():
        x, y = (m.resolve_conj() if m.is_conj() else m for m in (x, y))  # C reads memory, which has no conjugates
        (a, b), (c, d) = ((m.real, m.imag if m.is_complex() else None) for m in (x, y))
        real, imaginary = times(a, c), None
        if b is not None and d is not None:
            real = real - times(b, d)
        if d is not None:
            imaginary = times(a, d)
        if b is not None:
            other = times(b, c)
            imaginary = other if imaginary is None else imaginary + other
        assert imaginary is not None
        found = torch.complex(real, imaginary)
        return found if bias is None else found + bias
    for m in (x, y):
        if m.dtype != torch.float32 or m.device.type != "cpu":
            raise InputError(
                f"exact mode multiplies matrices of float32 on the CPU, got {m.dtype} on {m.device.type}; "
                "use model.float() and inputs of float32, or first statewise convert FOLDER OTHER --dtype float32"
            )
    x, y = (m.resolve_neg() if m.is_neg() else m for m in (x, y))
    return matmul.product(x, y.t(), bias)


def _batches(x: Tensor, y: Tensor) -> Tensor:
    """(b, m, k) times (b, k, n)"""
    batch, m, k, n = *x.shape, y.shape[2]
    x, y = (m.resolve_neg() if m.is_neg() else m for m in (x, y))
    if x.dtype == y.dtype == torch.float32 and x.device.type == "cpu" and (m * n * k < _LARGE or not batch):
        out = x.new_zeros(batch, m, n)
        if out.numel() and k:
            call = native.function("products_ordered", torch.float32, "ppplllll")
            call(x.contiguous(), y.contiguous(), out, batch, m, n, k, native.n_threads())
        return out
    if not batch:
        return x.new_zeros(0, m, n)
    return torch.stack([times(a, c) for a, c in zip(x.unbind(0), y.unbind(0))])


def _mm(func: Any, args: Any, kwargs: Any) -> Tensor:
    return times(args[0], args[1])


def _bmm(func: Any, args: Any, kwargs: Any) -> Tensor:
    return _batches(args[0], args[1])


def _with_base(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def rule(func: Any, args: Any, kwargs: Any) -> Tensor:
        base, x, y = args
        if kwargs.get("alpha", 1) != 1 or kwargs.get("beta", 1) not in (0, 1):
            raise InputError("exact mode computes base + x y with alpha and beta of 1")
        found = product(x, y)
        return found if kwargs.get("beta", 1) == 0 else base + found

    return rule


def _addmm(func: Any, args: Any, kwargs: Any) -> Tensor:
    """A bias is added as matmul.c does."""
    base, x, y = args
    if base.ndim == 1 and not kwargs:
        return times(x, y, base)
    return _with_base(times)(func, args, kwargs)


def _mv(func: Any, args: Any, kwargs: Any) -> Tensor:
    return times(args[0], args[1].unsqueeze(1)).squeeze(1)


def _dot(func: Any, args: Any, kwargs: Any) -> Tensor:
    return times(args[0].unsqueeze(0), args[1].unsqueeze(1)).reshape(())


RULES: dict[str, Callable[..., Any]] = {
    "mm": _mm,
    "bmm": _bmm,
    "addmm": _addmm,
    "baddbmm": _with_base(_batches),
    "mv": _mv,
    "dot": _dot,
}
