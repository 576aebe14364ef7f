"""What linear and nonlinear models share: the state before the first step, and the entrances of their calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.call import (
    Call,
    check_call,
    check_forecast,
    check_generator,
    check_length,
    check_room,
    open_call,
    prior_state,
)
from statewise.estimation.coefficients import check_axes, check_covariance, check_shape
from statewise.estimation.gaussian import Forecast, GaussianState, Posterior, Smoothed
from statewise.operators.base import check_batch
from statewise.operators.plan import Plan
from statewise.operators.state_shape import leaf
from statewise.precision import full_precision


class GaussianModel(ABC):
    """A frozen dataclass that has ``mean`` and ``covariance``, of x_0, and writes how one opened call is answered."""

    forms: ClassVar[tuple[str, ...]]

    @property
    @abstractmethod
    def mean(self) -> Tensor | None: ...

    @property
    @abstractmethod
    def covariance(self) -> Tensor | None: ...

    @property
    @abstractmethod
    def n_states(self) -> int: ...

    @property
    @abstractmethod
    def n_observations(self) -> int: ...

    @property
    @abstractmethod
    def n_inputs(self) -> int | None:
        """The width of u; 0 where there is none, None where any will do."""

    @abstractmethod
    def _like(self) -> Tensor:
        """A coefficient, for dtype and device."""

    @abstractmethod
    def _varying(self) -> dict[str, tuple[Tensor, int]]:
        """The coefficients that may have the axes (batch, length), and how many axes are their own."""

    @abstractmethod
    def _plan(self, y: Tensor) -> Plan: ...

    @abstractmethod
    def _filter(self, call: Call, form: str) -> tuple[Posterior, GaussianState | None]: ...

    @abstractmethod
    def _smooth(self, call: Call, form: str | None) -> Smoothed:
        """By this form, or the best one."""

    @abstractmethod
    def _forecast(self, call: Call) -> Forecast:
        """The forecast of a call that observes nothing."""

    def __getitem__(self, times: slice) -> Self:
        """The model over those times, if it varies: ``model[:t]`` and then ``model[t:]`` filter as the whole does."""
        ends = (times.start, times.stop) if isinstance(times, slice) else ()
        if not ends or times.step not in (None, 1) or not all(m is None or isinstance(m, Integral) for m in ends):
            raise InputError(f"a model is sliced in time by model[t0:t1], got {times!r}")
        varying = {key: m for key, (m, own) in self._varying().items() if m.ndim == own + 2 and m.shape[1] != 1}
        return replace(self, **{key: m[:, times] for key, m in varying.items()})  # type: ignore[type-var]

    # -- the calls ---------------------------------------------------------------------------------------------------

    def filter(
        self,
        y: Tensor,
        state: GaussianState | None = None,
        *,
        u: Tensor | None = None,
        observed: Tensor | None = None,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        form: str | None = None,
    ) -> tuple[Posterior, GaussianState | None]:
        """x_t given y_1 ... y_t for every t and, if a state was given, x after the last real step of each row.

        Shapes:  y: (batch, length, p); NaN is a missing number, and so is one where ``observed`` (batch, length, p),
                 bool, is False. A step may have no number at all.
                 u: (batch, length, m) where the model has inputs
                 lengths: (batch,), rows are right-padded and end there; starts: (batch, length) bool, a packed
                 document begins at x_0, and nothing passes
        form:    one of ``forms``; else the rules choose, and ``statewise.explain(model, y)`` says which and why
        Errors:  InputError for y of another width, infinite, complex or of integers, a state of another model,
                 and where the form cannot run.
        """
        call = open_call(self, y, state, u, observed, lengths, starts)
        return self._filter(call, self._form(call, form))

    def smooth(
        self,
        y: Tensor,
        state: GaussianState | None = None,
        *,
        u: Tensor | None = None,
        observed: Tensor | None = None,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        form: str | None = None,
    ) -> Smoothed:
        """x_t given all of y, with Cov(x_t, x_{t-1}); arguments as :meth:`filter`. ``parallel`` scans back as well.

        Source:  :func:`statewise.estimation.smoothing.smooth`; for nonlinear models Särkkä 2013, ch. 9 and 10.
        """
        call = open_call(self, y, state, u, observed, lengths, starts)
        return self._smooth(call, None if form is None else self._form(call, form))

    def forecast(self, state: GaussianState, length: int, *, u: Tensor | None = None) -> Forecast:
        """What follows a state for ``length`` steps: states and observations, each with ``interval(level)``.

        Shapes:  u: (batch, length, m), the inputs of the future, where the model has any
        """
        name = f"{type(self).__name__}.forecast"
        check_forecast(name, state, length)
        n, p, batch = self.n_states, self.n_observations, len(state.mean)
        check_room(name, batch * length * (n * n + n + p * p + p), self._like())
        return self._forecast(self._blank(batch, length, state, u))

    def _form(self, call: Call, form: str | None) -> str:
        if form is None:
            return self._plan(call.y).form
        if form not in self.forms:
            raise InputError(f"{type(self).__name__} has no form {form!r}; its forms are {', '.join(self.forms)}")
        return form

    def _blank(self, batch: int, length: int, state: GaussianState | None, u: Tensor | None) -> Call:
        """A call for steps of which nothing is observed."""
        y = self._like().new_full((batch, length, self.n_observations), torch.nan)
        return open_call(self, y, state, u, None, None, None)

    def _drawn(self, batch: int, length: int, u: Tensor | None, generator: Any) -> Call:
        """The call for a simulation."""
        name, each = f"{type(self).__name__}.simulate", 2 * (self.n_states + self.n_observations)
        check_batch(batch)
        check_length(name, length)
        check_generator(name, generator)
        check_room(name, batch * length * each, self._like())
        return self._blank(batch, length, None, u)

    def check(self, y: Any, state: Any = None) -> None:
        """Errors:  InputError unless y, and the state, are such as :meth:`filter` takes."""
        check_call(self, y, state)
        check_axes(type(self).__name__, self._varying(), *y.shape[:2])

    def _why(self, chosen: Plan, y: Tensor, state: Any) -> str:
        return chosen.reason

    # -- the state before the first step -----------------------------------------------------------------------------

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> GaussianState:
        """x_0, from which a sequence begins where no state is given. float32 or wider."""
        check_batch(batch)
        if dtype is not None and not dtype.is_floating_point:
            raise InputError(f"a state needs a floating-point dtype, got {dtype}; leave it out to use the model's")
        n, prior = self.n_states, self._prior(full_precision(self._like().dtype if dtype is None else dtype))
        if len(prior.mean) not in (1, batch) or len(prior.factor) not in (1, batch):
            rows = max(len(prior.mean), len(prior.factor))
            raise InputError(f"this model has a prior for each of {rows} rows; initial_state({batch}) needs one")
        state = GaussianState(prior.mean.expand(batch, n), prior.factor.expand(batch, n, n))
        return GaussianState(*[m.to(self._like().device if device is None else device) for m in state])

    def state_shape(self) -> GaussianState:
        n = self.n_states
        return GaussianState(leaf(n), leaf(n, n))

    def _complete(self) -> None:
        """The default of the prior, and its shapes, and whether Q, R and covariance are covariances."""
        name, n, like = type(self).__name__, self.n_states, self._like()
        if self.mean is None:
            object.__setattr__(self, "mean", like.new_zeros(n))
        if self.covariance is None:
            object.__setattr__(self, "covariance", torch.eye(n, dtype=like.dtype, device=like.device))
        check_shape(name, "mean", self._mean, (n,), varies=False)
        check_shape(name, "covariance", self._covariance, (n, n), varies=False)
        for key in ("Q", "R", "covariance"):
            check_covariance(name, key, getattr(self, key))

    @property
    def _mean(self) -> Tensor:
        assert self.mean is not None
        return self.mean

    @property
    def _covariance(self) -> Tensor:
        assert self.covariance is not None
        return self.covariance

    def _prior(self, dtype: torch.dtype) -> GaussianState:
        """x_0 with an axis for the batch, 1 where all rows share it."""
        return prior_state(self._mean, self._covariance, dtype)
