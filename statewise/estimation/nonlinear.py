"""Models whose functions are not linear: extended, iterated, unscented and cubature filters, and their smoothers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.base import GaussianModel
from statewise.estimation.call import Call, is_finite, positive_state
from statewise.estimation.coefficients import check_shape, check_tensors, with_axes
from statewise.estimation.factors import factor, lower, positive, solve, times, values
from statewise.estimation.gaussian import Forecast, Gaussians, GaussianState, Posterior, Smoothed
from statewise.estimation.singular import refuse_unmoved, rounding_of
from statewise.estimation.steps import Filtered, choose, masked, unbound
from statewise.estimation.transforms import (
    METHODS,
    Extended,
    Residual,
    Rows,
    Transformed,
    Unscented,
    checked,
    difference,
)
from statewise.operators.masks import mask_time
from statewise.operators.plan import Plan


@dataclass(frozen=True, eq=False)
class NonlinearGaussian(GaussianModel):
    """x_t = f(x_{t-1}) + w_t,  y_t = h(x_t) + v_t,  w ~ N(0, Q), v ~ N(0, R); with inputs f(x, u_t) and h(x, u_t).

    f and h are written in PyTorch for one state: f takes (n,) and returns (n,), h returns (p,); ``torch.func.vmap``
    runs them on all rows, ``torch.func.jacrev`` differentiates them. Whatever changes with time has to be part of u.
    Calls, states, missing numbers, ``lengths`` and ``starts`` are :class:`~statewise.estimation.LinearGaussian`'s;
    covariances are square roots here too.

    method:     ``extended``, ``iterated``, ``unscented``, ``cubature``, or one with parameters, such as
                ``Unscented(alpha=0.5)``. All are approximations; on linear functions all are Kalman's filter.
    residual_x, residual_y: the difference a - b of two states and of two observations, (..., n) and (..., p), if some
                are angles: use ``angles(0)`` if the first number is one.
    Shapes:     Q: (n, n), R: (p, p), each may have (batch, length) before it; mean (n,) or (batch, n), default 0;
                covariance (n, n) or (batch, n, n), default the identity: of x_0, the state before the first step
    Cost:       two Jacobians a step, or 4 n + 2 evaluations, for all rows at once, and two QR decompositions.
    Errors:     InputError for matrices that are not covariances, an f or h that returns another shape, wrong
                parameters, and for a number that is observed without noise and already determined by the steps before.
    Source:     Särkkä 2013, Bayesian Filtering and Smoothing, ch. 5 and 6 (filters), 9 and 10 (smoothers).
    """

    f: Callable[..., Tensor]
    Q: Tensor
    h: Callable[..., Tensor]
    R: Tensor
    _: KW_ONLY
    mean: Tensor | None = None
    covariance: Tensor | None = None
    method: str | Extended | Unscented = "extended"
    residual_x: Residual = difference
    residual_y: Residual = difference

    forms: ClassVar[tuple[str, ...]] = ("square_root",)

    def __post_init__(self) -> None:
        name = type(self).__name__
        for key in ("f", "h", "residual_x", "residual_y"):
            if not callable(getattr(self, key)):
                raise InputError(f"{name} needs {key} as a function, got {type(getattr(self, key)).__name__}")
        more = {"mean": self.mean, "covariance": self.covariance}
        given = {"Q": self.Q, "R": self.R} | {key: value for key, value in more.items() if value is not None}
        check_tensors(name, given)
        if self.Q.ndim < 2 or self.R.ndim < 2 or not self.Q.shape[-1] or not self.R.shape[-1]:
            raise InputError(f"{name} needs Q (n, n) and R (p, p), got {tuple(self.Q.shape)}, {tuple(self.R.shape)}")
        check_shape(name, "Q", self.Q, (self.n_states, self.n_states))
        check_shape(name, "R", self.R, (self.n_observations, self.n_observations))
        self._complete()
        if isinstance(self.method, str) and self.method not in METHODS:
            raise InputError(f"{name} has no method {self.method!r}; its methods are {', '.join(METHODS)}")
        if not isinstance(self.method, (str, Extended, Unscented)):
            raise InputError(f"{name} needs method as a name or one of its classes, got {type(self.method).__name__}")
        self._method.check(self.n_states)

    @property
    def n_states(self) -> int:
        return int(self.Q.shape[-1])

    @property
    def n_observations(self) -> int:
        return int(self.R.shape[-1])

    @property
    def n_inputs(self) -> None:
        return None

    def simulate(
        self, batch: int, length: int, *, u: Tensor | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """States and observations drawn from the model: x (batch, length, n), y (batch, length, p)."""
        call = self._drawn(batch, length, u, generator)
        normal = partial(torch.randn, dtype=call.work_dtype, device=call.y.device, generator=generator)
        x = call.prior.mean + times(call.prior.factor, normal(batch, self.n_states))
        w = times(_factors(self.Q, call), normal(batch, length, self.n_states))
        v = times(_factors(self.R, call), normal(batch, length, self.n_observations))
        both = []
        for u_t, w_t, v_t in zip(unbound(call.u, length), w.unbind(1), v.unbind(1)):
            x = self._f(x, u_t) + w_t
            both.append((x, self._h(x, u_t) + v_t))
        if not both:
            return w, v
        states, seen = (torch.stack(part, 1) for part in zip(*both))
        for name, found in (("f", states), ("h", seen)):
            if not is_finite(found):
                _refuse(name, int(values(found).isfinite().all(-1).all(0).int().argmin()))
        return states.to(call.dtype), seen.to(call.dtype)

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def _method(self) -> Extended | Unscented:
        return METHODS[self.method] if isinstance(self.method, str) else self.method

    @property
    def _f(self) -> Rows:
        return Rows("f", self.f, self.n_states)

    @property
    def _h(self) -> Rows:
        return Rows("h", self.h, self.n_observations)

    @property
    def _residual_x(self) -> Residual:
        return checked("residual_x", self.residual_x)

    @property
    def _residual_y(self) -> Residual:
        return checked("residual_y", self.residual_y)

    def _through(self, g: Rows, mean: Tensor, L: Tensor, u: Tensor | None, residual: Residual) -> Transformed:
        return self._method.transform(g, mean, L, u, residual)

    def _filter(self, call: Call, form: str) -> tuple[Posterior, GaussianState | None]:
        """The innovations are those of the forecast, also where h is linearised several times."""
        filtered = self._run(call)
        return call.posterior(filtered), call.final(filtered.final)

    def _forecast(self, call: Call) -> Forecast:
        filtered, shape = self._run(call), call.y.shape
        mean, L = filtered.mean.flatten(0, 1), filtered.factor.flatten(0, 1)
        seen = self._through(self._h, mean, L, None if call.u is None else call.u.flatten(0, 1), self._residual_y)
        R = _factors(self.R, call).expand(*shape[:2], -1, -1).flatten(0, 1)
        S = positive(lower(torch.cat([seen.M, R], -1)))
        if not is_finite(seen.mean, S):
            _refuse("h", int(values(seen.mean.reshape(shape)).isfinite().all(-1).all(0).int().argmin()))
        observations = Gaussians(seen.mean.reshape(shape), S.reshape(*shape, -1))
        return Forecast(Gaussians(filtered.mean, filtered.factor), observations)

    def _run(self, call: Call, *, watched: bool = False) -> Filtered:
        """watched: every step is looked at, for the one where a number is not finite any more."""
        batch, length, p = call.y.shape
        n, masks, prior = self.n_states, call.masks, call.prior
        mean, L = (m.expand(batch, *m.shape[1:]) for m in call.begin)
        coefficients = [unbound(_factors(m, call), length) for m in (self.Q, self.R)]
        per_step = [unbound(m, length) for m in (call.y, call.u, call.observed, masks.valid, masks.starts)]
        rows = []
        for t, (Q, R, y, u, observed, valid, start) in enumerate(zip(*coefficients, *per_step)):
            if start is not None:
                mean, L = choose(start, prior.mean, mean), choose(start, prior.factor, L)
            ahead = self._through(self._f, mean, L, u, self._residual_x)
            x, P = ahead.mean, lower(torch.cat([ahead.M, Q.expand(batch, n, n)], -1))
            now = self._update(x, P, R.expand(batch, p, p), y, u, observed)
            if valid is not None:
                now = (choose(valid, now[0], mean), choose(valid, now[1], L), *now[2:])
            if watched and not is_finite(*now):
                _refuse("h" if is_finite(ahead.mean, ahead.M) else "f", t)
            mean, L = now[:2]
            rows.append(now)
        final = positive_state(GaussianState(mean, L))
        if not rows:
            zero = call.y.new_zeros
            return Filtered(zero(batch, 0, n), zero(batch, 0, n, n), call.y, zero(batch, 0, p, p), final)
        means, factors, innovation, S = (torch.stack(part, 1) for part in zip(*rows))
        self._refuse_singular(call, innovation, S)
        if not is_finite(means, factors, innovation, S):
            assert not watched
            return self._run(call, watched=True)
        return Filtered(means, positive(factors), innovation, positive(S), final)

    def _refuse_singular(self, call: Call, innovation: Tensor, S: Tensor) -> None:
        """Where neither R nor Q moves a number that is seen. Images of points round as they are large."""
        R = values(_factors(self.R, call)).diagonal(dim1=-2, dim2=-1)
        if bool((R > 0).all()):
            return
        method, most = self._method, 0.01 * torch.finfo(S.dtype).eps ** -0.5  # in float32 that may be all there is
        far = min(method.alpha**-2, most) if isinstance(method, Unscented) else 0.0
        S, forecast = S.detach(), (call.y - innovation.detach()).abs()
        finite = S.isfinite().all(-1).all(-1)  # what is not finite is told of where it comes from
        S = torch.where(finite[..., None, None], S, torch.eye(S.shape[-1], dtype=S.dtype, device=S.device))
        more = torch.where(forecast.isfinite(), far * forecast, 0)
        refuse_unmoved(S, call.observed, rounding_of(self, S.dtype), more)

    def _update(
        self, x: Tensor, P: Tensor, R: Tensor, y: Tensor, u: Tensor | None, observed: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """mean, factor, innovation, its factor."""
        n, p = self.n_states, self.n_observations
        method, mean = self._method, x
        first: tuple[Tensor, Tensor] | None = None
        away: Tensor | None = None
        for _ in range(method.n_iterations if isinstance(method, Extended) else 1):
            seen = method.transform(self._h, mean, P, u, self._residual_y)
            X = seen.X
            top = torch.cat([seen.M, R], -1)
            array = torch.cat([top, torch.cat([X, X.new_zeros(len(X), n, p)], -1)], -2)
            joint = lower(masked(array, observed), p)
            S, K, L = joint[:, :p, :p], joint[:, p:, :p], joint[:, p:, p:]
            innovation = self._residual_y(y, seen.mean)
            if away is not None:  # linearised at mean = x + P away
                innovation = innovation + times(seen.M, away)
            M = seen.M
            if observed is not None:
                innovation, M = innovation.masked_fill(~observed, 0), M.masked_fill(~observed.unsqueeze(-1), 0)
            first = first or (innovation, S)
            e = solve(S, innovation)
            mean = x + times(K, e)
            away = times(M.mT, torch.linalg.solve_triangular(S.mT, e.unsqueeze(-1), upper=True).squeeze(-1))
        assert first is not None
        return mean, L, *first

    def _smooth(self, call: Call, form: str | None) -> Smoothed:
        """The method's smoother of Rauch, Tung and Striebel, in square roots. Source: Särkkä 2013, ch. 9 and 10."""
        filtered = self._run(call)
        batch, length, _ = call.y.shape
        n, masks = self.n_states, call.masks
        begin = [m.expand(batch, *m.shape[1:]).unsqueeze(1) for m in call.begin]
        mean = torch.cat([begin[0], filtered.mean], 1)  # from x_0 on
        L = torch.cat([begin[1], filtered.factor], 1)
        u = None if call.u is None else call.u.flatten(0, 1)
        ahead = self._through(self._f, mean[:, :-1].flatten(0, 1), L[:, :-1].flatten(0, 1), u, self._residual_x)
        Q = _factors(self.Q, call).expand(batch, length, n, n).flatten(0, 1)
        below = torch.cat([ahead.X, torch.zeros_like(Q)], -1)
        joint = lower(torch.cat([torch.cat([ahead.M, Q], -1), below], -2)).reshape(batch, length, 2 * n, 2 * n)
        passes = [m for m in (masks.valid, None if masks.starts is None else ~masks.starts) if m is not None]
        for here in passes:  # where nothing passes, f may be anything
            joint = choose(here, joint, torch.eye(2 * n, dtype=joint.dtype, device=joint.device))
        gain, rest = joint[..., n:, :n] @ _inverse(joint[..., :n, :n]), joint[..., n:, n:]
        expected = ahead.mean.reshape(batch, length, n)
        for here in passes:  # nothing comes back from padding, nor from another document
            gain, rest = choose(here, gain, gain.new_zeros(())), choose(here, rest, L[:, :-1])
            expected = choose(here, expected, mean[:, :-1])
        x, P = mean[:, -1], L[:, -1]
        smoothed = [(x, P)]
        for t in reversed(range(length)):
            x = mean[:, t] + times(gain[:, t], self._residual_x(x, expected[:, t]))
            P = lower(torch.cat([gain[:, t] @ P, rest[:, t]], -1))
            smoothed.append((x, P))
        x, P = (torch.stack(part[::-1], 1) for part in zip(*smoothed))
        lag_one = P[:, 1:] @ P[:, 1:].mT @ gain.mT
        steps = (mask_time(m, masks.valid).to(call.dtype) for m in (x[:, 1:], positive(P[:, 1:]), lag_one))
        likelihood = call.posterior(filtered).log_likelihood
        initial = x[:, 0].to(call.dtype), positive(P[:, 0]).to(call.dtype)
        return Smoothed(*(*steps, *initial, likelihood))

    def _plan(self, y: Tensor) -> Plan:
        return Plan("square_root", "the only form of a model with functions: step by step, for all rows at once")

    def _like(self) -> Tensor:
        return self.Q

    def _varying(self) -> dict[str, tuple[Tensor, int]]:
        return {"Q": (self.Q, 2), "R": (self.R, 2)}


def _refuse(name: str, t: int) -> NoReturn:
    raise InputError(
        f"{name}, or its derivative, is NaN or infinite at step {t}; it must be finite wherever the filter goes: use "
        "torch.where or clamp"
    )


def _factors(P: Tensor, call: Call) -> Tensor:
    return factor(with_axes(P, 2).double()).to(call.work_dtype)


def _inverse(L: Tensor) -> Tensor:
    """The inverse of triangular factors; the pseudo-inverse where one of them has none."""
    own = values(L).diagonal(dim1=-2, dim2=-1).abs()
    size = values(L).abs().amax(-1).clamp(min=torch.finfo(L.dtype).tiny)
    if bool((own > 64 * torch.finfo(L.dtype).eps * size).all()):
        one = torch.eye(L.shape[-1], dtype=L.dtype, device=L.device).expand(L.shape)
        return torch.linalg.solve_triangular(L, one, upper=False)
    return torch.linalg.pinv(L)
