"""One iteration of EM for a linear-Gaussian model: what the states are by the smoother, then regression on them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.factors import times
from statewise.estimation.gaussian import Smoothed

if TYPE_CHECKING:
    from statewise.estimation.model import LinearGaussian

STATES, SEEN, NOISES = ("A", "B", "b", "Q"), ("C", "D", "d", "R"), ("Q", "R", "S")


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
    gives. Numbers of y that are missing are a part of what is not seen: given the states and the rest of y_t they have
    a mean and a covariance. With S the two are one regression with correlated errors, by generalised least squares
    under the noises of the model before; then the noises, given its coefficients. That is a conditional maximisation
    in two parts, which cannot lower the likelihood either.

    Source:  Shumway & Stoffer 1982, J. Time Series Anal. 3:253; Särkkä 2013, ch. 12; missing numbers, Holmes
             2013, arXiv:1302.3919, sec. 6; in two parts, Meng & Rubin 1993, Biometrika 80:267.
    """
    groups = (STATES, SEEN) if model.S is None else ((*STATES, *SEEN, "S"),)
    with torch.no_grad():
        smoothed = model.smooth(y, u=u, observed=observed, lengths=lengths, form=form)
        seen = ~y.isnan() if observed is None else ~y.isnan() & observed
        real = torch.ones_like(seen[..., 0])
        if lengths is not None:
            real = torch.arange(y.shape[1], device=y.device) < lengths[:, None]
            seen = seen & real.unsqueeze(-1)
            u = None if u is None else u.masked_fill(~real.unsqueeze(-1), 0)
        learned: dict[str, Tensor] = {}
        for group in groups:
            if set(group) & set(learn):
                _check_group(model, group)
                weight = seen.any(-1) if group == SEEN else real
                moments = _moments(model, smoothed, y, u, seen, weight, explain_y=group != STATES)
                learned |= _regress(model, group, learn, moments, int(weight.sum()))
        if "mean" in learn:
            learned["mean"] = smoothed.initial_mean.mean(0)
        if "covariance" in learn:
            away = smoothed.initial_mean - learned.get("mean", model._mean)
            P_0 = smoothed.initial_factor @ smoothed.initial_factor.mT
            learned["covariance"] = (P_0 + away.unsqueeze(-1) * away.unsqueeze(-2)).mean(0)
    return replace(model, **learned), float(smoothed.log_likelihood.sum())  # type: ignore[arg-type]


def _check_group(model: LinearGaussian, group: tuple[str, ...]) -> None:
    for name in group:
        value = getattr(model, name)
        if value is not None and value.ndim > (1 if name in ("b", "d") else 2):
            raise InputError(f"EM for {', '.join(group)} needs {name} to be constant in time; use method='gradient'")
    if model.S is not None and bool(torch.linalg.cholesky_ex(_scaled(model._joint())[0]).info):
        raise InputError("EM with S needs [[Q, S], [S^T, R]] of full rank; use method='gradient'")


def _scaled(P: Tensor) -> tuple[Tensor, Tensor]:
    """Correlations, so that units do not matter, and what they are times."""
    scale = P.diagonal().sqrt()
    size = torch.outer(scale, scale)
    return P / torch.where(size > 0, size, 1), size


def _moments(
    model: LinearGaussian,
    smoothed: Smoothed,
    y: Tensor,
    u: Tensor | None,
    seen: Tensor,
    weight: Tensor,
    *,
    explain_y: bool,
) -> Tensor:
    """The sum over steps of E[h h^T], for h = (x_t, x_{t-1}, u_t, 1, y_t) given all that was observed; without y_t if
    that is not to be explained."""
    mean, P, length = smoothed.mean, smoothed.covariance, y.shape[1]
    P_0 = smoothed.initial_factor @ smoothed.initial_factor.mT
    before = torch.cat([smoothed.initial_mean.unsqueeze(1), mean], 1)[:, :length]
    P_before = torch.cat([P_0.unsqueeze(1), P], 1)[:, :length]
    z = torch.cat([mean, before], -1)
    P_z = torch.cat([torch.cat([P, smoothed.lag_one], -1), torch.cat([smoothed.lag_one.mT, P_before], -1)], -2)
    parts = [z, *([] if u is None else [u]), torch.ones_like(y[..., :1])]
    factor = torch.cat([_one(z), z.new_zeros(sum(m.shape[-1] for m in parts[1:]), z.shape[-1])]).expand(
        *y.shape[:2], -1, -1
    )
    noise = None
    if explain_y:
        rest = _impute(model, y, u, seen)
        parts.append(times(rest.F, z) + rest.offset)
        factor, noise = torch.cat([factor, rest.F], -2), rest.covariance
    h, w = torch.cat(parts, -1), weight.to(y.dtype)
    total = torch.einsum("bti,btj,bt->ij", h, h, w) + torch.einsum("btij,bt->ij", factor @ P_z @ factor.mT, w)
    if noise is not None:
        p = y.shape[-1]
        total[-p:, -p:] += torch.einsum("btij,bt->ij", noise, w)
    return total


class _Rest(NamedTuple):
    """y_t given z = (x_t, x_{t-1}) and what was seen of y_t: N(F z + offset, covariance)."""

    F: Tensor
    offset: Tensor
    covariance: Tensor


def _impute(model: LinearGaussian, y: Tensor, u: Tensor | None, seen: Tensor) -> _Rest:
    """Where a number was seen it is y; else what its noise is, given the noises of the others and, with S, of x_t."""
    y, p, n = y.masked_fill(~seen, 0), y.shape[-1], model.n_states

    def own(value: Tensor) -> Tensor:
        return value.expand(*y.shape[:2], *value.shape[-2:])

    def offset(gain: Tensor | None, constant: Tensor | None, size: int) -> Tensor:
        total = y.new_zeros(*y.shape[:2], size)
        if gain is not None and u is not None:
            total = total + times(own(gain), u)
        return total if constant is None else total + constant

    if model.S is None:
        noise, known = own(model.R), seen
        pushed, shift = y.new_zeros(*y.shape[:2], 0, 2 * n), y.new_zeros(*y.shape[:2], 0)
    else:
        noise, known = (
            own(model._joint()),
            torch.cat([torch.ones_like(seen[..., :1]).expand(*y.shape[:2], n), seen], -1),
        )
        pushed = torch.cat([_one(model.A), -model.A], -1).expand(*y.shape[:2], -1, -1)
        shift = offset(model.B, model.b, n)
    both, size = known.unsqueeze(-1) & known.unsqueeze(-2), noise.shape[-1]
    among = torch.where(both, noise, torch.diag_embed((~known).to(y.dtype)))
    cross = noise[..., size - p :, :] * known.unsqueeze(-2)
    gain = torch.linalg.solve(among, cross.mT).mT
    by_x, by_y = gain[..., : size - p], gain[..., size - p :]
    left, C = _one(by_y) - by_y, own(model.C)
    F = left @ torch.cat([C, torch.zeros_like(C)], -1) + by_x @ pushed
    constant = times(left, offset(model.D, model.d, p)) + times(by_y, y) - times(by_x, shift)
    rest = noise[..., size - p :, size - p :] - gain @ cross.mT
    return _Rest(F, constant, (rest + rest.mT) / 2)


def _one(like: Tensor) -> Tensor:
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device)


def _regress(
    model: LinearGaussian, group: tuple[str, ...], learn: tuple[str, ...], moments: Tensor, n_steps: int
) -> dict[str, Tensor]:
    """The noises are W h, with -A, -B, -b and -C, -D, -d in W: first these, then the covariance of the noises."""
    n, p, m = model.n_states, model.n_observations, len(moments)
    states, seen = group[0] == "A", group != STATES
    width = m - 2 * n - 1 - (p if seen else 0)  # of u
    now, before, inputs = slice(0, n), slice(n, 2 * n), slice(2 * n, 2 * n + width)
    one = slice(2 * n + width, 2 * n + width + 1)
    first = n if states else 0
    W = moments.new_zeros(first + (p if seen else 0), m)
    free = torch.zeros_like(W, dtype=torch.bool)
    places: dict[str, tuple[slice, slice]] = {}
    if states:
        W[:n, now] = _one(model.A)
        places |= {"A": (slice(0, n), before), "B": (slice(0, n), inputs), "b": (slice(0, n), one)}
    if seen:
        rows = slice(first, first + p)
        W[rows, -p:] = _one(model.R)
        places |= {"C": (rows, now), "D": (rows, inputs), "d": (rows, one)}
    for name, place in places.items():
        value = getattr(model, name)
        if value is not None:
            W[place] = -(value.unsqueeze(-1) if name in ("b", "d") else value)
            free[place] = name in learn
    if bool(free.any()):
        W = _solved(W, free, moments, None if model.S is None else model._joint())
    learned = {name: -W[place] for name, place in places.items() if name in learn}
    learned |= {name: value[:, 0] for name, value in learned.items() if name in ("b", "d")}
    noise = W @ moments @ W.mT / n_steps
    noise = (noise + noise.mT) / 2
    blocks = {"Q": noise[:first, :first], "R": noise[first:, first:], "S": noise[:first, first:]}
    return learned | {name: blocks[name] for name in NOISES if name in learn and name in group}


def _solved(W: Tensor, free: Tensor, moments: Tensor, noise: Tensor | None) -> Tensor:
    """W with those of its entries that are free such that tr(noise^-1 W moments W^T) is least; without a noise each row
    by itself, since its covariance does not matter where rows have the same regressors."""
    fixed = W.masked_fill(free, 0)
    if noise is None:
        columns = free[0]
        W = fixed.clone()
        W[:, columns] = -torch.linalg.lstsq(moments[columns][:, columns], (fixed @ moments)[:, columns].mT).solution.mT
        return W
    correlations, size = _scaled(noise)
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(correlations)) / size
    i, j = free.nonzero(as_tuple=True)
    K = inverse[i[:, None], i] * moments[j[:, None], j]
    W = fixed.clone()
    W[i, j] = -torch.linalg.lstsq(K, (inverse @ fixed @ moments)[i, j].unsqueeze(-1)).solution[:, 0]
    return W
