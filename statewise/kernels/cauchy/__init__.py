"""The Cauchy sum over conjugate pairs of poles: the transfer function of a diagonal system at many nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.adjoint import register_with_adjoint
from statewise.kernels.cauchy import native, pytorch
from statewise.kernels.cauchy.reference import cauchy_reference

__all__ = ["cauchy", "cauchy_reference"]


_cauchy = register_with_adjoint(
    "cauchy",
    "Tensor v, Tensor z, Tensor Lambda",
    native,
    pytorch,
    definition=cauchy_reference,
    takes={"v": "w k n: complex", "z": "1|w m: as v", "Lambda": "w n: as v"},  # nodes of all channels, or of each
    gives={"y": "w k m: as v"},
    optional="z",
)


def cauchy(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    """sum_n v_n / (z - Lambda_n) + conj(v_n) / (z - conj(Lambda_n)): one pole stored of each conjugate pair.

    Shapes:   v: (width, k, n)   z: (nodes,) or (width, nodes)   Lambda: (width, n)   ->   (width, k, nodes); complex
    Cost:     O(width n nodes), one division for all k numerators; the adjoint recomputes. Memory above the output:
              a few blocks that fit the cache, nothing of size (width, n, nodes), except by second derivatives.
    Numerics: in complex64, or complex128 if an input is. The error of a pair is a few rounding errors of
              |v/(z - Lambda)| + |v/(z - conj(Lambda))|, times (|z| + |Lambda|) / (|z - Lambda| + |z - conj(Lambda)|):
              no more than a few, except near a pole whose real part is far larger than its imaginary one.
              |z - Lambda| |z - conj(Lambda)| must lie within 1e-19 .. 1e19 in complex64 (its square is formed),
              beyond which a term becomes 0 or infinite.
    Errors:   InputError if shapes or dtypes do not fit; the message gives them.
    Source:   Gu et al. 2022 (S4), arXiv:2111.00396, appendix C.3, corollary C.6 and its use of conjugate pairs.

    >>> cauchy(torch.tensor([[[1.0 + 0j]]]), torch.tensor([1j]), torch.tensor([[-1.0 + 0j]]))
    tensor([[[1.-1.j]]])
    """
    if (
        v.ndim != 3
        or Lambda.shape != (v.shape[0], v.shape[2])
        or z.ndim not in (1, 2)
        or z.shape[:-1] not in ((), (v.shape[0],))
    ):
        raise InputError(
            "cauchy needs v (width, k, n), z (nodes,) or (width, nodes) and Lambda (width, n); "
            f"got {tuple(v.shape)}, {tuple(z.shape)}, {tuple(Lambda.shape)}"
        )
    tensors = (v, z, Lambda)
    if not all(m.is_complex() for m in tensors):
        raise InputError(f"cauchy needs complex tensors; got {[str(m.dtype) for m in tensors]}")
    dtype = torch.complex128 if any(m.dtype == torch.complex128 for m in tensors) else torch.complex64
    out: Tensor = _cauchy(v.to(dtype), (z if z.ndim == 2 else z.unsqueeze(0)).to(dtype), Lambda.to(dtype))
    return out
