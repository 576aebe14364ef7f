"""RMSNorm, with a gate or without, and its adjoint in C: rms_norm.inc.h."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from statewise import native
from statewise.kernels.arguments import Sizes
from statewise.kernels.stored import plain_rows, stored_function, sum_of_items

NO_GATE, GATE_FIRST, GATE_LAST = 0, 1, 2  # as in the C file
_ROWS_PER_ITEM = 32


def wrong_rows(sizes: Sizes, given: Mapping[str, Any]) -> str | None:
    """Why the functions below cannot take these, beyond shapes and dtypes; None if they can."""
    sets, rows, width, groups = sizes["sets"], math.prod(sizes["*rows"]), sizes["width"], given.get("n_groups", 1)
    if not sets or rows % sets:
        return f"as many rows of x for each weight; got {rows} rows, {sets} weights"
    if not 1 <= groups <= max(width, 1) or width % groups:  # 0 features have no end of divisors
        return f"n_groups of at least 1 that divides the width of {width}; got {groups}"
    return None


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return normed(x, None, weight, eps)


def backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    grad_x, _, grad_weight = gradients(grad, x, None, weight, eps)
    return grad_x, grad_weight


def normed(
    x: Tensor, z: Tensor | None, weight: Tensor, eps: float, *, n_groups: int = 1, gate: int = NO_GATE
) -> Tensor:
    """x, z: (..., width), of the same dtype; weight: (n_sets, width), the rows of x being so many equal shares."""
    y = x.new_empty(x.shape)
    rows, gates = plain_rows(x), None if z is None else plain_rows(z)
    n_sets, width = weight.shape
    threads = native.n_threads()
    scratch = weight.new_empty(threads, 4, width)
    call = stored_function("rms_norm", x.dtype, "pppppllllllldll")
    call(
        *(rows, gates, weight.contiguous(), y, scratch, n_sets, rows.shape[0] // n_sets, width, n_groups),
        *(rows.stride(0), 0 if gates is None else gates.stride(0), gate, eps, _ROWS_PER_ITEM, threads),
    )
    return y


def gradients(
    grad: Tensor, x: Tensor, z: Tensor | None, weight: Tensor, eps: float, *, n_groups: int = 1, gate: int = NO_GATE
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of x, z and weight."""
    rows, gates, slope = plain_rows(x), None if z is None else plain_rows(z), plain_rows(grad.to(x.dtype))
    grad_x, grad_z = x.new_empty(x.shape), None if z is None else z.new_empty(z.shape)
    n_sets, width = weight.shape
    per_set, threads = rows.shape[0] // n_sets, native.n_threads()
    partial = weight.new_empty(n_sets, -(-per_set // _ROWS_PER_ITEM), width)
    scratch = weight.new_empty(threads, 4, width)
    call = stored_function("rms_norm_backward", x.dtype, "pppppppp" + "l" * 8 + "dll")
    call(
        *(slope, rows, gates, weight.contiguous(), grad_x, grad_z, partial, scratch),
        *(n_sets, per_set, width, n_groups, slope.stride(0), rows.stride(0), 0 if gates is None else gates.stride(0)),
        *(gate, eps, _ROWS_PER_ITEM, threads),
    )
    grad_weight = weight.new_empty(n_sets, width)
    for own, total in zip(partial, grad_weight):
        total.copy_(sum_of_items(own))
    return grad_x, grad_z, grad_weight
