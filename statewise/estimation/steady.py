"""The filter with a constant gain, once it has settled: what a long time-invariant series comes to."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.elements import Element, join
from statewise.estimation.factors import lower, positive, times, values
from statewise.estimation.gaussian import GaussianState, Steady
from statewise.estimation.steps import Advanced, Filtered, Steps, advance, update

_MOST_DOUBLINGS = 60


def steady(steps: Steps, begin: GaussianState) -> tuple[Filtered, Steady]:
    """Steps of ``square_root`` until the covariance has reached its limit, then a linear recurrence of the means.

    The limit is the solution of the Riccati equation. The gain becomes constant where the covariance is within 512
    units of the last place of it, or moves no more: beside its standard deviations, and beside what the observations
    to come say of the state (:class:`_Scale`). The latter counts where a state that no noise moves has a limit of zero.
    ``Steady`` says what is left.

    Cost:    O((n + p)^3) for each step before, then O(length n^2 log(memory)) in a few large operations, where the
             memory is how many steps it takes the closed loop to forget.
    Errors:  InputError if a matrix varies with time, if numbers are missing or documents packed, or if there is no
             limit: a part of the state that grows and is not observed, or one that is not moved by any noise.
    Source:  Anderson & Moore 1979, Optimal Filtering, ch. 4; the limit by doubling, sec. 6.7.
    """
    _check(steps)
    batch, length, p = steps.y.shape
    G, N = steps.G[:, :1], steps.N[:, :1]
    settled = limit(G, N, p)
    scale = _Scale(settled, begin.factor.square().sum(-1).detach().unsqueeze(1))
    mean, factor = begin.mean.expand(batch, -1).unsqueeze(1), begin.factor.unsqueeze(1)
    eps = torch.finfo(factor.dtype).eps
    parts: list[Advanced] = []
    error, before = scale.distance(factor, settled.U), None
    while len(parts) < length and error > 512 * eps and not _stands(factor, before, scale, 4 * steps.n * eps):
        t, before = len(parts), factor
        offset = steps.offset[:, t : t + 1] if steps.offset.shape[1] > 1 else steps.offset
        parts.append(advance(mean, factor, G, N, offset, steps.y[:, t : t + 1], None))
        mean, factor = parts[-1].mean, parts[-1].factor
        error = scale.distance(factor, settled.U)
    switched = len(parts)
    rows = [[m.expand(batch, *m.shape[1:]) for m in part] for part in parts]
    if switched < length:
        rest, off = _constant_gain(steps, switched, mean, factor, settled)
        rows.append(rest)
        error = max(error, _largest(off.abs() / scale.unit))
    mean, L, innovation, innovation_factor = (torch.cat(part, 1) for part in zip(*rows))
    valid = steps.masks.valid
    if valid is not None:
        innovation = innovation.masked_fill(~valid.unsqueeze(-1), 0)
        one = torch.eye(p, dtype=L.dtype, device=L.device)
        innovation_factor = torch.where(valid[..., None, None], innovation_factor, one)
    final = _at_the_end(steps, begin, mean, L)
    return Filtered(mean, positive(L), innovation, positive(innovation_factor), final), Steady(switched, error)


class Settled(NamedTuple):
    """A filter after infinitely many steps: U U^T is the covariance of x_t given y_1 ... y_t, Z Z^T the information
    that y_{t+1}, y_{t+2}, ... give about x_t; both (..., n, n).
    """

    U: Tensor
    Z: Tensor


def limit(G: Tensor, N: Tensor, p: int) -> Settled:
    """From the elements of 1, 2, 4, ... steps.

    Errors:  InputError if there is none.
    """
    X = lower(N.detach(), p)
    S, K, U = X[..., :p, :p], X[..., p:, :p], X[..., p:, p:]
    CA, A = G.detach()[..., :p, :], G.detach()[..., p:, :]
    H = torch.linalg.solve_triangular(S, CA, upper=False)
    Z = lower(H.mT)
    zero = A.new_zeros(*A.shape[:-1])
    element = Element(A - K @ H, zero, U, zero, Z)
    P = U @ U.mT
    for _ in range(_MOST_DOUBLINGS):
        element = join(element, element)
        previous, P = P, element.U @ element.U.mT
        if not bool(values(P).isfinite().all()):
            break
        own = P.diagonal(dim1=-2, dim2=-1)
        unit = torch.where(own > 0, own, 1).sqrt()
        change = _largest((P - previous).abs() / (unit.unsqueeze(-1) * unit.unsqueeze(-2)))
        if change <= 4 * P.shape[-1] * torch.finfo(P.dtype).eps and _largest(element.A.abs()) < 1e-3:
            return Settled(element.U, element.Z)
    raise InputError(
        "form 'steady' needs a covariance that settles; this model's does not (part of the state grows unobserved, or "
        "no noise moves it); use form='square_root'"
    )


class _Scale:
    """How large a difference of two covariances of the state is.

    unit:    (..., n): the limit's standard deviations. Where it has none, how far a state has to move for the
             observations to come to notice it; if they never do, its standard deviation at the beginning
    weight:  W^T D W is small where D changes no gain to come. With P = U U^T of the limit and J = Z Z^T, the change of
             (P^-1 + J)^-1 J is at most of the size of W^T D W, W = Z (I + Z^T P Z)^(-T/2); it is D relative to P where
             much is observed later, and D J where P is zero. So a direction that is not one
                 state counts as well.
    """

    def __init__(self, settled: Settled, begin: Tensor) -> None:
        U, Z = settled
        n, eps = U.shape[-1], torch.finfo(U.dtype).eps
        own, told = U.square().sum(-1), Z.square().sum(-1)
        noticed = torch.where(told > 0, 1 / torch.where(told > 0, told, 1), begin)
        own = torch.where(own > eps * eps * noticed, own, noticed)
        self.unit = torch.where(own > 0, own, 1).sqrt()
        identity = torch.eye(n, dtype=U.dtype, device=U.device).expand(*U.shape[:-2], n, n)
        root = lower(torch.cat([identity, Z.mT @ U], -1))
        self.weight = torch.linalg.solve_triangular(root, Z.mT, upper=False)

    def distance(self, factor: Tensor, other: Tensor) -> float:
        """The largest number of factor factor^T - other other^T in these units."""
        factor, other = factor.detach(), other.detach()
        D = factor @ factor.mT - other @ other.mT
        beside = D.abs() / (self.unit.unsqueeze(-1) * self.unit.unsqueeze(-2))
        return max(_largest(beside), _largest((self.weight @ D @ self.weight.mT).abs()))


def _check(steps: Steps) -> None:
    refusal = None
    if steps.varies:
        refusal = "a time-invariant model; a matrix has several steps"
    elif steps.masks.starts is not None:
        refusal = "one document a row; starts has more"
    elif steps.observed is not None:
        valid = steps.masks.valid
        if valid is None or not bool((steps.observed == valid.unsqueeze(-1)).all()):
            refusal = "every number of y; some are missing"
    if refusal is not None:
        raise InputError(f"form 'steady' needs {refusal}; use form='square_root'")


def _constant_gain(
    steps: Steps, begin: int, mean: Tensor, factor: Tensor, settled: Settled
) -> tuple[list[Tensor], Tensor]:
    """The steps from ``begin`` on with the gain of the next one, all at once; and how far that takes the means from
    those of the limit's gain, (batch, length, n). Those of the exact gains lie about between.
    """
    batch, length, p = steps.y.shape
    rest = length - begin
    G = steps.G[:, 0]
    CA, A = G[:, :p], G[:, p:]
    X = update(factor[:, 0], G, steps.N[:, 0], None, p)
    S, L = X[:, :p, :p], X[:, p:, p:]
    K = torch.linalg.solve_triangular(S, X[:, p:, :p], upper=False, left=False)
    offset = steps.offset[:, begin:] if steps.offset.shape[1] > 1 else steps.offset
    driven = times(K.unsqueeze(1), steps.y[:, begin:] - offset[..., :p]) + offset[..., p:]
    closed = A - K @ CA
    driven = torch.cat([driven[:, :1] + times(closed.unsqueeze(1), mean), driven[:, 1:]], 1)
    means = recurrence(closed, driven)
    before = torch.cat([mean, means[:, :-1]], 1)
    innovation = steps.y[:, begin:] - times(CA.unsqueeze(1), before) - offset[..., :p]
    L, S = (m.unsqueeze(1).expand(batch, rest, *m.shape[1:]) for m in (L, S))
    with torch.no_grad():
        X = update(settled.U[:, 0], G, steps.N[:, 0], None, p)
        at_last = torch.linalg.solve_triangular(X[:, :p, :p], X[:, p:, :p], upper=False, left=False)
        off = recurrence(closed, times((K - at_last).unsqueeze(1), innovation))
        if steps.masks.valid is not None:
            off = off.masked_fill(~steps.masks.valid[:, begin:, None], 0)
    return [means, L, innovation, S], off


def recurrence(A: Tensor, g: Tensor) -> Tensor:
    """h_t = A h_{t-1} + g_t from rest, for a constant A (batch or 1, n, n) and g (batch, length, n), by doubling."""
    reach, length = 1, g.shape[1]
    while reach < length and bool((values(A).abs() > 1e-30).any()):
        g = torch.cat([g[:, :reach], g[:, reach:] + g[:, :-reach] @ A.mT], 1)
        A, reach = A @ A, 2 * reach
    return g


def _at_the_end(steps: Steps, begin: GaussianState, mean: Tensor, factor: Tensor) -> GaussianState:
    if steps.masks.lengths is None:
        return GaussianState(mean[:, -1], factor[:, -1])
    row, ends = torch.arange(len(mean), device=mean.device), steps.masks.lengths
    mean = torch.cat([begin.mean.expand(len(mean), -1).unsqueeze(1), mean], 1)
    factor = torch.cat([begin.factor.expand(len(mean), -1, -1).unsqueeze(1), factor], 1)
    return GaussianState(mean[row, ends], factor[row, ends])


def _largest(x: Tensor) -> float:
    return float(values(x).max()) if x.numel() else 0.0  # of no rows: coefficients may have a batch of 0


def _stands(factor: Tensor, before: Tensor | None, scale: _Scale, most: float) -> bool:
    return before is not None and scale.distance(factor, before) <= most
