"""The definition of the Cauchy sum over conjugate pairs, in plain PyTorch."""

from __future__ import annotations

from torch import Tensor


def cauchy_reference(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """sum_n v_n / (z - Lambda_n) + conj(v_n) / (z - conj(Lambda_n)). Shapes as the fast form's."""
    if z.ndim == 1:
        z = z.expand(Lambda.shape[0], -1)
    z, poles, v = z[:, None, None], Lambda[:, None, :, None], v[..., None]  # (width, k, n, nodes)
    return (v / (z - poles) + v.conj() / (z - poles.conj())).sum(2)
