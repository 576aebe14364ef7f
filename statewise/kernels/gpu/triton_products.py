"""Matrix products inside Triton kernels: sums in float32, of factors as exact as their dtype."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from statewise.kernels.gpu import interprets


@triton.jit
def dot(a, b, PRODUCT: tl.constexpr):
    """Sums in float32 of products of bfloat16 ("rounded" is that for the interpreter) or of what Triton names."""
    if PRODUCT == "bfloat16":
        return tl.dot(a.to(tl.bfloat16), b.to(tl.bfloat16))
    elif PRODUCT == "rounded":
        return tl.dot(a.to(tl.bfloat16).to(tl.float32), b.to(tl.bfloat16).to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision=PRODUCT)


def product(m: Tensor) -> str:
    """How factors are multiplied: bfloat16 as such, float16 as TF32, which has as many digits and more room; float32
    in three products of TF32, which leave it its digits, or on AMD's cards as float32."""
    if m.dtype == torch.bfloat16:
        return "rounded" if interprets() else "bfloat16"
    if m.device.type != "cuda" or torch.version.hip is not None:
        return "ieee"
    return "tf32" if m.dtype == torch.float16 else "tf32x3"
