"""The form of all estimates: normal distributions of states and of observations, as means and factors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError


class GaussianState(NamedTuple):
    """x given all observations so far: mean (batch, n), factor (batch, n, n), a square root of its covariance.

    Any matrix with factor factor^T = covariance will do; what a filter returns is Cholesky's.
    """

    mean: Tensor
    factor: Tensor


class Interval(NamedTuple):
    """The ends of an interval for each number, of the shape of the mean."""

    low: Tensor
    high: Tensor


@dataclass(frozen=True, eq=False)
class Gaussians:
    """A normal distribution for each step: mean (batch, length, n), factor (batch, length, n, n)."""

    mean: Tensor
    factor: Tensor

    @property
    def covariance(self) -> Tensor:
        """(batch, length, n, n)."""
        return self.factor @ self.factor.mT

    @property
    def variance(self) -> Tensor:
        """(batch, length, n): the diagonal of the covariance."""
        return self.factor.square().sum(-1)

    def interval(self, level: float = 0.95) -> Interval:
        """The interval that holds each number, by itself, with probability ``level``.

        Errors:  InputError for a level that is not between 0 and 1.
        """
        half = normal_quantile(level) * self.variance.sqrt()
        return Interval(self.mean - half, self.mean + half)


def check_level(level: object) -> float:
    if not isinstance(level, (int, float)) or isinstance(level, bool) or not 0 < level < 1:
        raise InputError(f"level must be a probability between 0 and 1, such as 0.95; got {level!r}")
    return float(level)


def normal_quantile(level: float) -> float:
    """How many standard deviations to each side hold this probability."""
    return math.sqrt(2) * float(torch.erfinv(torch.tensor(check_level(level), dtype=torch.float64)))


class Steady(NamedTuple):
    """For the form ``steady``: the step from which the gain is constant, and what that costs.

    step:  the first step with the constant gain; the length, if the covariance had not settled by then
    error: the largest of three differences from what the limit gives: of the covariance at that step, relative to the
           limit's standard deviations, |P - limit|_ij / sqrt(limit_ii limit_jj); of the same, relative to what later
           observations say about the state; and of the means from then on, in those standard deviations. For a state
           whose limit is zero the unit is how far it must move for observations to notice it, or its prior's standard
           deviation if they never do.
    """

    step: int
    error: float


@dataclass(frozen=True, eq=False)
class Posterior(Gaussians):
    """x_t given y_1 ... y_t, for every t, and how likely the observations were.

    Shapes:  mean (batch, length, n), factor (batch, length, n, n): zero in the padding
             log_densities (batch, length): log p(y_t | y_1 ... y_{t-1}) of what was observed at t, 0 if nothing was
             innovation (batch, length, p): y_t less its forecast, 0 where missing
             innovation_factor (batch, length, p, p): a square root of the innovation's covariance, with a row and
             column of the identity where missing
             n_observed (batch, length): how many numbers of y_t were observed
    """

    log_densities: Tensor
    innovation: Tensor
    innovation_factor: Tensor
    n_observed: Tensor
    steady: Steady | None = None

    @property
    def log_likelihood(self) -> Tensor:
        """(batch,): log p(y) of each row, summed over its documents."""
        return self.log_densities.sum(1)

    @property
    def whitened(self) -> Tensor:
        """(batch, length, p): the innovations as independent numbers of variance 1, if the model is right."""
        return torch.linalg.solve_triangular(
            self.innovation_factor, self.innovation.unsqueeze(-1), upper=False
        ).squeeze(-1)


@dataclass(frozen=True, eq=False)
class Smoothed(Gaussians):
    """x_t given all observations of its row, or document.

    Shapes:  mean (batch, length, n), factor (batch, length, n, n): zero in the padding
             lag_one (batch, length, n, n): Cov(x_t, x_{t-1} | y); the first is with x_0, the state before the first
             step, and zero where a packed document begins
             initial_mean (batch, n), initial_factor (batch, n, n): x_0
             log_likelihood (batch,), of the filter that ran before
    """

    lag_one: Tensor
    initial_mean: Tensor
    initial_factor: Tensor
    log_likelihood: Tensor


@dataclass(frozen=True, eq=False)
class Forecast:
    """The future: ``states`` x and ``observations`` y, each a :class:`Gaussians` over the steps to come."""

    states: Gaussians
    observations: Gaussians
