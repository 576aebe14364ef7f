"""What the steps of one call need, worked out for all of them at once.

One step is one linear map from x_{t-1} to what is observed and to what comes next, with one noise for both:

    [y_t]   [C A]           [d']   [C w + v]                     [C L_Q + X   L_R]
    [   ] = [   ] x_{t-1} + [  ] + [       ]   with the noise    [               ] z,    z of variance 1
    [x_t]   [ A ]           [c ]   [   w   ]                     [   L_Q       0 ]

where c = B u + b, d' = C c + D u + d, and [[L_Q, 0], [X, L_R]] is a square root of the joint covariance of (w, v).
With a square root L of the covariance of x_{t-1}, the triangular form of [G L, N] is [[S^1/2, 0], [K S^1/2, L_t]]: the
innovation's factor, the gain and the factor of x_t given y_t, in one decomposition (:func:`advance`).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.estimation.factors import lower, solve, times
from statewise.estimation.gaussian import GaussianState
from statewise.operators.masks import Masks


class Steps(NamedTuple):
    """All axes of a batch and of time are there, 1 where nothing varies.

    G: (batch, length, p + n, n)   N: (batch, length, p + n, n + p)   offset: (batch, length, p + n), as above
    y: (batch, length, p), zero where missing; observed: the same in bool, None where all is
    prior: x before a document's first step; mean (batch or 1, n), factor (batch or 1, n, n)
    """

    G: Tensor
    N: Tensor
    offset: Tensor
    y: Tensor
    observed: Tensor | None
    prior: GaussianState
    masks: Masks

    @property
    def p(self) -> int:
        return int(self.y.shape[-1])

    @property
    def n(self) -> int:
        return int(self.G.shape[-1])

    @property
    def varies(self) -> bool:
        """Whether the matrices, which covariances come from, change with time."""
        return self.G.shape[1] != 1 or self.N.shape[1] != 1


class Advanced(NamedTuple):
    """After a step: x_t given y_t, and the innovation with its factor."""

    mean: Tensor
    factor: Tensor
    innovation: Tensor
    innovation_factor: Tensor


class Filtered(NamedTuple):
    """What a form of the filter gives: all (batch, length, ...), and the final state."""

    mean: Tensor
    factor: Tensor
    innovation: Tensor
    innovation_factor: Tensor
    final: GaussianState


def masked(array: Tensor, observed: Tensor | None) -> Tensor:
    """An array (..., p + n, k) whose missing observations are replaced by noise of variance 1 that nothing else has."""
    if observed is None:
        return array
    p, k = observed.shape[-1], array.shape[-1]
    lead = torch.broadcast_shapes(array.shape[:-2], observed.shape[:-1])
    top = array[..., :p, :].masked_fill(~observed.unsqueeze(-1), 0)
    array = torch.cat([top, array[..., p:, :].expand(*lead, -1, k)], -2)
    own = torch.diag_embed((~observed).to(array.dtype))
    own = torch.cat([own, own.new_zeros(*own.shape[:-2], array.shape[-2] - p, p)], -2)
    return torch.cat([array, own.expand(*lead, -1, p)], -1)


def update(factor: Tensor, G: Tensor, N: Tensor, observed: Tensor | None, p: int) -> Tensor:
    """[[S^1/2, 0], [K S^1/2, L']] of a step from the square root ``factor``; leading axes broadcast.

    Cost:    one QR decomposition of (2 n + p) x (n + p), or p more rows where observations are missing.
    """
    GL = G @ factor
    lead = torch.broadcast_shapes(GL.shape[:-2], N.shape[:-2])
    array = torch.cat([GL.expand(*lead, *GL.shape[-2:]), N.expand(*lead, *N.shape[-2:])], -1)
    return lower(masked(array, observed), p)


def advance(
    mean: Tensor, factor: Tensor, G: Tensor, N: Tensor, offset: Tensor, y: Tensor, observed: Tensor | None
) -> Advanced:
    """One step, of a filter that begins it with this mean and factor; leading axes broadcast."""
    p = y.shape[-1]
    X = update(factor, G, N, observed, p)
    expected = times(G, mean) + offset
    innovation = y - expected[..., :p]
    if observed is not None:
        innovation = innovation.masked_fill(~observed, 0)
    innovation_factor = X[..., :p, :p]
    after = expected[..., p:] + times(X[..., p:, :p], solve(innovation_factor, innovation))
    return Advanced(after, X[..., p:, p:], innovation, innovation_factor)


def log_densities(innovation: Tensor, innovation_factor: Tensor, n_observed: Tensor) -> Tensor:
    """(batch, length): log N(innovation; 0, S), where missing numbers are (0, 1) in innovation and factor."""
    distance = solve(innovation_factor, innovation).square().sum(-1)
    log_determinant = innovation_factor.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
    return -(distance + math.log(2 * math.pi) * n_observed.to(distance.dtype)) / 2 - log_determinant


def unbound(value: Tensor | None, length: int) -> list[Any]:
    """A coefficient's steps; ``unbind``, because indexing [:, t] makes the backward pass quadratic."""
    if value is None:
        return [None] * length
    return [value[:, 0]] * length if value.shape[1] == 1 else list(value.unbind(1))


def choose(condition: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    """yes where the row's condition holds, else no."""
    return torch.where(condition.reshape(*condition.shape, *[1] * (yes.ndim - condition.ndim)), yes, no)
