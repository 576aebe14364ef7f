"""Structural models from data: every series by itself, all series in one search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.gaussian import Forecast, Gaussians
from statewise.estimation.search import check_search
from statewise.estimation.search_rows import climb
from statewise.estimation.structural.components import Component
from statewise.estimation.structural.diffuse import Series
from statewise.estimation.structural.model import Structural
from statewise.estimation.structural.parameters import MOST

_NUMBERS_AT_ONCE = 2**25  # of what a filter keeps for its gradient; more series than that are taken in several parts


@dataclass(frozen=True, eq=False)
class StructuralFit:
    """What was found for each series.

    parameters:      by name, (batch,) each, or (batch, order); float64
    log_likelihood:  (batch,), the diffuse one
    converged:       (batch,) bool, whether the search stopped by itself
    n_observed:      (batch,), known numbers
    n_undetermined:  (batch,), how many directions of the diffuse states the data say nothing of: the likelihood, AIC
                     and BIC leave them out. What depends on them has a variance of the prior's size.
    at_zero:         by the name of a variance, (batch,) bool, whether it fell until it says the same as 0
    """

    model: Structural
    parameters: dict[str, Tensor]
    log_likelihood: Tensor
    converged: Tensor
    n_observed: Tensor
    n_undetermined: Tensor
    at_zero: dict[str, Tensor]
    _undetermined: dict[str, Tensor]
    _y: Tensor
    _covariates: Tensor | None
    _free: Tensor
    _scale: Tensor

    @property
    def aic(self) -> Tensor:
        """(batch,): 2 (k + d) - 2 log L, k parameters and d diffuse states of which the data say something.

        Source:  Durbin & Koopman 2012, sec. 7.4.
        """
        return 2 * self._n_found - 2 * self.log_likelihood

    @property
    def bic(self) -> Tensor:
        """(batch,): (k + d) log(n) - 2 log L."""
        n = self.n_observed.to(self.log_likelihood.dtype).log()
        return n * self._n_found - 2 * self.log_likelihood

    @property
    def _n_found(self) -> Tensor:
        return self.model.n_parameters + self.model.n_diffuse - self.n_undetermined

    def remarks(self) -> list[str]:
        """A line for each series of which something is to be known before its numbers are believed."""
        found = []
        for row in range(len(self.converged)):
            lines = [] if bool(self.converged[row]) else ["the search did not end"]
            zero = [name for name, flag in self.at_zero.items() if bool(flag[row])]
            if zero and len(zero) == len(self.at_zero):
                lines.append("all variances fell to 0: the model fits exactly, and the likelihood has no maximum")
            elif zero:
                lines.append(f"{', '.join(zero)} fell to 0, and the data give no reason for more")
            parts = [name for name, flag in self._undetermined.items() if bool(flag[row])]
            if parts:
                n = int(self.n_undetermined[row])
                lines.append(f"the data leave {n} number{'s' * (n > 1)} open, in: {', '.join(parts)}")
            found += [f"series {row}: {line}" for line in lines]
        return found

    def standard_errors(self) -> dict[str, Tensor]:
        """The standard deviation of each of ``parameters``, of the same shape, from the observed information.

        NaN where the likelihood is flat or not at a maximum, as for a variance that is best at 0.

        Cost:    two gradients of all series for each parameter.
        Source:  Efron & Hinkley 1978, Biometrika 65:457; the delta method.
        """
        free, scale = self._free, self._scale
        series = self.model.series(self._y, self._covariates)
        score = _Score(self.model, series, scale)
        rows = torch.arange(len(free), device=free.device)
        columns = []
        for i in range(free.shape[1]):
            step = torch.zeros_like(free)
            step[:, i] = 1e-5 * free[:, i].abs().clamp(min=1.0)
            up, down = score(free + step, rows)[1], score(free - step, rows)[1]
            columns.append((down - up) / (2 * step[:, i : i + 1]))
        H = torch.stack(columns, 1)
        values, vectors = torch.linalg.eigh((H + H.mT) / 2)
        known = values > 1e-6 * values.abs().amax(1, keepdim=True).clamp(min=1e-300)
        root = vectors * torch.where(known, values, 1.0).rsqrt().masked_fill(~known, 0).unsqueeze(1)
        unknown = (vectors.square() * (~known).unsqueeze(1)).sum(2) > 1e-6
        leaf = free.clone().requires_grad_()
        found = {}
        for name, value in self.model.natural(leaf, scale).items():
            errors = []
            for column in value.reshape(len(value), -1).unbind(1):
                (J,) = torch.autograd.grad(column.sum(), leaf, retain_graph=True)
                error = (J.unsqueeze(1) @ root).square().sum((1, 2)).sqrt()
                errors.append(error.masked_fill(((J != 0) & unknown).any(1), torch.nan))
            found[name] = torch.stack(errors, 1).reshape(value.shape)
        return found

    def decompose(self) -> dict[str, Gaussians]:
        """See :meth:`Structural.decompose`."""
        return self.model.decompose(self.parameters, self._y, covariates=self._covariates)

    def forecast(self, length: int, *, covariates: Tensor | None = None) -> Forecast:
        """What follows. covariates: of the steps to come, (batch or 1, length, d_covariates)."""
        return self.model.forecast(self.parameters, self._y, length, covariates=self._joined(covariates, length))

    def simulate(
        self,
        length: int,
        n_paths: int,
        *,
        covariates: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Paths that the series may take: (n_paths, batch, length, 1)."""
        return self.model.simulate(
            self.parameters,
            self._y,
            length,
            n_paths,
            covariates=self._joined(covariates, length),
            generator=generator,
        )

    def _joined(self, future: Any, length: Any) -> Tensor | None:
        if self._covariates is None:
            return future
        past, d = self._covariates, self._covariates.shape[-1]
        fits = isinstance(future, Tensor) and future.ndim == 3 and future.shape[1:] == (length, d)
        if not fits or future.shape[0] not in (1, len(self._y)):
            given = tuple(future.shape) if isinstance(future, Tensor) else type(future).__name__
            raise InputError(
                f"the model has a Regression; give the covariates of the steps to come (1, {length}, {d}), got {given}"
            )
        batch = max(len(past), len(future))
        return torch.cat([past.expand(batch, -1, -1), future.to(past).expand(batch, -1, -1)], 1)


def fit(
    model: Structural | Component,
    y: Tensor,
    *,
    covariates: Tensor | None = None,
    n_starts: int = 2,
    n_iterations: int = 200,
    tolerance: float = 1e-9,
) -> StructuralFit:
    """The parameters of highest likelihood, of each series by itself; all series in one search.

    Shapes:     y: (batch, length, 1), NaN where missing; covariates: (batch or 1, length, d_covariates)
    n_starts:   of the points that are tried first, so many of the best are begun from, and the best end is taken
    tolerance:  the search of a series stops where its log-likelihood rises by less than this for each known number
    Cost:       a filter and its gradient over the series that have not arrived, for each iteration and start.
    Errors:     InputError for data that do not fit.
    Source:     the numbers searched over: logarithms of variances, logits of damping and frequency, Fisher's z of
                partial autocorrelations (Monahan 1984, Biometrika 71:403).
    """
    check_search(n_iterations, tolerance, n_starts)
    if isinstance(model, Component):
        model = Structural((model,))  # type: ignore[arg-type]
    if not isinstance(model, Structural):
        raise InputError(f"fit needs a sum of components, such as Level() + Irregular(), got {type(model).__name__}")
    series = model.looked_at(model.series(y, covariates))
    scale = unit_of(series.y)
    n_observed = (~series.y.isnan()).sum((1, 2))
    score = _Score(model, series, scale)
    starts = best_starts(model, score, len(series.y), n_starts)
    limit = tolerance * n_observed.to(scale.dtype)
    ends = [climb(score, start, limit, n_iterations) for start in starts]
    values = torch.stack([end.value for end in ends])
    best = values.nan_to_num(nan=-torch.inf).argmax(0)
    rows = torch.arange(len(best), device=best.device)
    free = torch.stack([end.point for end in ends])[best, rows]
    converged = torch.stack([end.converged for end in ends])[best, rows]
    parameters = {name: value.detach() for name, value in model.natural(free, scale).items()}
    left = series.undetermined
    named = zip(model.named, [] if left is None else left.states.split([one.n_states for one in model.components], 1))
    return StructuralFit(
        model,
        parameters,
        score.values(free, rows, "square_root"),
        converged,
        n_observed,
        torch.zeros_like(n_observed) if left is None else left.number,
        at_zero(model, score, free, 10 * limit),
        {name: states.any(1) for name, states in named},
        y.double(),
        series.covariates,
        free,
        scale,
    )


class _Score:
    """The log-likelihood of each series, and its gradient by the free numbers."""

    def __init__(self, model: Structural, series: Series, scale: Tensor) -> None:
        self.model, self.series, self.scale = model, series, scale
        width = model.n_states + 1
        self.n_at_once = max(1, _NUMBERS_AT_ONCE // (6 * width * width * max(1, series.y.shape[1])))

    def __call__(self, free: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        found = [self._part(*part) for part in zip(free.split(self.n_at_once), rows.split(self.n_at_once))]
        values, gradients = zip(*found)
        return torch.cat(values), torch.cat(gradients)

    def _part(self, free: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """A point that makes no model, as an autoregression within rounding of a unit root, is worth nothing."""
        leaf = free.detach().clone().requires_grad_()
        try:
            with torch.enable_grad():
                value = self._value(leaf, rows)
                (gradient,) = torch.autograd.grad(value.sum(), leaf)
        except (InputError, torch.linalg.LinAlgError):
            if len(rows) == 1:
                return free.new_full((1,), -torch.inf), torch.zeros_like(free)
            halves = [self._part(*half) for half in zip(free.tensor_split(2), rows.tensor_split(2))]
            return torch.cat([value for value, _ in halves]), torch.cat([gradient for _, gradient in halves])
        return value.detach(), gradient

    def values(self, free: Tensor, rows: Tensor, form: str | None = None) -> Tensor:
        """The log-likelihoods alone."""
        with torch.no_grad():
            parts = zip(free.split(self.n_at_once), rows.split(self.n_at_once))
            return torch.cat([self._value(*part, form) for part in parts])

    def _value(self, free: Tensor, rows: Tensor, form: str | None = None) -> Tensor:
        return self.model.score(self.model.natural(free, self.scale[rows]), self.series.of(rows), form=form)


def at_zero(model: Structural, score: _Score, free: Tensor, limit: Tensor) -> dict[str, Tensor]:
    """For each variance, whether its least value would be as likely, within ``limit`` (batch,)."""
    rows, found, at = torch.arange(len(free), device=free.device), {}, 0
    value = score.values(free, rows, "square_root")
    for name, p in model.parameters.items():
        if p.kind == "variance":
            least = free.clone()
            least[:, at] = -MOST
            found[name] = score.values(least, rows, "square_root") >= value - limit
        at += p.size
    return found


def unit_of(y: Tensor) -> Tensor:
    """(batch,): the size of a change from one known number to the next, about that of the noises."""
    steps = y[:, 1:, 0] - y[:, :-1, 0]
    known = ~steps.isnan()
    size = (steps.nan_to_num(nan=0.0).square().sum(1) / known.sum(1).clamp(min=1)).sqrt()
    return torch.where(size > 0, size, 1.0)


def best_starts(model: Structural, score: _Score, batch: int, n_starts: int) -> list[Tensor]:
    """For each series, the ``n_starts`` points of a fixed list with the highest likelihood, (batch, k) each."""
    points = starting_points(model, score.scale)
    rows = torch.arange(batch, device=score.scale.device)
    values = torch.stack([score.values(point.expand(batch, -1), rows) for point in points])
    order = values.nan_to_num(nan=-torch.inf).argsort(0, descending=True)[: min(n_starts, len(points))]
    return [points[number] for number in order]


def starting_points(model: Structural, like: Tensor) -> Tensor:
    """(n, k): a fixed list of free numbers to begin from, more where the likelihood has many hills."""
    generator = torch.Generator().manual_seed(0)
    n_points = 8 if {p.kind for p in model.parameters.values()} <= {"variance", "damping"} else 32
    points = []
    for number in range(n_points):
        parts = []
        for p in model.parameters.values():
            u = torch.rand(p.size, generator=generator, dtype=torch.float64)
            low, high = {"variance": (-6.0, 0.0), "damping": (1.0, 4.0), "period": (-3.0, 3.0)}.get(p.kind, (-1.5, 1.5))
            middle = -2.0 if p.kind == "variance" else (low + high) / 2
            parts.append(torch.full_like(u, middle) if number == 0 else low + (high - low) * u)
        points.append(torch.cat(parts))
    return torch.stack(points).to(like)
