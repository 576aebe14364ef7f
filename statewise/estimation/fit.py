"""Models from data: the likelihood's maximum by its gradient or by EM, and how certain it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.em import em_step
from statewise.estimation.model import LinearGaussian
from statewise.estimation.parameters import check_learn, free, natural, to_double, to_dtype
from statewise.estimation.search import Found, Numbers, check_search, climb, flat, from_starts, gradient_of, shaped

Build = Callable[[Numbers], LinearGaussian]


@dataclass(frozen=True, eq=False)
class Fit:
    """What the search found.

    model:          the model with the highest likelihood, in its own dtype
    parameters:     the numbers it is made of, in float64, by name; for ``fit``, the coefficients learned
    history:        the log-likelihood of all rows at each iteration
    converged:      whether the search stopped by itself
    n_parameters:   how many free numbers
    n_steps:        how many steps had an observation, which BIC needs
    starts:         the log-likelihood that each start reached, the given start first
    """

    model: LinearGaussian
    parameters: dict[str, Tensor]
    history: tuple[float, ...]
    converged: bool
    n_parameters: int
    n_steps: int
    starts: tuple[float, ...]
    _score: Callable[[dict[str, Tensor]], Tensor]
    _numbers: dict[str, Tensor]
    _natural: Callable[[dict[str, Tensor]], dict[str, Tensor]]

    @property
    def log_likelihood(self) -> float:
        return self.history[-1]

    @property
    def aic(self) -> float:
        """2 k - 2 log L. Source: Akaike 1974, IEEE Trans. Automat. Contr. 19:716."""
        return 2 * self.n_parameters - 2 * self.log_likelihood

    @property
    def bic(self) -> float:
        """k log(n) - 2 log L. Source: Schwarz 1978, Ann. Stat. 6:461."""
        return self.n_parameters * math.log(max(self.n_steps, 1)) - 2 * self.log_likelihood

    def standard_errors(self) -> dict[str, Tensor]:
        """The standard deviation of each of ``parameters``, of the same shape, from the observed information.

        The Hessian is the central difference of exact gradients, its inverse is carried over to the parameters by
        their Jacobian. It is NaN in a direction in which the likelihood is flat or not at a maximum.

        Cost:    two gradients for each free number.
        Source:  Efron & Hinkley 1978, Biometrika 65:457 (observed information); the delta method.
        """
        names, theta = list(self._numbers), flat(self._numbers)
        k = len(theta)
        H = theta.new_zeros(k, k)
        for i in range(k):
            step = theta.new_zeros(k)
            step[i] = 1e-5 * max(1.0, abs(float(theta[i])))
            up, down = (gradient_of(self._score, shaped(theta + s, self._numbers))[1] for s in (step, -step))
            H[i] = (down - up) / (2 * step[i])
        H = (H + H.T) / 2
        values, vectors = torch.linalg.eigh(H)
        known = values > 1e-10 * values.abs().max().clamp(min=1e-300)
        inverse = vectors @ torch.diag(torch.where(known, 1 / values, torch.nan).nan_to_num(nan=0)) @ vectors.T
        unknown = vectors[:, ~known].square().sum(1) > 1e-6
        jacobian: Any = torch.func.jacrev(lambda t: self._natural(shaped(t, self._numbers)))(theta)
        errors = {}
        for name, J in jacobian.items():
            rows = J.reshape(-1, k)
            variance = ((rows @ inverse) * rows).sum(1).clamp(min=0)
            lost = ((rows != 0) & unknown).any(1)
            errors[name] = torch.where(lost, torch.nan, variance.sqrt()).reshape(J.shape[:-1])
        assert names
        return errors


def fit(
    model: LinearGaussian,
    y: Tensor,
    *,
    learn: Iterable[str],
    method: str = "gradient",
    u: Tensor | None = None,
    observed: Tensor | None = None,
    lengths: Tensor | None = None,
    form: str | None = None,
    n_iterations: int = 200,
    tolerance: float = 1e-8,
    n_starts: int = 1,
    generator: torch.Generator | None = None,
) -> Fit:
    """Finds the coefficients in ``learn`` that make y most likely, beginning from the model's. Rows are independent.

    method:    ``gradient``, quasi-Newton on exact gradients; covariances are learned as Cholesky factors with the
               logarithm of their diagonals, so that they are always valid. ``em``: each iteration has a closed form and
               cannot lower the likelihood, but it takes longer to converge.
    tolerance: the search stops when the log-likelihood rises by less than this for each observed number
    n_starts:  how many starts: the model, and others near it, drawn by ``generator``. The most likely result is
               returned, and ``starts`` has what each start reached
    Cost:      a filter and its gradient, or a smoother, for each iteration.
    Errors:    InputError for coefficients that the model does not have or that vary with time, and for an unknown
              method.
    Source:    Shumway & Stoffer 1982, J. Time Series Anal. 3:253 (EM, with missing values); Särkkä 2013, ch. 12.
    """
    names = check_learn(model, learn)
    if method not in ("gradient", "em"):
        raise InputError(f"fit has the methods 'gradient' and 'em', got {method!r}")
    check_search(n_iterations, tolerance, n_starts)
    own, wide = model.A.dtype, to_double(model)
    y = _double(y)
    given: dict[str, Any] = {"u": None if u is None else _double(u), "observed": observed, "lengths": lengths}
    start = free(wide, names)  # before EM as well, which stays where a covariance has no full rank
    n_numbers, n_steps = _n_observed(wide, y, given)

    def build(numbers: Numbers) -> LinearGaussian:
        return replace(wide, **natural(wide, names, numbers))  # type: ignore[arg-type]

    def score(numbers: Numbers) -> Tensor:
        return build(numbers).filter(y, form=form, **given)[0].log_likelihood.sum()

    def run(numbers: Numbers) -> Found:
        if method == "gradient":
            return climb(score, numbers, n_iterations, tolerance, n_numbers)
        best, history = build(numbers), list[float]()
        for _ in range(n_iterations):
            following, likelihood = em_step(best, y, names, form=form, **given)
            history.append(likelihood)
            if len(history) > 1 and history[-1] - history[-2] < tolerance * n_numbers:
                return Found(free(best, names), history, True)
            best = following
        history.append(float(best.filter(y, form=form, **given)[0].log_likelihood.sum()))
        return Found(free(best, names), history, False)

    def as_coefficients(numbers: Numbers) -> dict[str, Tensor]:
        return natural(wide, names, numbers)

    found, ends = from_starts(run, start, n_starts, generator)
    return Fit(
        to_dtype(build(found.numbers), own),
        {name: m.detach() for name, m in as_coefficients(found.numbers).items()},
        tuple(found.history),
        found.converged,
        len(flat(found.numbers)),
        n_steps,
        ends,
        score,
        found.numbers,
        as_coefficients,
    )


def maximise(
    build: Build,
    parameters: dict[str, Tensor],
    y: Tensor,
    *,
    u: Tensor | None = None,
    observed: Tensor | None = None,
    lengths: Tensor | None = None,
    form: str | None = None,
    n_iterations: int = 200,
    tolerance: float = 1e-8,
    n_starts: int = 1,
    generator: torch.Generator | None = None,
) -> Fit:
    """Like :func:`fit` by gradient, for a model with a structure: ``build`` makes it, in float64, from free numbers.

    >>> import torch
    >>> from statewise.estimation import LinearGaussian, maximise
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> walk = lambda p: LinearGaussian(one, p["log_q"].exp() * one, one, p["log_r"].exp() * one)
    >>> begin = {"log_q": torch.tensor(0.0), "log_r": torch.tensor(0.0)}
    >>> y = torch.randn(1, 200, 1, dtype=torch.float64).cumsum(1)
    >>> maximise(walk, begin, y).converged
    True
    """
    check_search(n_iterations, tolerance, n_starts)
    given: dict[str, Any] = {"u": None if u is None else _double(u), "observed": observed, "lengths": lengths}
    y = _double(y)
    if not parameters or not all(isinstance(m, Tensor) and m.is_floating_point() for m in parameters.values()):
        raise InputError("maximise needs parameters as a dict of floating-point tensors")

    def score(numbers: dict[str, Tensor]) -> Tensor:
        model = build(numbers)
        if not isinstance(model, LinearGaussian):
            raise InputError(f"maximise needs build to return a LinearGaussian, got {type(model).__name__}")
        return model.filter(y, form=form, **given)[0].log_likelihood.sum()

    start = {name: m.detach().double().clone() for name, m in parameters.items()}
    first = build(start)
    score(start)
    n_numbers, n_steps = _n_observed(first, y, given)
    found, ends = from_starts(
        lambda numbers: climb(score, numbers, n_iterations, tolerance, n_numbers), start, n_starts, generator
    )
    best, n_free = build(found.numbers), len(flat(found.numbers))
    model, history = to_dtype(best, best.A.dtype), tuple(found.history)
    return Fit(model, found.numbers, history, found.converged, n_free, n_steps, ends, score, found.numbers, dict)


def _n_observed(model: LinearGaussian, y: Tensor, given: dict[str, Any]) -> tuple[int, int]:
    """How many numbers, and how many steps with any."""
    n = model.filter(y, **given)[0].n_observed
    if not int(n.sum()):
        raise InputError("fit needs observations; every number of y is missing")
    return int(n.sum()), int((n > 0).sum())


def _double(y: Any) -> Any:
    return y.double() if isinstance(y, Tensor) and y.is_floating_point() else y
