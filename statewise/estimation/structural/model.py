"""A series as a sum of components: its linear-Gaussian model for given parameters, and what that says of data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from statewise.errors import InputError
from statewise.estimation.coefficients import FLOATS
from statewise.estimation.factors import times
from statewise.estimation.gaussian import Forecast, Gaussians, GaussianState
from statewise.estimation.model import LinearGaussian
from statewise.estimation.structural.components import (
    AnyComponent,
    Block,
    Component,
    Irregular,
    Level,
    Regression,
    Trend,
)
from statewise.estimation.structural.diffuse import Series, centre_of, prior_variances, undetermined
from statewise.estimation.structural.parameters import Parameter

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class Structural:
    """y_t = the sum of what each component adds at t, as in ``Trend() + Seasonal(period=12) + Irregular()``.

    Series are rows of a batch, each with parameters of its own: a dictionary of tensors (batch,), or (batch, order) for
    coefficients, by the names in ``parameters``, as "trend.slope_variance". Everything is computed in float64.

    The first state is diffuse, but for an autoregression, which is stationary: so nothing is assumed of level, slope,
    pattern and coefficients. The log-likelihood is the diffuse one, the limit of log p(y) + d/2 log kappa for a prior
    of variance kappa over d states, of which the data say something; a row begins where it is first observed.

    Shapes:  y: (batch, length, 1), NaN where missing; covariates: (batch or 1, length, d_covariates), where the model
             has a :class:`Regression`, of the whole series and of the future
    Cost:    of a filter with ``n_states`` states.
    Errors:  InputError in one line for components that do not go together, data and parameters that do not fit.
    Source:  Harvey 1989, Forecasting, Structural Time Series Models and the Kalman Filter; Durbin & Koopman 2012, Time
             Series Analysis by State Space Methods, sec. 3.2 (the components), 5.2 and 7.2.2 (the diffuse likelihood).
    """

    components: tuple[AnyComponent, ...]

    def __post_init__(self) -> None:
        for component in self.components:
            if not isinstance(component, Component):
                raise InputError(f"a structural model is a sum of components, got {type(component).__name__}")
        count = Counter(type(component) for component in self.components)
        if count[Level] + count[Trend] > 1:
            raise InputError("a series has one level, and a Trend includes one; give one Level or one Trend")
        for cls in (Irregular, Regression):
            if count[cls] > 1:
                raise InputError(f"two components {cls.__name__} cannot be distinguished; give one")

    def __add__(self, other: object) -> Structural:
        if isinstance(other, Structural):
            return Structural((*self.components, *other.components))
        if isinstance(other, Component):
            return Structural((*self.components, other))  # type: ignore[arg-type]
        raise InputError(
            f"a structural model is a sum of components, such as Level() + Irregular(); got {type(other).__name__}"
        )

    def __radd__(self, other: object) -> Structural:
        return self if isinstance(other, int) and other == 0 else self + other  # sum() begins with 0

    @cached_property
    def named(self) -> dict[str, AnyComponent]:
        """The components by name; the second of a kind is "seasonal_2"."""
        found: dict[str, AnyComponent] = {}
        for component in self.components:
            n = sum(type(other) is type(component) for other in found.values())
            found[component.title if not n else f"{component.title}_{n + 1}"] = component
        return found

    @cached_property
    def parameters(self) -> dict[str, Parameter]:
        return {f"{name}.{key}": p for name, one in self.named.items() for key, p in one.parameters.items()}

    @property
    def n_states(self) -> int:
        return sum(component.n_states for component in self.components)

    @property
    def n_diffuse(self) -> int:
        """How many of them begin unknown."""
        return sum(one.n_states for one in self.components if one.title != "autoregression")

    @property
    def n_parameters(self) -> int:
        return sum(p.size for p in self.parameters.values())

    @property
    def d_covariates(self) -> int:
        return sum(one.d_covariates for one in self.components if isinstance(one, Regression))

    # -- for given parameters ----------------------------------------------------------------------------------------

    def linear_gaussian(self, parameters: Parameters, y: Tensor, *, covariates: Tensor | None = None) -> LinearGaussian:
        """The model of these series: its states are those of the components, in their order.

        y:  of which the mean is taken, where the prior of a level lies, and the mean square about it, the unit of the
            diffuse prior
        """
        series = self.series(y, covariates)
        parameters = self.check_parameters(parameters, len(series.y))
        model = self.assemble(self.blocks(parameters, series.y), series, parameters)
        return model if series.centre is None else replace(model, mean=self._lifts(series))

    def log_likelihood(self, parameters: Parameters, y: Tensor, *, covariates: Tensor | None = None) -> Tensor:
        """(batch,): the diffuse log-likelihood of each series."""
        series = self.series(y, covariates)
        parameters = self.check_parameters(parameters, len(series.y))
        return self.score(parameters, self.looked_at(series, parameters), form="square_root")

    def decompose(self, parameters: Parameters, y: Tensor, *, covariates: Tensor | None = None) -> dict[str, Gaussians]:
        """What each component added at each step, given all of y: (batch, length, 1), with ``interval``; also "slope"
        of a trend and "coefficients" of a regression. "irregular" is what is left of y.
        """
        series = self.series(y, covariates)
        parameters = self.check_parameters(parameters, len(series.y))
        blocks = self.blocks(parameters, series.y)
        model = self.assemble(blocks, series, parameters)
        if not bool((model.C.square() @ model.Q.diagonal(dim1=-2, dim2=-1).unsqueeze(-1) + model.R).all()):
            raise InputError("decompose needs noise in each step of y, not only in slopes; add Irregular()")
        smoothed = model.smooth(series.y, starts=series.starts)
        found: dict[str, Gaussians] = {}
        at = 0
        for (name, component), block in zip(self.named.items(), blocks):
            own = slice(at, at + component.n_states)
            at = own.stop
            if not component.n_states:
                continue
            rows = {name: model.C[..., own] if block.c is None else block.c[None], **component.reads(series.y)}
            for key, C in rows.items():
                mean = times(C, smoothed.mean[..., own])
                if key == name and isinstance(component, (Level, Trend)) and series.centre is not None:
                    mean = mean + series.centre[:, None, None]
                found[key] = Gaussians(mean, C @ smoothed.factor[..., own, :])
        if "irregular" in self.named:
            unseen, signal = series.y.isnan(), Gaussians(times(model.C, smoothed.mean), model.C @ smoothed.factor)
            spread = parameters["irregular.variance"].sqrt()[:, None, None]
            deviation = torch.where(unseen, spread, signal.variance.sqrt())
            found["irregular"] = Gaussians(torch.where(unseen, 0.0, series.y - signal.mean), deviation[..., None])
        return found

    def forecast(self, parameters: Parameters, y: Tensor, length: int, *, covariates: Tensor | None = None) -> Forecast:
        """What follows y for ``length`` steps: ``.observations`` (batch, length, 1) and ``.states``, with intervals.

        covariates:  of y and of the steps to come, one after the other
        """
        model, state, series = self._after(parameters, y, length, covariates)
        found = model.forecast(state, length)
        if series.centre is None:
            return found
        states = replace(found.states, mean=found.states.mean + self._lifts(series).unsqueeze(1))
        return Forecast(
            states, replace(found.observations, mean=found.observations.mean + series.centre[:, None, None])
        )

    def simulate(
        self,
        parameters: Parameters,
        y: Tensor,
        length: int,
        n_paths: int,
        *,
        covariates: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Paths that y may take for ``length`` steps to come: (n_paths, batch, length, 1)."""
        if not isinstance(n_paths, int) or isinstance(n_paths, bool) or n_paths < 1:
            raise InputError(f"simulate needs n_paths as a number above 0, got {n_paths!r}")
        model, state, series = self._after(parameters, y, length, covariates)
        batch = len(state.mean)
        given = {key: _each(getattr(model, key), n_paths, batch) for key in ("A", "Q", "C", "R")}
        prior = {"mean": state.mean, "covariance": state.factor @ state.factor.mT}
        drawn = LinearGaussian(**given, **{key: _each(m, n_paths, batch) for key, m in prior.items()})
        paths = drawn.simulate(n_paths * batch, length, generator=generator)[1].unflatten(0, (n_paths, batch))
        return paths if series.centre is None else paths + series.centre[:, None, None]

    def _after(
        self, parameters: Parameters, y: Tensor, length: int, covariates: Tensor | None
    ) -> tuple[LinearGaussian, GaussianState, Series]:
        """The model of the steps after y, the state there, less the centre, and the series with this centre."""
        if not isinstance(length, int) or isinstance(length, bool) or length < 1:
            raise InputError(f"forecast needs a length of at least 1, got {length!r}")
        series = self.series(y, covariates, ahead=length)
        parameters = self.check_parameters(parameters, len(series.y))
        model = self.assemble(self.blocks(parameters, series.y), series, parameters)
        n = series.y.shape[1]
        past, future = model[:n], model[n:]
        _, state = past.filter(series.y, past.initial_state(len(series.y)), starts=series.starts)
        assert state is not None
        return future, state, series

    # -- inside ------------------------------------------------------------------------------------------------------

    def score(self, parameters: Parameters, series: Series, *, form: str | None = None) -> Tensor:
        """:meth:`log_likelihood` of what was checked. With few series the form that is chosen is the scan, which
        loses digits where waves are much longer than a step: good enough to climb, not to report.
        """
        blocks = self.blocks(parameters, series.y)
        model = self.assemble(blocks, series, parameters)
        likelihood = model.filter(series.y, starts=series.starts, form=form)[0].log_likelihood
        for block, kappa in zip(blocks, self._parts(series.kappa)):
            if block.P is None:
                likelihood = likelihood + block.log_determinant + kappa.log().sum(-1) / 2
        return likelihood if series.undetermined is None else likelihood + series.undetermined.correction

    def looked_at(self, series: Series, parameters: Parameters | None = None) -> Series:
        """The series with what they leave undetermined: for these parameters, or for nearly all there are."""
        if parameters is None:
            parameters = {name: p.example(number, series.y) for number, (name, p) in enumerate(self.parameters.items())}
        return series._replace(undetermined=undetermined(self.blocks(parameters, series.y), series))

    def _lifts(self, series: Series) -> Tensor:
        """(batch, n_states): the centre of each series in the state that is its level."""
        lifted, at = torch.zeros_like(series.kappa), 0
        for component in self.components:
            if isinstance(component, (Level, Trend)) and series.centre is not None:
                lifted[:, at] = series.centre
            at += component.n_states
        return lifted

    def natural(self, free: Tensor, scale: Tensor) -> dict[str, Tensor]:
        """The parameters that free numbers (batch, n_parameters) stand for, in units of ``scale`` (batch,)."""
        parts = free.split([p.size for p in self.parameters.values()], dim=1)
        return {name: p.natural(part, scale) for (name, p), part in zip(self.parameters.items(), parts)}

    def free(self, parameters: Parameters, scale: Tensor) -> Tensor:
        """What :meth:`natural` undoes."""
        return torch.cat([p.free(parameters[name], scale) for name, p in self.parameters.items()], 1)

    def blocks(self, parameters: Parameters, like: Tensor) -> list[Block]:
        return [
            one.block({key: parameters[f"{name}.{key}"] for key in one.parameters}, like)
            for name, one in self.named.items()
        ]

    def _parts(self, of_states: Tensor) -> tuple[Tensor, ...]:
        """What belongs to each component of (batch, n_states)."""
        return of_states.split([component.n_states for component in self.components], dim=-1)

    def assemble(self, blocks: list[Block], series: Series, parameters: Parameters) -> LinearGaussian:
        """The components' systems side by side. Parameters and ``kappa`` may have a batch of 1, for all series."""
        n, like = self.n_states, series.kappa
        batch = max(len(like), *(len(p) for p in parameters.values()))
        A, P = like.new_zeros(batch, n, n), like.new_zeros(batch, n, n)
        q: list[Tensor] = []
        rows: list[Tensor | None] = []
        at = 0
        for block, kappa in zip(blocks, self._parts(series.kappa)):
            own = slice(at, at + block.A.shape[-1])
            at = own.stop
            if own.start == own.stop:
                continue
            A[:, own, own] = block.A
            P[:, own, own] = torch.diag_embed(kappa) if block.P is None else block.P
            q.append(block.q.expand(batch, -1))
            rows.append(series.covariates if block.c is None else block.c[None, None])
        if not n:  # noise alone: a state that is always zero
            A, P, q, rows = (
                like.new_zeros(1, 1, 1),
                like.new_zeros(1, 1, 1),
                [like.new_zeros(1, 1)],
                [like.new_zeros(1, 1, 1)],
            )
        given = [row for row in rows if row is not None]
        lead = torch.broadcast_shapes(*(row.shape[:2] for row in given))
        C = torch.cat([row.expand(*lead, -1) for row in given], -1).unsqueeze(-2)
        R = parameters.get("irregular.variance", like.new_zeros(1))[:, None, None, None]
        return LinearGaussian(A[:, None], torch.diag_embed(torch.cat(q, -1))[:, None], C, R, covariance=P)

    # -- checks ------------------------------------------------------------------------------------------------------

    def series(self, y: Any, covariates: Any = None, *, ahead: int = 0) -> Series:
        """Errors:  InputError for data of another shape, infinite, all missing, or too short for the model."""
        if not any(p.kind == "variance" for p in self.parameters.values()):
            raise InputError("nothing in this model is random; add Irregular(), or a component with stochastic=True")
        if not isinstance(y, Tensor) or y.dtype not in FLOATS or y.ndim != 3 or y.shape[-1] != 1 or not len(y):
            given = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            wanted = "y (batch, length, 1) in float32 or float64, each series a row"
            raise InputError(f"a structural model needs {wanted}; got {given}")
        known = ~y[..., 0].isnan()
        if bool(y.isinf().any()):
            raise InputError("y holds infinity; mark a missing number by NaN")
        fewest = int(known.sum(1).min()) if y.shape[1] else 0
        if fewest <= self.n_diffuse:
            row = int(known.sum(1).argmin()) if y.shape[1] else 0
            raise InputError(
                f"series {row} has {fewest} known numbers, and the model {self.n_diffuse} states that are unknown at "
                f"first; it needs more than {self.n_diffuse}"
            )
        d, length = self.d_covariates, y.shape[1] + ahead
        if covariates is None and d:
            raise InputError(f"the model has Regression(d_covariates={d}); give covariates (batch or 1, {length}, {d})")
        if covariates is not None:
            fits = isinstance(covariates, Tensor) and covariates.ndim == 3 and covariates.dtype in FLOATS
            if not d or not fits or covariates.shape[1:] != (length, d) or covariates.shape[0] not in (1, len(y)):
                got = tuple(covariates.shape) if isinstance(covariates, Tensor) else type(covariates).__name__
                wanted = f"needs covariates ({len(y)} or 1, {length}, {d})" if d else "has no Regression"
                raise InputError(f"the model {wanted}, got {got}")
            if not bool(covariates.isfinite().all()):
                raise InputError("the covariates hold NaN or infinity; fill them: only y may have gaps")
            covariates = covariates.double()
        first = known.int().argmax(1)
        starts = None
        if bool((first > 0).any()):
            starts = torch.arange(y.shape[1], device=y.device) == first[:, None]
        y, centre = y.double(), None
        if any(isinstance(one, (Level, Trend)) for one in self.components):
            centre = centre_of(y)  # it changes no likelihood, and far from zero it would cost digits
            y = y - centre[:, None, None]
        return Series(y, covariates, starts, prior_variances(self.components, y, covariates), centre)

    def check_parameters(self, parameters: Any, batch: int) -> dict[str, Tensor]:
        """All as float64 with an axis for the batch.

        Errors:  InputError for names that are missing or unknown, shapes, and values that make no model.
        """
        if not isinstance(parameters, Mapping) or set(parameters) != set(self.parameters):
            given = ", ".join(map(str, parameters)) if isinstance(parameters, Mapping) else type(parameters).__name__
            raise InputError(f"the model needs the parameters {', '.join(self.parameters)}; got {given or 'none'}")
        found = {}
        for name, parameter in self.parameters.items():
            own = (parameter.size,) if parameter.kind == "coefficients" else ()
            value = torch.as_tensor(parameters[name], dtype=torch.float64)
            if tuple(value.shape) == own:
                value = value.expand(batch, *own)
            if tuple(value.shape) != (batch, *own):
                raise InputError(f"{name} must have shape {own} or {(batch, *own)}, got {tuple(value.shape)}")
            if not bool(value.isfinite().all()) or (expected := parameter.wrong(value.detach())):
                raise InputError(f"{name} must be {'finite' if not bool(value.isfinite().all()) else expected}")
            found[name] = value
        return found


def _each(value: Tensor, n: int, batch: int) -> Tensor:
    """(n * batch, ...): the rows of a batch, which may be 1, n times."""
    value = value.expand(batch, *value.shape[1:])
    return value.repeat(n, *[1] * (value.ndim - 1))
