"""One iteration of EM for a linear-Gaussian model: what the states are by the smoother, then regression on them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.factors import times

if TYPE_CHECKING:
    from statewise.estimation.model import LinearGaussian


def em_step(
    model: LinearGaussian,
    y: Tensor,
    learn: tuple[str, ...],
    *,
    u: Tensor | None,
    observed: Tensor | None,
    lengths: Tensor | None,
    form: str | None,
) -> tuple[LinearGaussian, float]:
    """The model after one iteration, and the log-likelihood of the one before.

    Both equations are regressions, of x_t on (x_{t-1}, u_t, 1) and of y_t on (x_t, u_t, 1), whose moments the smoother
    gives. Numbers of y that are missing are a part of what is not seen: given x_t and the rest of y_t they have a mean
    and a covariance.

    Source:  Shumway & Stoffer 1982, J. Time Series Anal. 3:253; Särkkä 2013, ch. 12; missing numbers, Holmes
             2013, arXiv:1302.3919, sec. 6.
    """
    if model.S is not None:
        raise InputError("EM has no closed form with S, a correlation of w and v; use method='gradient'")
    with torch.no_grad():
        smoothed = model.smooth(y, u=u, observed=observed, lengths=lengths, form=form)
        mean, P = smoothed.mean, smoothed.covariance
        P_0 = smoothed.initial_factor @ smoothed.initial_factor.mT
        seen = ~y.isnan() if observed is None else ~y.isnan() & observed
        real = torch.ones_like(y[..., 0])
        if lengths is not None:
            real = (torch.arange(y.shape[1], device=y.device) < lengths[:, None]).to(y.dtype)
            seen = seen & real.bool().unsqueeze(-1)
        before = torch.cat([smoothed.initial_mean.unsqueeze(1), mean[:, :-1]], 1)
        P_before = torch.cat([P_0.unsqueeze(1), P[:, :-1]], 1)
        learned: dict[str, Tensor] = {}
        if {"A", "B", "b", "Q"} & set(learn):
            regression = _Regression(before, P_before, u if model.B is not None else None, real)
            learned |= regression.solve(model, ("A", "B", "b", "Q"), learn, mean, smoothed.lag_one, P)
        if {"C", "D", "d", "R"} & set(learn):
            filled, F, rest = _impute(model, y, seen, u)
            weight = seen.any(-1).to(y.dtype)
            regression = _Regression(mean, P, u if model.D is not None else None, weight)
            learned |= regression.solve(
                model, ("C", "D", "d", "R"), learn, times(F, mean) + filled, F @ P, F @ P @ F.mT + rest
            )
        if {"mean", "covariance"} & set(learn):
            x_0 = smoothed.initial_mean.mean(0) if "mean" in learn else model._mean
            away = smoothed.initial_mean - x_0
            if "mean" in learn:
                learned["mean"] = x_0
            if "covariance" in learn:
                learned["covariance"] = (P_0 + away.unsqueeze(-1) * away.unsqueeze(-2)).mean(0)
    return replace(model, **learned), float(smoothed.log_likelihood.sum())  # type: ignore[arg-type]


def _impute(model: LinearGaussian, y: Tensor, seen: Tensor, u: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """y given x and what was seen of it: N(F x + filled, rest), where nothing is missing N(y, 0)."""
    y = y.masked_fill(~seen, 0)
    p = y.shape[-1]
    R, C = _own(model.R, y), _own(model.C, y)
    both = seen.unsqueeze(-1) & seen.unsqueeze(-2)
    one = torch.eye(p, dtype=y.dtype, device=y.device)
    known = torch.where(both, R, torch.where(seen.unsqueeze(-1), 0, one))
    gain = torch.linalg.solve(known, (R * seen.unsqueeze(-2)).mT).mT * seen.unsqueeze(-2)
    left = one - gain
    offset = torch.zeros_like(y)
    if model.D is not None and u is not None:
        offset = offset + times(_own(model.D, y), u)
    if model.d is not None:
        offset = offset + model.d
    rest = left @ R
    return times(left, offset) + times(gain, y), left @ C, (rest + rest.mT) / 2


def _own(value: Tensor, y: Tensor) -> Tensor:
    return value.expand(*y.shape[:2], *value.shape[-2:])


class _Regression:
    """Of a target on (x, u, 1), for x with a mean and a covariance; steps have weights."""

    def __init__(self, mean: Tensor, P: Tensor, u: Tensor | None, weight: Tensor) -> None:
        self.n, self.weight = mean.shape[-1], weight
        parts = [mean, *([] if u is None else [u]), torch.ones_like(mean[..., :1])]
        self.regressors = torch.cat(parts, -1)
        weighted = self.regressors * weight.unsqueeze(-1)
        self.moments = torch.einsum("bti,btj->ij", weighted, self.regressors)
        self.moments[: self.n, : self.n] += torch.einsum("btij,bt->ij", P, weight)
        self.weighted = weighted

    def solve(
        self,
        model: LinearGaussian,
        names: tuple[str, str, str, str],
        learn: tuple[str, ...],
        target: Tensor,
        cross: Tensor,
        covariance: Tensor,
    ) -> dict[str, Tensor]:
        """The coefficients ``names`` of x, u and 1, and of the noise, as far as they are to be learned.

        target: the mean of what is explained, cross: its covariance with x, covariance: its own
        """
        for name in names:
            value = getattr(model, name)
            if value is not None and value.ndim > (1 if name in ("b", "d") else 2):
                raise InputError(f"EM for {', '.join(names)} needs {name} constant in time; use method='gradient'")
        with_target = torch.einsum("bti,btj->ij", target, self.weighted)
        with_target[:, : self.n] += torch.einsum("btij,bt->ij", cross, self.weight)
        own = torch.einsum("bti,btj->ij", target * self.weight.unsqueeze(-1), target)
        own = own + torch.einsum("btij,bt->ij", covariance, self.weight)
        n_inputs = self.regressors.shape[-1] - self.n - 1
        columns = {names[0]: slice(0, self.n), names[1]: slice(self.n, self.n + n_inputs), names[2]: slice(-1, None)}
        H = torch.zeros_like(with_target)
        H[:, columns[names[0]]] = getattr(model, names[0])
        if n_inputs and getattr(model, names[1]) is not None:
            H[:, columns[names[1]]] = getattr(model, names[1])
        if getattr(model, names[2]) is not None:
            H[:, -1] = getattr(model, names[2])
        free = torch.zeros(H.shape[1], dtype=torch.bool, device=H.device)
        for name, where in columns.items():
            free[where] = name in learn
        if bool(free.any()):
            fixed = with_target[:, free] - H[:, ~free] @ self.moments[~free][:, free]
            H[:, free] = torch.linalg.lstsq(self.moments[free][:, free], fixed.mT).solution.mT
        learned = {name: H[:, where] for name, where in columns.items() if name in learn}
        if names[2] in learned:
            learned[names[2]] = learned[names[2]][:, 0]
        if names[3] in learn:
            noise = own - H @ with_target.mT - with_target @ H.mT + H @ self.moments @ H.mT
            learned[names[3]] = (noise + noise.mT) / (2 * self.weight.sum())
        return learned
