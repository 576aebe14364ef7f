"""Factors of covariances that are given, which may be singular; and what takes them on (see kernels/kalman)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.kernels.kalman.triangular import Backwards, Once, lower, positive, solve, times

__all__ = ["factor", "lower", "positive", "solve", "times", "values"]


def factor(P: Tensor) -> Tensor:
    """The lower-triangular L with L L^T = P and no negative number on its diagonal, for a P that may be singular.

    Gradients: exact for a P of full rank, and for what a P of lower rank is made of as long as the rank stays:
               P = G q G^T by G and by q. What would add to the rank has a gradient of zero here.
    """
    P = (P + P.mT) / 2
    L, info = torch.linalg.cholesky_ex(P)
    pivots, own = L.diagonal(dim1=-2, dim2=-1) ** 2, P.diagonal(dim1=-2, dim2=-1)
    limit = 64 * torch.finfo(P.dtype).eps
    if not bool(values((info != 0).unsqueeze(-1) | (pivots.detach() <= limit * own.detach())).any()):
        return L
    return _SemidefiniteFactor.apply(P)


class _SemidefiniteFactor(Backwards):
    @staticmethod
    def forward(P: Tensor) -> Tensor:
        scale = _scale(P)
        values, vectors = torch.linalg.eigh(P / (scale.unsqueeze(-1) * scale.unsqueeze(-2)))
        values = torch.where(values > _rank_limit(P) * values.amax(-1, keepdim=True), values, 0)
        root = scale.unsqueeze(-1) * vectors * values.sqrt().unsqueeze(-2)
        return positive(torch.linalg.qr(root.mT, mode="r").R.mT.contiguous())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, L_bar: Tensor) -> Tensor:
        P, L = ctx.saved_tensors
        with torch.no_grad():
            P_bar = _SemidefiniteFactor.pulled_back(P, L, L_bar)
        return Once.apply(P_bar, L, L_bar) if torch.is_grad_enabled() else P_bar

    @staticmethod
    def pulled_back(P: Tensor, L: Tensor, L_bar: Tensor) -> Tensor:
        """L-bar = 2 G L gives G on the range of P, within it and out of it; what G is beyond L does not tell."""
        scale = _scale(P)  # scaled, so that small numbers do not count as none
        inverse = torch.linalg.pinv(L / scale.unsqueeze(-1), rtol=_rank_limit(P) ** 0.5) / scale.unsqueeze(-2)
        H = L.mT @ L_bar
        within = inverse.mT @ (H.tril() + H.tril(-1).mT) @ inverse / 2
        across = L_bar @ inverse / 2
        across = across - inverse.mT @ (L.mT @ across)
        return within + across + across.mT


def _scale(P: Tensor) -> Tensor:
    """(..., n): the standard deviations, 1 where there is none."""
    own = P.diagonal(dim1=-2, dim2=-1).clamp(min=0).sqrt()
    return torch.where(own > 0, own, 1)


def _rank_limit(P: Tensor) -> float:
    return 8 * P.shape[-1] * torch.finfo(P.dtype).eps


def values(x: Tensor) -> Tensor:
    """The numbers of x for a look at them on the host, also within torch.func: of all copies together."""
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x.detach()
