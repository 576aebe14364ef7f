"""Whether a filter is as certain as it should be: normalised squares of innovations and of errors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.factors import solve
from statewise.estimation.gaussian import Gaussians, Interval, Posterior, check_level
from statewise.estimation.transforms import Residual, difference


def nis(posterior: Posterior) -> Tensor:
    """The normalised innovation squared, v^T S^-1 v, (batch, length); its mean is ``n_observed`` if the model is right.

    Source:  Bar-Shalom, Li & Kirubarajan 2001, Estimation with Applications to Tracking and Navigation,
             sec. 5.4.
    """
    if not isinstance(posterior, Posterior):
        raise InputError(f"nis needs the Posterior that filter returned, got {type(posterior).__name__}")
    return posterior.whitened.square().sum(-1)


def nees(estimate: Gaussians, x: Tensor, residual: Residual = difference) -> Tensor:
    """The normalised estimation error squared, e^T P^-1 e, (batch, length), for the true states x; its mean is n.

    residual: of a state, as in :class:`~statewise.estimation.NonlinearGaussian`, if some states are angles
    Errors:  InputError for states of another shape.
    Source:  Bar-Shalom, Li & Kirubarajan 2001, sec. 5.4.
    """
    if not isinstance(estimate, Gaussians):
        raise InputError(f"nees needs an estimate of states, such as filter returns, got {type(estimate).__name__}")
    if not isinstance(x, Tensor) or x.shape != estimate.mean.shape:
        given = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        raise InputError(f"nees needs the true states of shape {tuple(estimate.mean.shape)}, got {given}")
    return solve(estimate.factor, residual(x, estimate.mean)).square().sum(-1)


def acceptance(n_runs: int, dof: int, level: float = 0.95) -> Interval:
    """The interval that holds, with probability ``level``, the mean of a chi-square of ``dof`` over ``n_runs`` runs.

    Above it a filter is too certain, below it not certain enough.

    >>> [round(float(end), 2) for end in acceptance(50, 2)]
    [1.48, 2.59]
    """
    for name, value in (("n_runs", n_runs), ("dof", dof)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"acceptance needs {name} as a number above 0, got {value!r}")
    tail = (1 - check_level(level)) / 2
    ends = [chi_square_quantile(q, n_runs * dof) / n_runs for q in (tail, 1 - tail)]
    return Interval(*[torch.tensor(end, dtype=torch.float64) for end in ends])


def chi_square_quantile(probability: float, dof: int) -> float:
    """By bisection of the incomplete gamma function."""
    half = torch.tensor(dof / 2, dtype=torch.float64)
    low, high = 0.0, dof + 20 * math.sqrt(2 * dof) + 100
    for _ in range(100):
        middle = (low + high) / 2
        below = float(torch.special.gammainc(half, torch.tensor(middle / 2, dtype=torch.float64))) < probability
        low, high = (middle, high) if below else (low, middle)
    return (low + high) / 2
