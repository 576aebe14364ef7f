"""The Cauchy sum in C (cauchy.c): tiles of nodes in the cache, all numerators with one division."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise import native
from statewise.kernels.stored import plain
from statewise.native.memory import empty

_TILE = 64  # nodes in a tile of the widest instruction set, in float32: 4 vectors of 16


def forward(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """v (w, k, n), z (1 or w, m), Lambda (w, n), of one complex dtype -> (w, k, m)."""
    (w, k, n), m = v.shape, z.shape[1]
    if w * k * n * m == 0:
        return torch.zeros(w, k, m, dtype=v.dtype)
    out, scratch = empty(w, k, m, dtype=v.dtype), _scratch(v)
    native.function("cauchy_forward", v.real.dtype, "pppplllllpll")(
        *(plain(v), plain(z), plain(Lambda), out, w, k, n, m, z.shape[0]),
        *(scratch, scratch.shape[1], native.n_threads()),
    )
    return out


def backward(grad: Tensor, v: Tensor, z: Tensor, Lambda: Tensor, with_z: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of v, z (zeros unless ``with_z``) and Lambda."""
    (w, k, n), m = v.shape, z.shape[1]
    if w * k * n * m == 0:
        dv, dz, d_Lambda = (torch.zeros(x.shape, dtype=x.dtype) for x in (v, z, Lambda))
        return dv, dz, d_Lambda
    dv, d_Lambda = torch.empty(v.shape, dtype=v.dtype), torch.empty(Lambda.shape, dtype=v.dtype)
    each = empty(w, m, dtype=v.dtype) if with_z else None  # what each channel gives to the nodes
    scratch = _scratch(v)
    native.function("cauchy_backward", v.real.dtype, "ppppppplllllpll")(
        *(plain(grad), plain(v), plain(z), plain(Lambda), dv, each, d_Lambda, w, k, n, m, z.shape[0]),
        *(scratch, scratch.shape[1], native.n_threads()),
    )
    if each is None:
        return dv, torch.zeros(z.shape, dtype=z.dtype), d_Lambda
    return dv, each if z.shape[0] > 1 or w == 1 else each.sum(0, keepdim=True), d_Lambda


def _scratch(v: Tensor) -> Tensor:
    """For each thread: planes of a tile for every state (two sets) and numerator, and partial sums."""
    _, k, n = v.shape
    n = n + 4
    numbers = 2 * _TILE * (4 + 2 * k + n + max(n, k) + n) + 2 * k * n * (_TILE // 4 + 2)
    return torch.empty(native.n_threads(), numbers, dtype=v.real.dtype)
