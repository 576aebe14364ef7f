"""RMSNorm, with a gate or without, and its adjoint in C: rms_norm.inc.h."""

from __future__ import annotations

from torch import Tensor

from statewise import native
from statewise.kernels.stored import plain_rows, stored_function, sum_of_items

NO_GATE, GATE_FIRST, GATE_LAST = 0, 1, 2  # as in the C file
_ROWS_PER_ITEM = 32


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return normed(x, None, weight, eps)


def backward(grad: Tensor, x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    grad_x, _, grad_weight = gradients(grad, x, None, weight, eps)
    return grad_x, grad_weight


def normed(
    x: Tensor, z: Tensor | None, weight: Tensor, eps: float, *, n_groups: int = 1, gate: int = NO_GATE
) -> Tensor:
    """x, z: (..., width), of the same dtype; weight: (width,)."""
    y = x.new_empty(x.shape)
    rows, gates = plain_rows(x), None if z is None else plain_rows(z)
    n_rows, width = rows.shape
    threads = native.n_threads()
    scratch = weight.new_empty(threads, 4, width)
    call = stored_function("rms_norm", x.dtype, "ppppplllllldll")
    call(
        *(rows, gates, weight.contiguous(), y, scratch, n_rows, width, n_groups),
        *(rows.stride(0), 0 if gates is None else gates.stride(0), gate, eps, _ROWS_PER_ITEM, threads),
    )
    return y


def gradients(
    grad: Tensor, x: Tensor, z: Tensor | None, weight: Tensor, eps: float, *, n_groups: int = 1, gate: int = NO_GATE
) -> tuple[Tensor, Tensor | None, Tensor]:
    """The gradients of x, z and weight."""
    rows, gates, slope = plain_rows(x), None if z is None else plain_rows(z), plain_rows(grad.to(x.dtype))
    grad_x, grad_z = x.new_empty(x.shape), None if z is None else z.new_empty(z.shape)
    n_rows, width = rows.shape
    threads = native.n_threads()
    partial = weight.new_empty(-(-n_rows // _ROWS_PER_ITEM), width)
    scratch = weight.new_empty(threads, 4, width)
    call = stored_function("rms_norm_backward", x.dtype, "pppppppp" + "l" * 7 + "dll")
    call(
        *(slope, rows, gates, weight.contiguous(), grad_x, grad_z, partial, scratch),
        *(n_rows, width, n_groups, slope.stride(0), rows.stride(0), 0 if gates is None else gates.stride(0)),
        *(gate, eps, _ROWS_PER_ITEM, threads),
    )
    return grad_x, grad_z, sum_of_items(partial)
