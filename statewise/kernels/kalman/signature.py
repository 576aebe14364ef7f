"""What the filter takes and gives, carried as one object from the first check to C."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Arguments(NamedTuple):
    """k = p + n rows: first what is observed, then what comes next. An axis of 1 stands for all rows, or all steps.

    y:       (batch, length, p), zero where missing
    G:       (batch or 1, length or 1, k, n), from x_{t-1}   N: (..., k, j), a square root of the noise
    offset:  (batch or 1, length or 1, k)
    mean, prior_mean: (batch or 1, n)   factor, prior_factor: (batch or 1, n, n); before the first step, and before the
             first of a document
    observed: (batch, length, p) bool, or None where all is   lengths: (batch,)   starts: (batch, length) bool
    rows:    how many rows the covariances have, 1 where all share them
    """

    y: Tensor
    G: Tensor
    N: Tensor
    offset: Tensor
    mean: Tensor
    factor: Tensor
    prior_mean: Tensor
    prior_factor: Tensor
    observed: Tensor | None
    lengths: Tensor | None
    starts: Tensor | None
    rows: int

    @property
    def numbers(self) -> tuple[Tensor, ...]:
        """Those that have gradients."""
        return self[:8]


class Outputs(NamedTuple):
    """mean (batch, length, n), factor (rows, length, n, n), innovation (batch, length, p), innovation_factor (rows,
    length, p, p) and density (batch, length), log p(y_t | y_1 ... y_{t-1})."""

    mean: Tensor
    factor: Tensor
    innovation: Tensor
    innovation_factor: Tensor
    density: Tensor


class Grads(NamedTuple):
    """What the adjoint takes: the gradients of three of the outputs, None where there is none."""

    mean: Tensor | None
    innovation: Tensor | None
    density: Tensor | None


class Gradients(NamedTuple):
    """The gradients of the arguments that are numbers."""

    y: Tensor
    G: Tensor
    N: Tensor
    offset: Tensor
    mean: Tensor
    factor: Tensor
    prior_mean: Tensor
    prior_factor: Tensor
