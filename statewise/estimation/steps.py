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

from typing import NamedTuple

from torch import Tensor

from statewise.estimation.gaussian import GaussianState
from statewise.kernels.kalman.pytorch import Advanced, advance, choose, log_densities, masked, unbound, update
from statewise.operators.masks import Masks

__all__ = [
    "Advanced",
    "Filtered",
    "Steps",
    "advance",
    "choose",
    "log_densities",
    "masked",
    "unbound",
    "update",
]


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


class Filtered(NamedTuple):
    """What a form of the filter gives: all (batch, length, ...), and the final state.

    Factors have a batch of 1 where all rows have the same, and a diagonal that is not negative.
    """

    mean: Tensor
    factor: Tensor
    innovation: Tensor
    innovation_factor: Tensor
    final: GaussianState
    log_densities: Tensor | None = None  # where the form had them on its way
