"""Factors of covariances that are given, which may be singular; and what takes them on (see kernels/kalman)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.kernels.kalman.triangular import Backwards, Once, lower, positive, solve, times

__all__ = ["factor", "lower", "positive", "solve", "times", "values"]


def factor(P: Tensor) -> Tensor:
    """The lower-triangular L with L L^T = P and no negative number on its diagonal, for a P that may be singular.

    A P of lower rank has many. This is the one whose column is zero wherever a row depends on those above it: it is
    unique, and changes smoothly with a P whose rank and whose independent rows stay.

    Gradients: exact for a P of full rank, and for what a P of lower rank is made of as long as its rank stays, and with
               it the rows that depend on those above: P = G q G^T by G and by q. What would add to the rank has a
               gradient of zero here. For a function of L L^T they are exact whichever rows depend on others.
    """
    P = (P + P.mT) / 2
    own = P.diagonal(dim1=-2, dim2=-1)
    if bool(values(own > 0).all()):
        L, info = torch.linalg.cholesky_ex(P)
        # what a row above leaves may be rounding, times the condition of the rows above: then eigenvalues say the rank
        pivots, limit = L.diagonal(dim1=-2, dim2=-1) ** 2, torch.finfo(P.dtype).eps ** (2 / 3)
        if not bool(values((info != 0).unsqueeze(-1) | (pivots.detach() <= limit * own.detach())).any()):
            return L
    return _SemidefiniteFactor.apply(P)


class _SemidefiniteFactor(Backwards):
    @staticmethod
    def forward(P: Tensor) -> Tensor:
        if _is_diagonal(P):
            return P.clamp(min=0).sqrt()
        scale = _scale(P)
        found, vectors = torch.linalg.eigh(P / (scale.unsqueeze(-1) * scale.unsqueeze(-2)))
        largest, limit = found.amax(-1, keepdim=True), _rank_limit(P)
        kept = found > limit * largest
        smallest = torch.where(kept, found, largest).amin(-1) / torch.where(largest > 0, largest, 1).squeeze(-1)
        root = vectors * torch.where(kept, found, 0).sqrt().unsqueeze(-2)
        # a row that depends on others does so within the rounding of P, beside the square root of what P says least of
        L = _echelon(root, limit * smallest.clamp(min=limit).rsqrt())
        return scale.unsqueeze(-1) * L

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
        """dL = L X + E, E out of the range of P, where X + X^T and E follow from dP: E = (I - L L^+) dP L^+T and
        X + X^T = L^+ dP L^+T. The rest of X makes L + dL a triangle again: of the rows with a pivot, L_I X + E_I is to
        have nothing above its diagonal. This is the adjoint of that. For a function of L L^T, L^T L-bar is symmetric
        and ``turned`` is zero.
        """
        own = L.diagonal(dim1=-2, dim2=-1)
        pivot = own > 0
        L_bar = torch.where(pivot.unsqueeze(-2), L_bar, 0)
        scale = _scale(P)  # scaled, so that small numbers do not count as none
        if _is_diagonal(L):
            inverse = torch.diag_embed(torch.where(pivot, 1 / torch.where(pivot, own, 1), 0))
        else:
            inverse = torch.linalg.pinv(L / scale.unsqueeze(-1), rtol=_rank_limit(P) ** 0.5) / scale.unsqueeze(-2)
        H = L.mT @ L_bar
        within = inverse.mT @ (H.tril() + H.tril(-1).mT) @ inverse / 2
        turned = (H.mT - H).triu(1)
        rounding = torch.finfo(P.dtype).eps ** 0.5 * (L.mT.abs() @ L_bar.abs()).amax((-2, -1), keepdim=True)
        turned = torch.where(turned.abs().amax((-2, -1), keepdim=True) > rounding, turned, 0)
        both = pivot.unsqueeze(-1) & pivot.unsqueeze(-2)
        L_I = torch.where(both, L, torch.eye(L.shape[-1], dtype=L.dtype, device=L.device))
        across = (L_bar + torch.linalg.solve_triangular(L_I.mT, turned, upper=True)) @ inverse / 2
        across = across - inverse.mT @ (L.mT @ across)
        return within + across + across.mT


def _echelon(root: Tensor, limit: Tensor) -> Tensor:
    """A lower-triangular L with L L^T = root root^T (..., n, n), rows of size about 1: Gram and Schmidt over the rows,
    each twice. A row that lies within ``limit`` (...) of what those above it span has a zero on the diagonal, and a
    column of zeros below it.

    Source:  Giraud, Langou & Rozloznik 2005, Comput. Math. Appl. 50:1069 (twice is enough).
    """
    n = root.shape[-1]
    basis: list[Tensor] = []
    rows = []
    for i, row in enumerate(root.unbind(-2)):
        rest, parts = row, row.new_zeros(*row.shape[:-1], i)
        if basis:
            span = torch.stack(basis, -2)
            for _ in range(2):
                more = times(span, rest)
                rest, parts = rest - times(span.mT, more), parts + more
        size = rest.square().sum(-1).sqrt()
        apart = size > limit * row.square().sum(-1).sqrt()
        basis.append(torch.where(apart, 1 / torch.where(apart, size, 1), 0).unsqueeze(-1) * rest)
        own = torch.where(apart, size, 0).unsqueeze(-1)
        rows.append(torch.cat([parts, own, row.new_zeros(*row.shape[:-1], n - 1 - i)], -1))
    return torch.stack(rows, -2)


def _is_diagonal(P: Tensor) -> bool:
    whole = values(P)
    return not bool((whole.tril(-1) + whole.triu(1)).any())


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
