"""What ``torch.func.vmap`` does with a kernel: the stack of models becomes a part of an axis that the kernel has.

Several small models of one shape are trained as one (statewise/train/stack.py). Their parameters have one more axis,
and every operation of the model meets it as the axis that vmap maps over. A kernel that treats the rows of a batch
alike takes it into the batch; one that treats channels alike, each with coefficients of its own, into the channels.
Gradients are taken outside of vmap, so that the operators of the backward passes never see the axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Rule = Callable[..., tuple[Any, Any]]  # what register's vmap takes: (info, in_dims, *arguments) -> (outputs, out_dims)


def merged(name: str, axes: Mapping[str, int], out_axes: int | Sequence[int]) -> Rule:
    """The operator ``statewise::name``, called once for all models.

    axes:     by the argument's name, the axis that the models are merged into, as (models, size) -> models * size. What
              is not named is passed on as it is: numbers, and tensors that have to be the same for all models. Where
              one of these is not, :func:`one_by_one` takes over.
    out_axes: the same for each output; one number for an operator with one output
    """
    each = one_by_one(name)

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        n, operator = info.batch_size, getattr(torch.ops.statewise, name).default
        given = []
        for argument, dim, x in zip(operator._schema.arguments, in_dims, arguments):
            axis = axes.get(argument.name)
            if axis is None and dim is not None:
                return each(info, in_dims, *arguments)
            given.append(x if axis is None or x is None else merge(x, n, dim, axis))
        outputs = operator(*given)
        if isinstance(out_axes, int):
            return split(outputs, n, out_axes), 0
        return tuple(split(y, n, axis) for y, axis in zip(outputs, out_axes)), (0,) * len(out_axes)

    return rule


def one_by_one(name: str) -> Rule:
    """The operator ``statewise::name``, called once for each model: where nothing can be merged."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        operator = getattr(torch.ops.statewise, name).default
        outputs = [
            operator(*(x if dim is None else x.select(dim, i) for x, dim in zip(arguments, in_dims)))
            for i in range(info.batch_size)
        ]
        if isinstance(outputs[0], Tensor):
            return torch.stack(outputs), 0
        return tuple(torch.stack(parts) for parts in zip(*outputs)), (0,) * len(outputs[0])

    return rule


def whole(x: Tensor) -> Tensor:
    """Under vmap the values of all models, with an axis for them somewhere; else x.

    For what has to be read on the host, as a check of ``whole(x > limit).any()`` does: one model's own values cannot
    be, since vmap runs them all at once. What is read then holds for, or speaks for, all models together.
    """
    while torch._C._functorch.is_batchedtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def stacked(x: Tensor) -> bool:
    """Whether vmap is running and x is of several models."""
    return bool(torch._C._functorch.is_batchedtensor(x))


def merge(x: Tensor, n: int, dim: int | None, axis: int) -> Tensor:
    """The models, at ``dim`` (None: the same for all n), as the outer part of ``axis`` of what one model has."""
    x = x.unsqueeze(axis).expand(*x.shape[:axis], n, *x.shape[axis:]) if dim is None else x.movedim(dim, axis)
    return x.flatten(axis, axis + 1)


def split(y: Tensor, n: int, axis: int) -> Tensor:
    """The inverse of :func:`merge`, the models first. Contiguous, since an elementwise operation on slices of what
    others' numbers lie between is many times slower."""
    y = y.movedim(axis, 0)
    return y.reshape(n, y.shape[0] // n, *y.shape[1:]).movedim(1, axis + 1 if axis >= 0 else axis).contiguous()
