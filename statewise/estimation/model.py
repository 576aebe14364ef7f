"""Linear-Gaussian state-space models: their coefficients, and the calls that filter, smooth, sample and forecast."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation import reference, smoothing
from statewise.estimation.base import GaussianModel
from statewise.estimation.call import Call, check_room, open_call
from statewise.estimation.coefficients import check_covariance, check_shape, check_tensors
from statewise.estimation.continuous import van_loan
from statewise.estimation.gaussian import Forecast, GaussianState, Posterior, Smoothed
from statewise.estimation.parallel import parallel
from statewise.estimation.sampling import sample_paths, simulate
from statewise.estimation.singular import exact_given_state, refuse_exact, refuse_singular
from statewise.estimation.smoothing import Lagged, LagState
from statewise.estimation.square_root import square_root
from statewise.estimation.steady import steady
from statewise.kernels.backend import c_would_run, refusal_of
from statewise.operators.base import check_batch
from statewise.operators.plan import Plan, Rule, otherwise, plan
from statewise.systems import ContinuousSystem

_AXES = {"A": "nn", "Q": "nn", "C": "pn", "R": "pp", "B": "nm", "b": "n", "D": "pm", "d": "p", "S": "np"}
_FILTERS = {"square_root": square_root, "parallel": parallel, "steady": steady}


@dataclass(frozen=True, eq=False)
class LinearGaussian(GaussianModel):
    """x_t = A x_{t-1} + B u_t + b + w_t,  y_t = C x_t + D u_t + d + v_t,  w ~ N(0, Q), v ~ N(0, R), Cov(w_t, v_t) = S.

    n states, p observations, m inputs. The first step begins from x_0 ~ N(mean, covariance), the state before it. So
    all steps are alike, wherever you cut a sequence. A coefficient may vary with time and between rows: it then has
    the axes (batch, length) before its own, either of which may be 1.

    Shapes:  A, Q: (n, n)   C: (p, n)   R: (p, p)   B: (n, m)   b: (n,)   D: (p, m)   d: (p,)   S: (n, p), each also
             with (batch, length) before; mean (n,) or (batch, n), default 0; covariance (n, n) or (batch, n, n),
             default the identity. float32 or float64, one for all.
    Forms:   ``recurrent``, the definition: covariances, float64, one row and one step after the other;
             ``square_root``, a triangular form a step for all rows, in C; ``parallel``, an associative scan;
             ``steady``, a constant gain as soon as it has settled, for time-invariant models with nothing missing.
             All but the first work with square roots, so no covariance is ever indefinite.
    Errors:  InputError for wrong shapes and dtypes, NaN, and a covariance that is not symmetric or not positive
             semi-definite; Q, S and R together must be positive semi-definite too.
    Source:  Kalman 1960, J. Basic Eng. 82:35; Särkkä 2013, Bayesian Filtering and Smoothing, ch. 4 (A, Q, H = C, R).

    >>> walk = LinearGaussian(torch.eye(1), torch.eye(1), torch.eye(1), torch.eye(1))
    >>> posterior, state = walk.filter(torch.ones(1, 3, 1), walk.initial_state(1))
    >>> posterior.mean[0, :, 0], posterior.log_likelihood
    (tensor([0.6667, 0.8750, 0.9524]), tensor([-4.4696]))
    """

    A: Tensor
    Q: Tensor
    C: Tensor
    R: Tensor
    _: KW_ONLY
    B: Tensor | None = None
    b: Tensor | None = None
    D: Tensor | None = None
    d: Tensor | None = None
    S: Tensor | None = None
    mean: Tensor | None = None
    covariance: Tensor | None = None

    forms: ClassVar[tuple[str, ...]] = ("recurrent", "square_root", "parallel", "steady")
    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("square_root", "the C kernel runs", lambda length, rows: True, "one pass in C, all rows at once"),
        Rule(
            "parallel",
            "length >= 64 and rows <= 8",
            lambda length, rows: length >= 64 and rows <= 8,
            "few rows: a scan over all steps at once, where a loop would mostly wait for Python",
        ),
        otherwise("square_root", "one QR decomposition a step for all rows"),
    )

    def __post_init__(self) -> None:
        name = type(self).__name__
        check_tensors(name, self._given())
        if self.A.ndim < 2 or self.C.ndim < 2 or not self.A.shape[-1] or not self.C.shape[-2]:
            raise InputError(
                f"{name} needs A (n, n) and C (p, n), n and p above 0, got {tuple(self.A.shape)}, {tuple(self.C.shape)}"
            )
        inputs = [z.shape[-1] for z in (self.B, self.D) if z is not None and z.ndim]
        sizes = {"n": self.n_states, "p": self.n_observations, "m": inputs[0] if inputs else 0}
        for key, axes in _AXES.items():
            if getattr(self, key) is not None:
                check_shape(name, key, getattr(self, key), tuple(sizes[axis] for axis in axes))
        self._complete()
        if self.S is not None:
            check_covariance(name, "[[Q, S], [S^T, R]]", self._joint())

    @classmethod
    def from_continuous(
        cls,
        system: ContinuousSystem,
        dt: Tensor | float,
        *,
        Q: Tensor,
        R: Tensor,
        b: Tensor | None = None,
        d: Tensor | None = None,
        mean: Tensor | None = None,
        covariance: Tensor | None = None,
        noise_of: str = "states",
    ) -> Self:
        """x'(t) = A x(t) + B u(t) + white noise of density Q, observed at times with noise of covariance R: exactly.

        u is constant over each step. A system with B expects u in every call. With ``noise_of="inputs"`` the noise
        enters through B and there is no other input: Q is (m, m).

        Shapes:  dt: a number, or the time that passed before each step, (length,) or (batch, length); 0 where two
                 observations share a time, and before the first step, if the prior is for the same time:
                 ``torch.diff(times, prepend=times[:1])``
                 Q: (n, n), variance per unit of time; R: (p, p), of one observation
        Errors:  InputError for a complex system, a dt below 0, wrong shapes.
        Source:  Van Loan 1978, IEEE Trans. Automat. Contr. 23:395; see
                 :func:`~statewise.estimation.continuous.van_loan`.
        """
        A, B, C, D, Q = van_loan(system, dt, Q, noise_of)
        return cls(A, Q, C, R, B=B, b=b, D=D, d=d, mean=mean, covariance=covariance)

    # -- sizes and slices ----------------------------------------------------------------------------------------------

    @property
    def n_states(self) -> int:
        return int(self.A.shape[-1])

    @property
    def n_observations(self) -> int:
        return int(self.C.shape[-2])

    @property
    def n_inputs(self) -> int:
        """The width of u; 0 if there is none."""
        given = [z.shape[-1] for z in (self.B, self.D) if z is not None]
        return int(given[0]) if given else 0

    # -- calls beside those that all models have -----------------------------------------------------------------------

    def smooth_lagged(
        self,
        y: Tensor,
        state: LagState | None = None,
        *,
        lag: int,
        u: Tensor | None = None,
        observed: Tensor | None = None,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        form: str | None = None,
    ) -> tuple[Lagged, LagState | None]:
        """x_{t - lag} given y_1 ... y_t, for streams: the same call reads the whole or any piece of it.

        The state, from ``initial_lag_state(batch, lag)``, keeps the last ``lag`` steps. In the first ``lag`` steps of a
        row there is no result yet: ``valid`` is False there.
        """
        base = None if state is None else getattr(state, "filtered", None)
        smoothing.check_lag(lag)
        call = open_call(self, y, base, u, observed, lengths, starts)
        smoothing.check_lag_state(type(self).__name__, state, self.n_states, lag, y)
        posterior, final = self._filter(call, self._form(call, form))
        return smoothing.smooth_lagged(call, posterior, final, state, lag)

    def initial_lag_state(self, batch: int, lag: int, *, dtype: torch.dtype | None = None) -> LagState:
        """The state of :meth:`smooth_lagged` before the first step."""
        smoothing.check_lag(lag)
        check_batch(batch)
        n, name = self.n_states, f"{type(self).__name__}.initial_lag_state"
        check_room(name, batch * lag * (4 * n * n + 3 * n), self._like())
        return smoothing.initial_lag_state(self.initial_state(batch, dtype=dtype), lag)

    def sample(
        self,
        y: Tensor,
        n_samples: int,
        state: GaussianState | None = None,
        *,
        u: Tensor | None = None,
        observed: Tensor | None = None,
        lengths: Tensor | None = None,
        starts: Tensor | None = None,
        form: str | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Whole paths x_1 ... x_T drawn from their joint distribution given all of y: (n_samples, batch, length, n)."""
        call = open_call(self, y, state, u, observed, lengths, starts)
        posterior, _ = self._filter(call, self._form(call, form))
        return sample_paths(call, posterior, n_samples, generator)

    def simulate(
        self, batch: int, length: int, *, u: Tensor | None = None, generator: torch.Generator | None = None
    ) -> tuple[Tensor, Tensor]:
        """States and observations drawn from the model: x (batch, length, n), y (batch, length, p)."""
        return simulate(self._drawn(batch, length, u, generator), generator)

    # -- inside ------------------------------------------------------------------------------------------------------

    def _filter(self, call: Call, form: str) -> tuple[Posterior, GaussianState | None]:
        if form == "recurrent":
            posterior, final = reference.filter(call)
        else:
            if form != "square_root":
                refuse_exact(call.steps, f"form {form!r}", "square_root")
            filtered, told = call.filtered(_FILTERS[form])
            posterior, final = call.posterior(filtered, told), call.final(filtered.final)
        refuse_singular(call, posterior.innovation_factor)
        return posterior, final

    def _smooth(self, call: Call, form: str | None) -> Smoothed:
        if form == "recurrent":
            if exact_given_state(call.steps):
                self._filter(call, form)  # which refuses what is singular
            return reference.smooth(call)
        refuse_exact(call.steps, "smoothing", "recurrent")
        posterior, _ = self._filter(call, self._form(call, form))
        scanned = (form or self._plan_without_c(call.y).form) == "parallel"  # smoothing has no C
        return smoothing.smooth(call, posterior, scanned=scanned)

    def _forecast(self, call: Call) -> Forecast:
        return smoothing.forecast(call)

    def _plan(self, y: Tensor) -> Plan:
        return plan(self.rules, length=0) if c_would_run(refusal_of(y=y)) else self._plan_without_c(y)

    def _plan_without_c(self, y: Tensor) -> Plan:
        """What the filter does without its C kernel, and smoothing, which has none, always."""
        return plan(self.rules[1:], length=y.shape[1], n_taps=len(y))  # the second number is the rows here

    def _like(self) -> Tensor:
        return self.A

    def _given(self) -> dict[str, Tensor]:
        names = (*_AXES, "mean", "covariance")
        return {name: getattr(self, name) for name in names if name in "AQCR" or getattr(self, name) is not None}

    def _varying(self) -> dict[str, tuple[Tensor, int]]:
        return {key: (getattr(self, key), len(axes)) for key, axes in _AXES.items() if getattr(self, key) is not None}

    def _joint(self) -> Tensor:
        """The covariance of (w, v)."""
        assert self.S is not None
        lead = torch.broadcast_shapes(*(m.shape[:-2] for m in (self.Q, self.R, self.S)))
        Q, R, S = (m.expand(*lead, *m.shape[-2:]) for m in (self.Q, self.R, self.S))
        return torch.cat([torch.cat([Q, S], -1), torch.cat([S.mT, R], -1)], -2)
