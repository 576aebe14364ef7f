"""The Cauchy sum over conjugate pairs of poles: the transfer function of a diagonal system at many nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.kernels.backend import c_runs, refusal_of
from statewise.kernels.cauchy import native, pytorch
from statewise.kernels.cauchy.reference import cauchy_reference
from statewise.kernels.registration import register

__all__ = ["cauchy", "cauchy_reference"]


# nodes of all channels, or of each
_TAKES = {"v": "w k n: complex", "z": "1|w m: as v", "Lambda": "w n: as v"}


def _forward(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    path = native if c_runs("cauchy", refusal_of(v=v, z=z, Lambda=Lambda)) else pytorch
    return path.forward(v, z, Lambda)


def _adjoint(grad: Tensor, v: Tensor, z: Tensor, Lambda: Tensor, with_z: bool) -> tuple[Tensor, Tensor, Tensor]:
    path = native if c_runs("cauchy", refusal_of(grad=grad, v=v, z=z, Lambda=Lambda)) else pytorch
    return path.backward(grad, v, z, Lambda, with_z)


def _fake_forward(v: Tensor, z: Tensor, Lambda: Tensor) -> Tensor:
    return torch.empty(*v.shape[:2], z.shape[1], dtype=v.dtype, device=v.device)


def _fake_adjoint(grad: Tensor, v: Tensor, z: Tensor, Lambda: Tensor, with_z: bool) -> tuple[Tensor, Tensor, Tensor]:
    dv, dz, d_Lambda = (torch.empty(m.shape, dtype=m.dtype, device=m.device) for m in (v, z, Lambda))
    return dv, dz, d_Lambda


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*(m for m in inputs if isinstance(m, Tensor)))


def _backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    dv, dz, d_Lambda = _cauchy_backward(grad, *ctx.saved_tensors, ctx.needs_input_grad[1])
    return dv, dz if ctx.needs_input_grad[1] else None, d_Lambda


def _second_backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
    """The derivative of the adjoint, taken through the definition: rare, so it need not be fast."""
    with torch.enable_grad():
        leaves = [m.detach().requires_grad_() for m in ctx.saved_tensors]
        first = torch.autograd.grad(
            cauchy_reference(*leaves[1:]), leaves[1:], leaves[0], create_graph=True, materialize_grads=True
        )
        return *torch.autograd.grad(first, leaves, grads, materialize_grads=True), None


_cauchy = register(
    "cauchy",
    "(Tensor v, Tensor z, Tensor Lambda) -> Tensor",
    _forward,
    takes=_TAKES,
    fake=_fake_forward,
    setup_context=_setup_context,
    backward=_backward,
)
_cauchy_backward = register(
    "cauchy_backward",
    "(Tensor grad, Tensor v, Tensor z, Tensor Lambda, bool with_z) -> (Tensor, Tensor, Tensor)",
    _adjoint,
    takes={"grad": "w k m: as v", **_TAKES},
    fake=_fake_adjoint,
    setup_context=_setup_context,
    backward=_second_backward,
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
