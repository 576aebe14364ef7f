"""Smoothing and forecasts: states given all observations, given a few later ones, and given only earlier ones."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import Any, NamedTuple

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.call import Call, is_finite
from statewise.estimation.elements import Element, Information, elements, given, onward, pull_back, scan_back
from statewise.estimation.factors import lower, positive, times
from statewise.estimation.gaussian import Forecast, Gaussians, GaussianState, Posterior, Smoothed
from statewise.estimation.square_root import square_root
from statewise.estimation.steps import choose
from statewise.operators.masks import mask_time
from statewise.operators.state_shape import COUNT, check_state, leaf


class Later(NamedTuple):
    """What the steps after each one tell about its state, (batch, length, ...), and about x_0, (batch, ...)."""

    of: Information
    initial: Information


def later_information(element: Element, *, scanned: bool) -> Later:
    """Pulled back step by step, or by one scan."""
    batch, length, n = element.b.shape
    none = Information(element.eta.new_zeros(batch, 1, n), element.Z.new_zeros(len(element.Z), 1, n, n))
    if scanned and length:
        whole = scan_back(element)
        of = Information(torch.cat([whole.eta[:, 1:], none.eta], 1), torch.cat([whole.Z[:, 1:], none.Z], 1))
        return Later(of, Information(whole.eta[:, 0], whole.Z[:, 0]))
    now = Information(none.eta[:, 0], none.Z[:, 0])
    pulled = []
    for step in reversed(list(zip(*[m.unbind(1) for m in element]))):
        pulled.append(now)
        now = pull_back(Element(*step), now)
    pulled.reverse()
    if not pulled:
        return Later(Information(none.eta[:, :0], none.Z[:, :0]), now)
    return Later(Information(*[torch.stack(part, 1) for part in zip(*pulled)]), now)


def deviations(call: Call, posterior: Posterior) -> Element:
    """The elements of a call's steps, for deviations from what the filter found."""
    after = posterior.mean.to(call.work_dtype)
    begin = call.begin.mean.expand(len(after), -1).unsqueeze(1)
    before = torch.cat([begin, after[:, :-1]], 1)[:, : after.shape[1]]
    return elements(call.steps, posterior.innovation.to(call.work_dtype), before, after)


def smooth(call: Call, posterior: Posterior, *, scanned: bool) -> Smoothed:
    """The filter's estimate of each step, given what the steps after it tell.

    The backward pass carries a square root of an information matrix. So it divides by nothing that may be singular: not
    by the covariance of the forecast, as Rauch, Tung and Striebel's does, which a model with fewer noises than
    states need not have; and covariances are products of square roots. It is their smoother in exact arithmetic.

    Cost:    two QR decompositions a step on the way back; ``scanned``, about ten times the work in O(log length)
             operations.
    Source:  Fraser & Potter 1969, IEEE Trans. Automat. Contr. 14:387 (two filters); Särkkä & García-Fernández 2021,
             lemma 8; equal to Rauch, Tung & Striebel 1965, AIAA J. 3:1445.
    """
    batch, length, _ = call.y.shape
    element = deviations(call, posterior)
    later = later_information(element, scanned=scanned)
    smoothed, initial = given(posterior.factor.to(call.work_dtype), later.of), given(call.begin.factor, later.initial)
    F, _, _ = onward(element, later.of)
    first = initial.factor.expand(batch, *initial.factor.shape[1:])
    before = torch.cat([first.unsqueeze(1), smoothed.factor[:, :-1]], 1)[:, :length]
    lag_one = F @ (before @ before.mT)
    valid, n = call.masks.valid, call.model.n_states
    results = (posterior.mean + smoothed.mean, positive(smoothed.factor), lag_one.expand(batch, length, n, n))
    steps = (mask_time(m, valid).to(call.dtype) for m in results)
    x_0 = call.begin.mean + initial.mean.expand(batch, n), positive(first)
    return Smoothed(*(*steps, *(m.to(call.dtype) for m in x_0), posterior.log_likelihood))


def forecast(call: Call) -> Forecast:
    """A filter over steps of which nothing is observed, and what they would be observed as."""
    filtered, _ = call.filtered(square_root)
    batch, length, p = call.y.shape
    begin = GaussianState(*[m.expand(batch, *m.shape[1:]).unsqueeze(1) for m in call.begin])
    mean = torch.cat([begin.mean, filtered.mean], 1)[:, :length]
    L = torch.cat([begin.factor, filtered.factor], 1)[:, :length]
    steps = call.steps
    array = torch.cat([steps.G[..., :p, :] @ L, steps.N[..., :p, :].expand(batch, length, -1, -1)], -1)
    expected = times(steps.G[..., :p, :], mean) + steps.offset[..., :p]
    states = Gaussians(filtered.mean.to(call.dtype), filtered.factor.to(call.dtype))
    return Forecast(states, Gaussians(expected.to(call.dtype), positive(lower(array)).to(call.dtype)))


# -- with a fixed lag, for streams -------------------------------------------------------------------------------------


class LagState(NamedTuple):
    """The filter's state, and its results and elements of the last ``lag`` steps; steps: (batch,), how many there were.

    mean, b, eta: (batch, lag, n)   factor, A, U, Z: (batch, lag, n, n)
    """

    filtered: GaussianState
    mean: Tensor
    factor: Tensor
    A: Tensor
    b: Tensor
    U: Tensor
    eta: Tensor
    Z: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class Lagged(Gaussians):
    """At each t, x_{t - lag} given y_1 ... y_t; valid: (batch, length) bool, whether there was such a step."""

    valid: Tensor


def check_lag(lag: Any) -> None:
    if not isinstance(lag, Integral) or isinstance(lag, bool) or lag < 1:
        raise InputError(f"lag must be a number of steps of at least 1, got {lag!r}; without a lag use filter")


def check_lag_state(name: str, state: Any, n: int, lag: int, y: Tensor) -> None:
    if state is not None:
        check_state(name, state, _lag_shape(n, lag), len(y), y.device)
        if not is_finite(*state[1:8]):
            raise InputError(f"{name}: the state holds NaN or infinity; begin with initial_lag_state(batch, lag)")


def _lag_shape(n: int, lag: int) -> LagState:
    vector, matrix = leaf(lag, n), leaf(lag, n, n)
    return LagState(GaussianState(leaf(n), leaf(n, n)), vector, matrix, matrix, vector, matrix, vector, matrix, COUNT)


def initial_lag_state(filtered: GaussianState, lag: int) -> LagState:
    batch, n = filtered.mean.shape
    vector, matrix = filtered.mean.new_zeros(batch, lag, n), filtered.mean.new_zeros(batch, lag, n, n)
    steps = torch.zeros(batch, dtype=torch.int64, device=vector.device)
    return LagState(filtered, vector, matrix, matrix, vector, matrix, vector, matrix, steps)


def smooth_lagged(
    call: Call, posterior: Posterior, final: GaussianState | None, state: LagState | None, lag: int
) -> tuple[Lagged, LagState | None]:
    """The information of ``lag`` steps, pulled back for all steps at once.

    Cost:    O(lag) operations, each on the whole sequence.
    """
    batch, length, n = posterior.mean.shape
    work = call.work_dtype
    element = deviations(call, posterior)
    if call.fresh is not None and length:  # nothing passes to the document before, which is in the state
        forget = torch.cat([call.fresh[:, None], torch.zeros_like(call.fresh[:, None]).expand(-1, length - 1)], 1)
        element = Element(*[m if k in (1, 2) else choose(~forget, m, m.new_zeros(())) for k, m in enumerate(element)])
    past = initial_lag_state(
        GaussianState(posterior.mean.new_zeros(batch, n), posterior.factor.new_zeros(batch, n, n)), lag
    )
    past = past if state is None else state
    now = [m.to(work).expand(batch, *m.shape[1:]) for m in (posterior.mean, posterior.factor, *element)]
    window = [torch.cat([old.to(work), new], 1) for old, new in zip(past[1:8], now)]
    steps = Element(*window[2:])
    later = Information(now[0].new_zeros(batch, length, n), now[0].new_zeros(batch, length, n, n))
    for j in range(lag, 0, -1):
        later = pull_back(Element(*[m[:, j : j + length] for m in steps]), later)
    smoothed = given(window[1][:, :length], later)
    time = torch.arange(length, device=call.y.device)
    valid = past.steps[:, None] + time >= lag
    if call.masks.valid is not None:
        valid = valid & call.masks.valid
    mean, L = (
        mask_time(m, valid).to(call.dtype) for m in (window[0][:, :length] + smoothed.mean, positive(smoothed.factor))
    )
    lagged, following = Lagged(mean, L, valid), None
    if final is not None:
        ends = torch.full((batch,), length, device=time.device) if call.masks.lengths is None else call.masks.lengths
        kept = ends[:, None] + torch.arange(lag, device=time.device)
        row = torch.arange(batch, device=time.device)[:, None]
        mean, L, A, b, U, eta, Z = (m[row, kept].to(call.dtype) for m in window)
        following = LagState(final, mean, L, A, b, U, eta, Z, past.steps + ends)
    return lagged, following
