"""What ``torch.func.vmap`` does with a kernel, and with what has to be read on the host."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor


def one_by_one(operator: Callable[..., Any]) -> Callable[..., tuple[Any, Any]]:
    """The rule of every kernel: (info, in_dims, *arguments) -> (outputs, out_dims), one call after the other."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        outputs = [
            operator(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims)))
            for i in range(info.batch_size)
        ]
        if isinstance(outputs[0], Tensor):
            return torch.stack(outputs), 0
        return tuple(torch.stack(parts) for parts in zip(*outputs)), (0,) * len(outputs[0])

    return rule


def whole(x: Tensor) -> Tensor:
    """Under vmap the values of all that it maps over, with an axis for them somewhere; else x.

    For what has to be read on the host, as a check of ``whole(x > limit).any()`` does: what is read then holds for, or
    speaks for, all of them together.
    """
    while torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


_nothing_read: ContextVar[bool] = ContextVar("nothing_read", default=False)


@contextmanager
def nothing_read() -> Iterator[None]:
    """Within it no check waits for the device: for a call that is recorded as a graph, whose caller has checked."""
    token = _nothing_read.set(True)
    try:
        yield
    finally:
        _nothing_read.reset(token)


def may_read(x: Tensor) -> bool:
    """Whether a check may look at the values of x: not in compiled code, without values, or within ``nothing_read``."""
    return not (torch.compiler.is_compiling() or x.is_meta or _nothing_read.get())


def all_finite(x: Tensor) -> bool:
    """Whether all numbers are, of all that vmap maps over. Their sum says so in one pass, unless it overflows."""
    x = whole(x.detach())
    return math.isfinite(x.sum().item()) or bool(x.isfinite().all())


def stacked(x: Tensor) -> bool:
    """Whether vmap is running and maps over x."""
    return bool(torch._C._functorch.is_batchedtensor(x))
