"""The definitions: Kalman's filter and the smoother of Bryson and Frazier, in float64, row by row, step by step.

They are slow and meant to be read. Every other form is held against them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.call import Call
from statewise.estimation.coefficients import with_axes
from statewise.estimation.factors import factor
from statewise.estimation.gaussian import GaussianState, Posterior, Smoothed
from statewise.estimation.singular import message
from statewise.kernels.batching import stacked
from statewise.operators.masks import Masks


class Moments(NamedTuple):
    """A normal distribution: mean (n,), covariance (n, n)."""

    mean: Tensor
    covariance: Tensor


class Update(NamedTuple):
    """One step: x_t given y_1 ... y_t, the innovation of what was observed, its covariance, the gain, and
    log p(y_t | ...)."""

    moments: Moments
    innovation: Tensor
    S: Tensor
    K: Tensor
    log_density: Tensor


def filter_step(before: Moments, m: Mapping[str, Tensor], y: Tensor, observed: Tensor) -> Update:
    """x_t = A x_{t-1} + c + w, y_t = C x_t + d + v, for the numbers of y_t that were observed.

    m:       the coefficients of this step: A, Q, C, R, S = Cov(w, v), c = B u + b, d = D u + d
    Errors:  LinAlgError where the innovation's covariance is singular.
    Source:  Kalman 1960, J. Basic Eng. 82:35; Särkkä 2013, Bayesian Filtering and Smoothing, eq. 4.20 and 4.21; with
             S, Simon 2006, Optimal State Estimation, sec. 7.1 (his M_k).
    """
    mean = m["A"] @ before.mean + m["c"]
    P = m["A"] @ before.covariance @ m["A"].T + m["Q"]
    C, d, R, S_wv = m["C"][observed], m["d"][observed], m["R"][observed][:, observed], m["S"][:, observed]
    innovation = y[observed] - C @ mean - d
    S = C @ P @ C.T + C @ S_wv + S_wv.T @ C.T + R
    K = torch.linalg.solve(S, P @ C.T + S_wv, left=False)
    distance = innovation @ torch.linalg.solve(S, innovation)
    log_density = -(distance + torch.linalg.slogdet(S).logabsdet + len(innovation) * math.log(2 * math.pi)) / 2
    # Joseph's form (Bucy & Joseph 1968) of P - K S K^T, which is rounding where P is far above R
    rest = torch.eye(len(mean), dtype=P.dtype, device=P.device) - K @ C
    cross = rest @ S_wv @ K.T
    P = rest @ P @ rest.T + K @ R @ K.T - cross - cross.T
    return Update(Moments(mean + K @ innovation, (P + P.T) / 2), innovation, S, K, log_density)


class Told(NamedTuple):
    """What the observations after a step say about its state: ``score`` (n,), ``information`` (n, n)."""

    score: Tensor
    information: Tensor


def told(now: Moments, told: Told) -> Moments:
    """x_t given all observations, from x_t given y_1 ... y_t and what the later ones tell."""
    P = now.covariance
    covariance = P - P @ told.information @ P
    return Moments(now.mean + P @ told.score, (covariance + covariance.T) / 2)


def smoother_step(before: Moments, now: Update, later: Told, m: Mapping[str, Tensor], observed: Tensor) -> tuple:
    """What y_t and the observations after it say about x_{t-1}, from what those after it say about x_t.

    The error of x_t is F times that of x_{t-1}, F = A - K C A, and noise; the innovation is C A times it, and noise.
    It divides by the innovation's covariance alone. The equations of Rauch, Tung and Striebel, the same in exact
    arithmetic, divide by the forecast's, which may be singular: without noise in a state that decays they lose every
    digit within a hundred steps.

    m:       the coefficients of the step to t; observed: which numbers of y_t were
    Returns: what they say, and Cov(x_t, x_{t-1} | y).
    Source:  Bryson & Frazier 1963, Proc. Optimum System Synthesis Conf., 353; de Jong 1989, JASA 84:1085; equal to
             Rauch, Tung & Striebel 1965, AIAA J. 3:1445.
    """
    CA = m["C"][observed] @ m["A"]
    F = m["A"] - now.K @ CA
    by = torch.linalg.solve(now.S, CA)
    score = by.T @ now.innovation + F.T @ later.score
    information = CA.T @ by + F.T @ later.information @ F
    P = now.moments.covariance
    lag_one = (F - P @ later.information @ F) @ before.covariance
    return Told(score, (information + information.T) / 2), lag_one


def filter_rows(
    coefficients: Mapping[str, Tensor],
    y: Tensor,
    observed: Tensor,
    masks: Masks,
    prior: list[Moments],
    first: list[Moments],
) -> tuple[list[list[Update | None]], list[Moments]]:
    """:func:`filter_step` for each row and step; None where a step is padding.

    coefficients: each (batch, length, ...), without axes of 1; prior: x_0 of each row's documents, first: x before
    its first step, which is the prior or a state
    """
    updates: list[list[Update | None]] = []
    finals = []
    for row in range(len(y)):
        now = first[row]
        own: list[Update | None] = []
        for t in range(y.shape[1]):
            if masks.valid is not None and not masks.valid[row, t]:
                own.append(None)
                continue
            if masks.starts is not None and masks.starts[row, t]:
                now = prior[row]
            m = {name: value[row, t] for name, value in coefficients.items()}
            try:
                update = filter_step(now, m, y[row, t], observed[row, t])
            except torch.linalg.LinAlgError as error:
                raise InputError(message(row, t)) from error
            now = update.moments
            own.append(update)
        updates.append(own)
        finals.append(now)
    return updates, finals


def smooth_row(
    coefficients: Mapping[str, Tensor], observed: Tensor, masks: Masks, first: Moments, updates: list, row: int
) -> tuple[list[Moments | None], list[Tensor | None], Moments]:
    """:func:`smoother_step` from the end of a row to its beginning: moments, lag-one covariances, and x_0."""
    length = len(updates)
    smoothed: list[Moments | None] = [None] * length
    lags: list[Tensor | None] = [None] * length
    nothing = Told(torch.zeros_like(first.mean), torch.zeros_like(first.covariance))
    later = nothing
    for t in reversed(range(length)):
        if updates[t] is None:
            continue
        smoothed[t] = told(updates[t].moments, later)
        if masks.starts is not None and masks.starts[row, t]:
            later, lags[t] = nothing, nothing.information
            continue
        before = updates[t - 1].moments if t else first
        m = {name: value[row, t] for name, value in coefficients.items()}
        later, lags[t] = smoother_step(before, updates[t], later, m, observed[row, t])
    return smoothed, lags, told(first, later)


# -- the definitions behind the call of a model ------------------------------------------------------------------------


def filter(call: Call) -> tuple[Posterior, GaussianState | None]:
    """:func:`filter_rows` in and out of the types that the other forms have."""
    coefficients, y, observed = _opened(call)
    batch, length, p = y.shape
    first, prior = _moments(call.begin, batch), _moments(call.prior, batch)
    updates, finals = filter_rows(coefficients, y, observed, call.masks, prior, first)
    n = call.model.n_states
    mean, covariance = y.new_zeros(batch, length, n), y.new_zeros(batch, length, n, n)
    innovation, S = torch.zeros_like(y), torch.eye(p).to(y).repeat(batch, length, 1, 1)
    densities = y.new_zeros(batch, length)
    for row, t, update in _real(updates):
        o = observed[row, t].nonzero().flatten()
        here = torch.tensor([row]).to(o), torch.tensor([t]).to(o)
        mean = mean.index_put(here, update.moments.mean[None])
        covariance = covariance.index_put(here, update.moments.covariance[None])
        innovation = innovation.index_put((*here, o), update.innovation)
        S = S.index_put((*here, o[:, None], o), update.S)
        densities = densities.index_put(here, update.log_density[None])
    results = (mean, factor(covariance), densities, innovation, factor(S))
    mean, L, densities, innovation, S = (m.to(call.dtype) for m in results)
    posterior = Posterior(mean, L, densities, innovation, S, call.n_observed)
    final_mean = torch.stack([m.mean for m in finals]) if finals else y.new_zeros(0, n)
    final = torch.stack([m.covariance for m in finals]) if finals else y.new_zeros(0, n, n)
    return posterior, call.final(GaussianState(final_mean, factor(final)))


def smooth(call: Call) -> Smoothed:
    """:func:`smooth_row` of each row."""
    coefficients, y, observed = _opened(call)
    batch, length, _ = y.shape
    first, prior = _moments(call.begin, batch), _moments(call.prior, batch)
    updates, _ = filter_rows(coefficients, y, observed, call.masks, prior, first)
    n = call.model.n_states
    nothing = Moments(y.new_zeros(n), y.new_zeros(n, n))
    means, covariances, lag_one, initial = [], [], [], []
    for row in range(batch):
        moments, lags, x_0 = smooth_row(coefficients, observed, call.masks, first[row], updates[row], row)
        own = [m or nothing for m in moments]
        means += [m.mean for m in own]
        covariances += [m.covariance for m in own]
        lag_one += [nothing.covariance if m is None else m for m in lags]
        initial.append(x_0)
    empty = y.new_zeros(0)
    shaped = [torch.stack(m) if m else empty for m in (means, covariances, lag_one)]
    mean, covariance, lag = (m.reshape(batch, length, *shape) for m, shape in zip(shaped, ((n,), (n, n), (n, n))))
    m_0 = torch.stack([m.mean for m in initial]) if initial else y.new_zeros(0, n)
    P_0 = torch.stack([m.covariance for m in initial]) if initial else y.new_zeros(0, n, n)
    likelihood = y.new_zeros(batch)
    for row, _, update in _real(updates):
        likelihood = likelihood.index_add(0, torch.tensor([row]).to(y.device), update.log_density[None])
    results = (mean, factor(covariance), lag, m_0, factor(P_0), likelihood)
    return Smoothed(*(m.to(call.dtype) for m in results))


def _opened(call: Call) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Every coefficient for every row and step, y, and what was observed of it."""
    model, (batch, length, p) = call.model, call.y.shape
    given = {key: (getattr(model, key), 2) for key in ("A", "Q", "C", "R")}
    S = model.A.new_zeros(model.n_states, p) if model.S is None else model.S
    c, d = call.offsets
    every = {**given, "S": (S, 2), "c": (c, 1), "d": (d, 1)}
    coefficients = {
        key: with_axes(m, own).double().expand(batch, length, *m.shape[m.ndim - own :])
        for key, (m, own) in every.items()
    }
    observed = call.observed
    if observed is None:
        observed = torch.ones(call.y.shape, dtype=torch.bool, device=call.y.device)
    if any(m is not None and stacked(m) for m in (observed, call.masks.lengths, call.masks.starts)):
        raise InputError(
            "form 'recurrent' depends on what each row observed, which torch.func.vmap does not allow; use "
            "form='square_root'"
        )
    return coefficients, call.y.double(), observed


def _moments(state: GaussianState, batch: int) -> list[Moments]:
    mean = state.mean.double().expand(batch, -1)
    L = state.factor.double().expand(batch, -1, -1)
    return [Moments(m, P) for m, P in zip(mean, L @ L.mT)]


def _real(updates: list[list[Update | None]]) -> Iterator[tuple[int, int, Update]]:
    for row, own in enumerate(updates):
        for t, update in enumerate(own):
            if update is not None:
                yield row, t, update
