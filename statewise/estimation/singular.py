"""Observations that hold no news: of which the steps before already tell everything, so that they have no density."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.factors import lower, values
from statewise.estimation.steps import Steps


def message(row: int | None = None, step: int | None = None) -> str:
    place = "" if step is None else f" at step {step} of row {row}"
    return (
        f"the innovation's covariance is singular{place}: R has no noise there, and the steps before determine the "
        "observation; give R a positive variance, or leave that number out (NaN)"
    )


def exact_given_state(steps: Steps) -> bool:
    """Whether a number of y_t, or a sum of several, is known exactly given x_{t-1}: neither R nor Q moves it.

    Cost:  nothing that counts where R has full rank, a QR decomposition of p rows for each R and Q where not.
    """
    p, n, N = steps.p, steps.n, values(steps.N)
    if bool((N[..., :p, n:].diagonal(dim1=-2, dim2=-1) > 0).all()):
        return False
    pivot = lower(N[..., :p, :]).diagonal(dim1=-2, dim2=-1).abs()
    return bool((pivot <= _rounding(n + p, N.dtype) * N.abs().amax((-2, -1)).unsqueeze(-1)).any())


def refuse_exact(steps: Steps, what: str, instead: str) -> None:
    """Errors:  InputError where elements cannot be made, which divide by the noise of y_t given x_{t-1}."""
    if exact_given_state(steps):
        raise InputError(
            f"{what} needs noise in every part of y, but neither R nor Q gives some part any; use form={instead!r}"
        )


def refuse_singular(call: Any, innovation_factor: Tensor) -> None:
    """Look for steps at which nothing new was observed, in models that may have them.

    innovation_factor: (batch, length, p, p), of rounding where it should be zero: beside the largest so far
    Errors:            InputError that names the first of them
    """
    if not call.y.shape[1] or not exact_given_state(call.steps):
        return
    refuse_unmoved(innovation_factor, call.observed, rounding_of(call.model, innovation_factor.dtype))


def rounding_of(model: Any, dtype: torch.dtype) -> float:
    return _rounding(model.n_states + model.n_observations, dtype)


def refuse_unmoved(
    innovation_factor: Tensor, observed: Tensor | None, rounding: float, more: Tensor | None = None
) -> None:
    """Errors:  InputError that names the first step at which a pivot is within rounding of the largest factor so far,
    and of ``more`` (batch, length, p).
    """
    F = innovation_factor.detach()
    pivot, size = F.diagonal(dim1=-2, dim2=-1).abs(), F.square().sum(-1).sqrt()
    if more is not None:
        size = size + more
    if observed is not None:
        size = torch.where(observed, size, 0)
    lost = ~(pivot > rounding * size.cummax(1).values)
    if observed is not None:
        lost = lost & observed
    lost = values(lost)
    if bool(lost.any()):
        if lost.ndim > 3:  # within vmap, whose axis may be any of them
            raise InputError(message())
        step, row = min((t, r) for r, t, _ in lost.nonzero().tolist())
        raise InputError(message(row, step))


def _rounding(size: int, dtype: torch.dtype) -> float:
    return size * torch.finfo(dtype).eps
