"""Square roots of covariances: triangular factors L with L L^T = P, by orthogonal transformations alone.

A filter that carries L instead of P cannot come to a covariance that is not one: L L^T is never indefinite, and
half the digits of the exponent are enough. What a step needs is one thing, :func:`lower`: a triangular matrix X with
X X^T = M M^T for a wide M, which is the transposed R of a QR decomposition.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


class Backwards(torch.autograd.Function):
    """A function with gradients, also under vmap, and with no derivative in forward mode."""

    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, *_: Any) -> Any:
        raise RuntimeError(
            "square-root filters have no derivative in forward mode (torch.func.jvp, jacfwd, hessian); use "
            "torch.func.jacrev, or a LinearGaussian's form='recurrent'"
        )


def lower(M: Tensor, n_leading: int = 0) -> Tensor:
    """A lower-triangular X with X X^T = M M^T. The signs of its columns are arbitrary; see :func:`positive`.

    Shapes:    M: (..., n, k)   ->   (..., n, n)
    Cost:      O(k n^2), a QR decomposition of M^T by Householder's reflections: backward stable row by row of M.
    Gradients: exact, once (a second derivative is refused). Only the block of the first ``n_leading`` rows has to be
               invertible, as long as what is computed from the rest depends on X X^T alone, as a filter does; so
               covariances of the rest may be singular. Where something else is asked of it, as of its single entries,
               X has to be invertible.
    Source:    Kailath, Sayed & Hassibi 2000, Linear Estimation, ch. 12 (array algorithms).
    """
    missing = M.shape[-2] - M.shape[-1]
    if missing > 0:
        M = torch.cat([M, M.new_zeros(*M.shape[:-1], missing)], -1)
    if (torch.is_grad_enabled() and M.requires_grad) or forward_ad._current_level >= 0:
        return _Lower.apply(M, n_leading)[0]
    return torch.linalg.qr(M.mT, mode="r").R.mT


class _Lower(Backwards):
    """M^T = Q X^T. For a function of X X^T the gradient is that of M X-bar Q^T, with no inverse: let G be the gradient
    of X X^T, symmetric. Then X-bar = 2 G X, and M-bar = 2 G M = 2 G X Q^T. There X^T X-bar is symmetric; what is not
    symmetric of it comes from entries that a caller took for themselves, or knew to be zero, and is put right."""

    @staticmethod
    def forward(M: Tensor, n_leading: int) -> tuple[Tensor, Tensor]:
        Q, R = torch.linalg.qr(M.mT)
        return R.mT.contiguous(), Q

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*output)
        ctx.n_leading = inputs[1]

    @staticmethod
    def backward(ctx: Any, X_bar: Tensor, _: Tensor) -> tuple[Tensor, None]:
        X, Q = ctx.saved_tensors
        with torch.no_grad():
            M_bar = _Lower.pulled_back(X, Q, X_bar, ctx.n_leading)
        return Once.apply(M_bar, X, X_bar) if torch.is_grad_enabled() else M_bar, None

    @staticmethod
    def pulled_back(X: Tensor, Q: Tensor, X_bar: Tensor, p: int) -> Tensor:
        H = X.mT @ X_bar
        skew = (H.mT - H).triu(1)
        if p < X.shape[-1]:  # rounding must not meet the inverse of a factor that may be singular
            rest, size = skew[..., p:, p:], X[..., p:, p:].mT.abs() @ X_bar[..., p:, p:].abs()
            rounding = torch.finfo(X.dtype).eps ** 0.5 * size.amax((-2, -1), keepdim=True)
            real = rest.abs().amax((-2, -1), keepdim=True) > rounding
            below = torch.cat([torch.zeros_like(skew[..., p:, :p]), torch.where(real, rest, 0)], -1)
            skew = torch.cat([skew[..., :p, :], below], -2)
        X_bar = X_bar + torch.linalg.solve_triangular(_without_zeros(X).mT, skew, upper=True)
        return X_bar @ Q.mT


class Once(Backwards):
    """A gradient that has none itself: better an error than a second derivative that lacks a part."""

    @staticmethod
    def forward(gradient: Tensor, *_: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError("square-root filters have no second derivative; use form='recurrent'")


def _without_zeros(X: Tensor) -> Tensor:
    """X with 1 for each zero on its diagonal: 0 divided by it is to be 0."""
    diagonal = X.diagonal(dim1=-2, dim2=-1)
    return X + torch.diag_embed((diagonal == 0).to(X.dtype))


def positive(X: Tensor) -> Tensor:
    """The same factor with a diagonal that is not negative: what makes it unique, Cholesky's."""
    diagonal = X.diagonal(dim1=-2, dim2=-1)
    return X * torch.where(diagonal < 0, -1.0, 1.0).to(X.dtype).unsqueeze(-2)


def solve(L: Tensor, x: Tensor) -> Tensor:
    """L^-1 x for a lower-triangular L (..., n, n) and vectors x (..., n); leading axes broadcast."""
    return torch.linalg.solve_triangular(L, x.unsqueeze(-1), upper=False).squeeze(-1)


def times(M: Tensor, x: Tensor) -> Tensor:
    """M x for matrices (..., m, n) and vectors (..., n); leading axes broadcast."""
    return (M @ x.unsqueeze(-1)).squeeze(-1)
