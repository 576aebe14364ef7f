"""The filter as associative scans: all steps at once, in batched operations whose number is O(log length)."""

from __future__ import annotations

import torch
from torch import Tensor

from statewise.estimation.elements import Affine, Element, covariance_elements, follow, join, scan
from statewise.estimation.factors import positive, solve, times
from statewise.estimation.gaussian import GaussianState
from statewise.estimation.steps import Filtered, Steps, choose, update


def parallel(steps: Steps, begin: GaussianState) -> Filtered:
    """Covariances, means and the likelihood, each for all steps at once.

    A scan over elements gives the covariance before every step. One exact update from there, for all steps together,
    gives gains and innovation factors. With the gains known the means are an affine recurrence, another scan; to carry
    them through the first, as published, would cost float32 its digits where states are far from zero.

    Cost:    about ten times the work of ``square_root``, O(length n^3), without a loop over steps. Rows with the same
             covariances share the first scan.
    Numerics: square roots throughout, and no inverse but of I + (what is positive): it needs no more of the model than
             ``square_root`` does.
    Source:  Särkkä & García-Fernández 2021, IEEE Trans. Automat. Contr. 66:299, sec. III; Yaghoobi et al. 2022,
             arXiv:2207.00426.
    """
    batch, length, p = steps.y.shape
    masks, prior = steps.masks, steps.prior
    mean, factor = begin.mean.expand(batch, -1).unsqueeze(1), _factors_before(steps, begin.factor)
    X = update(factor, steps.G, steps.N, steps.observed, p).expand(-1, length, -1, -1)
    S, K, L = X[..., :p, :p], X[..., p:, :p], X[..., p:, p:]
    CA, residual = steps.G[..., :p, :], steps.y - steps.offset[..., :p]
    if steps.observed is not None:
        CA, residual = CA.masked_fill(~steps.observed.unsqueeze(-1), 0), residual.masked_fill(~steps.observed, 0)
    A = steps.G[..., p:, :] - K @ torch.linalg.solve_triangular(S, CA, upper=False)
    b = steps.offset[..., p:] + times(K, solve(S, residual))
    b = b.expand(batch, length, -1)
    if masks.starts is not None:
        b = choose(masks.starts, times(A, prior.mean.unsqueeze(1)) + b, b)
        A = choose(~masks.starts, A, A.new_zeros(()))
    if masks.valid is not None:
        one = torch.eye(steps.n, dtype=A.dtype, device=A.device)
        A, b = choose(masks.valid, A, one), choose(masks.valid, b, b.new_zeros(()))
        L = choose(masks.valid, L, factor)
    b = torch.cat([times(A[:, :1], mean) + b[:, :1], b[:, 1:]], 1)
    means = scan(Affine(A, b), follow).b
    before = torch.cat([mean, means[:, :-1]], 1)
    if masks.starts is not None:
        before = choose(masks.starts, prior.mean.unsqueeze(1), before)
    innovation = residual - times(CA, before)
    L = positive(L)
    return Filtered(means, L, innovation, positive(S), GaussianState(means[:, -1], L[:, -1]))


def _factors_before(steps: Steps, begin: Tensor) -> Tensor:
    """A square root of the covariance before each step, (batch or 1, length, n, n)."""
    p, length, masks = steps.p, steps.y.shape[1], steps.masks
    factor = begin.unsqueeze(1)
    if length > 1:
        A, U, Z, *_ = covariance_elements(steps)
        observed = None if steps.observed is None else steps.observed[:, :1]
        first = update(factor, steps.G[:, :1], steps.N[:, :1], observed, p)[..., p:, p:]
        if masks.valid is not None:
            first = choose(masks.valid[:, :1], first, factor)
        rest = U[:, 1:]
        if masks.starts is not None:  # each document begins from a distribution, not from any x
            known = update(steps.prior.factor.unsqueeze(1), steps.G, steps.N, steps.observed, p)[..., p:, p:]
            rest = choose(masks.starts[:, 1:], known.expand(-1, length, -1, -1)[:, 1:], rest)
        shared = torch.broadcast_shapes(first.shape[:1], rest.shape[:1])[0]
        A, Z = (torch.cat([torch.zeros_like(m[:, :1]), m[:, 1:]], 1) for m in (A, Z))
        A, U, Z = (_rows(m, shared) for m in (A, torch.cat([_rows(first, shared), _rows(rest, shared)], 1), Z))
        nothing = U.new_zeros(1, length, steps.n)
        prefix = scan(Element(A, nothing, U, nothing, Z), join)
        factor = torch.cat([_rows(factor, shared), prefix.U[:, :-1]], 1)
    if masks.starts is not None:
        factor = choose(masks.starts, steps.prior.factor.unsqueeze(1), factor)
    return factor


def _rows(value: Tensor, batch: int) -> Tensor:
    return value.expand(batch, *value.shape[1:])
