"""The product by the C code of matmul.c and matmul_few.c."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.backend import refusal_of
from statewise.kernels.exact.switch import is_exact
from statewise.native.memory import in_huge_pages

FEW = 8  # rows of x that matmul_few.c takes
_TURNED = 8  # a weight with this many times as many rows as x is not packed


def refusal(x: Tensor, weight: Tensor) -> str | None:
    """Why the C code cannot take these; None if it can."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        return f"x is {x.dtype} and weight {weight.dtype}, but the C code multiplies float32"
    return refusal_of(x=x, weight=weight)


def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (m, k), weight (n, k), of any strides -> x W^T + b (m, n)

    In exact mode few rows are summed as many are: matmul_ordered.c.
    """
    (m, k), n = x.shape, weight.shape[0]
    y = in_huge_pages(torch.empty(m, n, dtype=torch.float32))
    if 0 in (m, n):
        return y
    if k == 0:
        return y.copy_(bias) if bias is not None else y.zero_()
    bias = None if bias is None else bias.contiguous()
    threads = native.n_threads()
    if m <= FEW and is_exact() and 1 in weight.stride():
        few = native.function("matmul_ordered", torch.float32, "ppppllllll")
        few(x.contiguous(), weight, bias, y, m, n, k, *weight.stride(), threads)
        return y
    if m <= FEW and not is_exact() and x.is_contiguous() and weight.is_contiguous():
        native.function("matmul_few", torch.float32, "ppppllll")(x, weight, bias, y, m, n, k, threads)
        return y
    panel, scratch_size = _sizes(native.instruction_set())
    turned = _TURNED * m <= n  # then it is W that is read where it lies, and x that is packed
    n_packed = m if turned else n
    packed = in_huge_pages(torch.empty(-(-n_packed // panel) * panel * k))
    scratch = torch.empty(scratch_size * threads)
    multiply = native.function("matmul", torch.float32, "pppppplllllllll")
    first, second = (weight, x) if turned else (x, weight)
    sizes = (n, m, k) if turned else (m, n, k)
    multiply(first, second, bias, y, packed, scratch, *sizes, *first.stride(), *second.stride()[::-1], turned, threads)
    return y


@functools.cache
def _sizes(instructions: str) -> tuple[int, int]:
    sizes = torch.empty(2, dtype=torch.int64)
    native.function("matmul_sizes", None, "p")(sizes)
    panel, scratch_size = sizes.tolist()
    return panel, scratch_size
