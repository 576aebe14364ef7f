"""Calls into C of kernels whose long tensors may be stored narrower than they are computed in."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from statewise import native
from statewise.errors import InputError
from statewise.kernels.backend import refusal_of

STORED = (torch.float32, torch.float64, torch.bfloat16)


def refuse_unreal(kernel: str, **tensors: Tensor | None) -> None:
    """InputError for integers, whose results would be cut to integers, and complex numbers, which would be halved."""
    for name, m in tensors.items():
        if m is not None and not m.is_floating_point():
            raise InputError(f"{kernel} needs real floating-point numbers; got {name} of {m.dtype}, convert it first")


def stored_refusal(**tensors: Tensor | None) -> str | None:
    """Why C cannot take these tensors, the first of which is stored; None if it can."""
    first = next(iter(tensors))
    tensor = tensors[first]
    assert tensor is not None
    if tensor.dtype not in STORED:
        return f"{first} is {str(tensor.dtype).removeprefix('torch.')}, but it needs float32, float64 or bfloat16"
    return refusal_of(**tensors)


def stored_function(name: str, dtype: torch.dtype, arguments: str) -> Callable[..., Any]:
    """As :func:`statewise.native.function`, for bfloat16 too."""
    if dtype == torch.bfloat16:
        return native.function(f"{name}_bf16", None, arguments)
    return native.function(name, dtype, arguments)


def plain(x: Tensor) -> Tensor:
    """x as C reads it: no mark of a conjugate or a negative, and neighbours side by side."""
    return x.resolve_conj().resolve_neg().contiguous()


def plain_steps(x: Tensor) -> Tensor:
    """x with neighbours in memory along the last axis, the other axes of any stride; a copy where it has none."""
    return x if x.stride(-1) == 1 or x.shape[-1] <= 1 else x.contiguous()


def plain_rows(x: Tensor) -> Tensor:
    """x as (rows, width): rows of any stride with neighbours in memory; a copy only where that cannot be."""
    x = plain_steps(x)
    try:
        return x.view(-1, x.shape[-1]) if x.numel() else x.reshape(x.shape[:-1].numel(), x.shape[-1])
    except RuntimeError:
        return x.reshape(-1, x.shape[-1])


def sum_of_items(partial: Tensor) -> Tensor:
    """The sum over the first axis, in its order: the same bits for any number of threads."""
    total = partial.new_empty(partial.shape[1:])
    arguments = (partial, total, partial.shape[0], total.numel(), native.n_threads())
    native.function("sum_of_items", partial.dtype, "pplll")(*arguments)
    return total
