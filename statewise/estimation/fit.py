"""Models from data: the likelihood's maximum by its gradient or by EM, and how sure one can be of it."""

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

Build = Callable[[dict[str, Tensor]], LinearGaussian]


@dataclass(frozen=True, eq=False)
class Fit:
    """What was found.

    model:          the model of the highest likelihood, in its own dtype
    parameters:     the numbers it is made of, in float64, by name; for ``fit``, the coefficients learned
    history:        the log-likelihood of all rows at each iteration
    converged:      whether the search stopped by itself
    n_parameters:   how many free numbers
    n_steps:        how many steps had an observation, what BIC counts
    """

    model: LinearGaussian
    parameters: dict[str, Tensor]
    history: tuple[float, ...]
    converged: bool
    n_parameters: int
    n_steps: int
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
        their Jacobian. NaN where the data say nothing: a direction in which the likelihood is flat or not at a maximum.

        Cost:    two gradients for each free number.
        Source:  Efron & Hinkley 1978, Biometrika 65:457 (observed information); the delta method.
        """
        names, theta = list(self._numbers), _flat(self._numbers)
        k = len(theta)
        H = theta.new_zeros(k, k)
        for i in range(k):
            step = theta.new_zeros(k)
            step[i] = 1e-5 * max(1.0, abs(float(theta[i])))
            up, down = (_gradient(self._score, _shaped(theta + s, self._numbers))[1] for s in (step, -step))
            H[i] = (down - up) / (2 * step[i])
        H = (H + H.T) / 2
        values, vectors = torch.linalg.eigh(H)
        known = values > 1e-10 * values.abs().max().clamp(min=1e-300)
        inverse = vectors @ torch.diag(torch.where(known, 1 / values, torch.nan).nan_to_num(nan=0)) @ vectors.T
        unknown = vectors[:, ~known].square().sum(1) > 1e-6
        jacobian: Any = torch.func.jacrev(lambda t: self._natural(_shaped(t, self._numbers)))(theta)
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
) -> Fit:
    """The coefficients named in ``learn`` that make y most likely, beginning from the model's. Rows are independent.

    method:    ``gradient``, quasi-Newton on exact gradients; covariances are learned as Cholesky factors with the
               logarithm of their diagonals, so that they are always valid. ``em``, whose iterations have a closed form
               and cannot lower the likelihood; slower to the end, and without S.
    tolerance: the search stops where the log-likelihood rises by less than this for each number observed
    Cost:      a filter and its gradient, or a smoother, for each iteration.
    Errors:    InputError for coefficients that are not there or vary with time, an unknown method.
    Source:    Shumway & Stoffer 1982, J. Time Series Anal. 3:253 (EM, with missing values); Särkkä 2013, ch. 12.
    """
    names = check_learn(model, learn)
    if method not in ("gradient", "em"):
        raise InputError(f"fit knows the methods 'gradient' and 'em', got {method!r}")
    _check_search(n_iterations, tolerance)
    own, wide = model.A.dtype, to_double(model)
    y = _double(y)
    given: dict[str, Any] = {"u": None if u is None else _double(u), "observed": observed, "lengths": lengths}

    def build(numbers: dict[str, Tensor]) -> LinearGaussian:
        return replace(wide, **natural(wide, names, numbers))  # type: ignore[arg-type]

    def score(numbers: dict[str, Tensor]) -> Tensor:
        return build(numbers).filter(y, form=form, **given)[0].log_likelihood.sum()

    start = free(wide, names)  # before EM as well, which stays where a covariance has no full rank
    if method == "em":
        best, history, converged = wide, [], False
        n_numbers = _n_observed(wide, y, given)[0]
        for _ in range(n_iterations):
            following, likelihood = em_step(best, y, names, form=form, **given)
            history.append(likelihood)
            converged = len(history) > 1 and history[-1] - history[-2] < tolerance * n_numbers
            if converged:
                break
            best = following
        if not converged:
            history.append(float(best.filter(y, form=form, **given)[0].log_likelihood.sum()))
        numbers = free(best, names)
    else:
        numbers, history, converged = _search(score, start, n_iterations, tolerance, _n_observed(wide, y, given)[0])
        best = build(numbers)
    values = {name: m.detach() for name, m in natural(wide, names, numbers).items()}
    n_steps = _n_observed(wide, y, given)[1]
    size = len(_flat(numbers))

    def as_coefficients(theta: dict[str, Tensor]) -> dict[str, Tensor]:
        return natural(wide, names, theta)

    return Fit(to_dtype(best, own), values, tuple(history), converged, size, n_steps, score, numbers, as_coefficients)


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
) -> Fit:
    """As :func:`fit` by gradient, for a model with a structure: ``build`` makes it, in float64, from free numbers.

    >>> import torch
    >>> from statewise.estimation import LinearGaussian, maximise
    >>> one = torch.ones(1, 1, dtype=torch.float64)
    >>> walk = lambda p: LinearGaussian(one, p["log_q"].exp() * one, one, p["log_r"].exp() * one)
    >>> begin = {"log_q": torch.tensor(0.0), "log_r": torch.tensor(0.0)}
    >>> y = torch.randn(1, 200, 1, dtype=torch.float64).cumsum(1)
    >>> maximise(walk, begin, y).converged
    True
    """
    _check_search(n_iterations, tolerance)
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
    numbers, history, converged = _search(score, start, n_iterations, tolerance, n_numbers)
    best = build(numbers)
    return Fit(
        to_dtype(best, best.A.dtype),
        numbers,
        tuple(history),
        converged,
        len(_flat(numbers)),
        n_steps,
        score,
        numbers,
        dict,
    )


def _search(
    score: Callable[[dict[str, Tensor]], Tensor],
    start: dict[str, Tensor],
    n_iterations: int,
    tolerance: float,
    n_numbers: int,
) -> tuple[dict[str, Tensor], list[float], bool]:
    """BFGS with a line search that halves. Source: Nocedal & Wright 2006, Numerical Optimization, alg. 6.1."""
    theta = _flat(start)
    value, gradient = _gradient(score, start)
    if not math.isfinite(value):
        raise InputError("the log-likelihood is not finite where the search begins; begin with another model")
    one = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    history, inverse, quiet = [value], one / max(n_numbers, 1), 0
    for _ in range(n_iterations):
        direction = inverse @ gradient  # uphill
        longest = float(direction.abs().max())
        direction = direction * min(1.0, 2.0 / max(longest, 1e-300))
        slope, size = float(direction @ gradient), 1.0
        while True:
            there = _shaped(theta + size * direction, start)
            new_value, new_gradient = _gradient(score, there)
            if math.isfinite(new_value) and new_value >= value + 1e-4 * size * slope:
                break
            size /= 2
            if size < 1e-10:
                return _shaped(theta, start), history, True  # no way up that rounding does not hide
        s, g = size * direction, gradient - new_gradient
        curvature = float(s @ g)
        if curvature > 1e-12 * float(s.norm() * g.norm()):
            if len(history) == 1:
                inverse = one * curvature / float(g @ g)
            left = one - torch.outer(s, g) / curvature
            inverse = left @ inverse @ left.T + torch.outer(s, s) / curvature
        quiet = quiet + 1 if new_value - value < tolerance * n_numbers else 0
        theta, value, gradient = theta + s, new_value, new_gradient
        history.append(value)
        if quiet == 3 or float(gradient.abs().max()) < tolerance:
            return _shaped(theta, start), history, True
    return _shaped(theta, start), history, False


def _gradient(score: Callable[[dict[str, Tensor]], Tensor], numbers: dict[str, Tensor]) -> tuple[float, Tensor]:
    """The score and its gradient; -inf where there is no such model."""
    leaves = {name: m.detach().requires_grad_() for name, m in numbers.items()}
    try:
        value = score(leaves)
        parts = torch.autograd.grad(value, list(leaves.values()), allow_unused=True, materialize_grads=True)
    except (InputError, torch.linalg.LinAlgError):
        return -math.inf, _flat(numbers)
    gradient = torch.cat([m.flatten() for m in parts])
    return (float(value.detach()), gradient) if bool(gradient.isfinite().all()) else (-math.inf, gradient)


def _flat(numbers: dict[str, Tensor]) -> Tensor:
    return torch.cat([m.detach().flatten() for m in numbers.values()])


def _shaped(theta: Tensor, like: dict[str, Tensor]) -> dict[str, Tensor]:
    parts = theta.split([m.numel() for m in like.values()])
    return {name: part.reshape(m.shape) for (name, m), part in zip(like.items(), parts)}


def _n_observed(model: LinearGaussian, y: Tensor, given: dict[str, Any]) -> tuple[int, int]:
    """How many numbers, and how many steps with any."""
    n = model.filter(y, **given)[0].n_observed
    if not int(n.sum()):
        raise InputError("fit needs observations; every number of y is missing")
    return int(n.sum()), int((n > 0).sum())


def _double(y: Any) -> Any:
    return y.double() if isinstance(y, Tensor) and y.is_floating_point() else y


def _check_search(n_iterations: Any, tolerance: Any) -> None:
    if not isinstance(n_iterations, int) or isinstance(n_iterations, bool) or n_iterations < 1:
        raise InputError(f"n_iterations must be a number above 0, got {n_iterations!r}")
    if not isinstance(tolerance, (int, float)) or not 0 < tolerance < 1:
        raise InputError(f"tolerance must lie between 0 and 1, got {tolerance!r}")
