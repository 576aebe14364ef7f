"""GELU and the gradient of its input in C: gelu.inc.h."""

from __future__ import annotations

from torch import Tensor

from statewise import native
from statewise.kernels.stored import stored_function

_PER_ITEM = 2**13


def gelu(x: Tensor, grad: Tensor | None = None) -> Tensor:
    """gelu(x), or with ``grad``, of the dtype of x, the gradient of x."""
    x = x.contiguous()
    y = x.new_empty(x.shape)
    call = stored_function("gelu", x.dtype, "ppplll")
    call(x, None if grad is None else grad.contiguous(), y, x.numel(), _PER_ITEM, native.n_threads())
    return y
