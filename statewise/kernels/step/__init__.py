"""One token of each row through a Mamba-2 layer, on a GPU: three kernels instead of some twenty-five.

    projected = W_in RMSNorm(x)                              norm_matvec
    u = SSD(convolution(projected)) * SiLU(z)                mamba2_step, which writes over the system's state
    x = x + W_out RMSNorm(u), the convolution's shift        norm_matvec again

A step of a few rows reads every weight once and multiplies it with as few numbers: it takes as long as the reading.
So the norm of the rows is computed again by each program, while its weights are on their way. ``triton.py`` has the
launches, ``pytorch.py`` the definitions. Who calls them: statewise/decoding/gpu_layers.py.

Weights may also be integers of 8 or 4 bits; :func:`product` is the map alone, for layers without kernels of their own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.kernels import gpu
from statewise.kernels.step import pytorch
from statewise.kernels.step.pytorch import IntegerMatrix

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # of the models that have such a step
MAX_COLUMNS = 2**14  # of integers, which a program holds whole
MULTIPLE = 16  # of which a row of a weight has to have columns: else a kernel would read number by number
MAX_ROWS = 8  # more, and the multiply-adds of plain float32 take longer than the reading of the weights


def product(x: Tensor, matrix: IntegerMatrix, bias: Tensor | None = None) -> Tensor:
    """y = W x + bias of integers W, which a few rows on a GPU read as they are.

    Shapes:   x: (..., k)   bias: (n,)   ->   (..., n), in the dtype of x
    Cost:     up to 8 rows by Triton, where 16 divides k: each byte of W is read once. Otherwise, under autocast and
              where x has a gradient, W is first made in the dtype of x.
    Numerics: sums in float32; where W is made first, it is rounded to the dtype of x.
    """
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    few = 0 < len(rows) <= MAX_ROWS and matrix.n_columns <= MAX_COLUMNS and matrix.n_columns % MULTIPLE == 0
    plain = not torch.is_autocast_enabled(x.device.type) and not (torch.is_grad_enabled() and rows.requires_grad)
    if few and plain and gpu.triton_or(pytorch, "step", rows) is not pytorch:
        out = torch.empty(len(rows), len(matrix.data), dtype=x.dtype, device=x.device)
        y: Tensor = gpu.module("step").norm_matvec(rows, None, matrix, bias, out=out)
    else:
        y = F.linear(rows, matrix.widened().to(x.dtype), bias)
    return y.reshape(*x.shape[:-1], len(matrix.data))
