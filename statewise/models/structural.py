"""A forecaster that is a structural time series: the same calls as a network's, and parameters that you can read."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from statewise.configuration.types import Count, NonEmpty, Positive
from statewise.errors import ConfigError, InputError, require_least
from statewise.estimation.gaussian import GaussianState
from statewise.estimation.model import LinearGaussian
from statewise.estimation.structural import Regression, Structural
from statewise.estimation.structural.components import AnyComponent
from statewise.estimation.structural.diffuse import DIFFUSE, Series
from statewise.models.base import Model
from statewise.models.quantiles import QuantileConfig, Quantiles, quantile_losses
from statewise.operators.state_shape import check_state, leaf

# The prior of the first state knows nothing of the history, so that it may be read in pieces: a series may lie this far
# from zero, in units of ``scale``, before the prior says something.
_FAR = 100.0


@dataclass(frozen=True, kw_only=True)
class StructuralForecasterConfig(QuantileConfig):
    """A sum of components with one set of parameters for each of ``d_target`` series, shared by all histories.

    scale:      the unit in which the search for the parameters begins: the size of a step of the series
    quantiles:  as of a :class:`~statewise.models.quantiles.QuantileConfig`; those of normal distributions
    """

    horizon: Count
    components: NonEmpty[AnyComponent]
    d_target: Count = 1
    quantiles: Quantiles | None = (0.1, 0.5, 0.9)
    scale: Positive = 1.0

    d_past_covariates: ClassVar[int] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            model = Structural(self.components)
        except InputError as error:
            raise ConfigError(f"StructuralForecasterConfig.components: {error}") from error
        if not any(p.kind == "variance" for p in model.parameters.values()):
            raise ConfigError("StructuralForecasterConfig.components: none of them is random; add an Irregular")

    @property
    def d_covariates(self) -> int:
        """Known over the horizon too: what a Regression among the components reads."""
        return sum(one.d_covariates for one in self.components if isinstance(one, Regression))

    def build(self) -> StructuralForecaster:
        return StructuralForecaster(self)


class StructuralForecaster(Model):
    """Reads a history with a Kalman filter and forecasts from its last state; see :class:`Structural`.

    Shapes:  as a :class:`~statewise.models.forecaster.Forecaster`; everything is computed in float64. The state is a
             GaussianState, mean (batch, d_target, n) and factor (batch, d_target, n, n).
    Cost:    of a filter with n states over the history and the horizon, for each target.
    Errors:  InputError for shapes that disagree, covariates that are missing or not finite.
    """

    config: StructuralForecasterConfig

    def __init__(self, config: StructuralForecasterConfig) -> None:
        super().__init__()
        self.config = config
        self.structural = Structural(config.components)
        self.layers = nn.ModuleList()
        self.free = nn.Parameter(torch.empty(config.d_target * self.structural.n_parameters, dtype=torch.float64))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Nothing is drawn: the search begins from what the data say."""
        self._refuse_if_frozen("cannot draw its parameters again")
        nn.init.zeros_(self.free)

    @property
    def parameters_by_name(self) -> dict[str, Tensor]:
        """ "level.variance" and the like, (d_target,) each, or (d_target, order)."""
        return self.natural(self.free.unflatten(0, (self.config.d_target, -1)))

    def natural(self, free: Tensor) -> dict[str, Tensor]:
        return self.structural.natural(free, free.new_full((len(free),), self.config.scale))

    def initial_state(
        self, batch: int, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> GaussianState:
        """The diffuse prior. ``dtype`` is float64 whatever is asked for: less does not hold it."""
        model = self._model(self._kappa(), None)
        prior = model.initial_state(self.config.d_target)
        parts = [m.detach().expand(batch, *m.shape).to(self.free.device if device is None else device) for m in prior]
        return GaussianState(*parts)

    def forward(
        self,
        history: Tensor,
        state: GaussianState | None = None,
        *,
        covariates: Tensor | None = None,
        future_covariates: Tensor | None = None,
        lengths: Tensor | None = None,
        steps: int | None = None,
    ) -> tuple[Tensor, GaussianState | None]:
        """``steps``: how many to forecast, with as many ``future_covariates``: any number; None: the horizon."""
        steps = self.config.horizon if steps is None else steps
        require_least(InputError, steps=(steps, 1))
        both = self._check(history, state, covariates, future_covariates, steps)
        (batch, length), d = history.shape[:2], self.config.d_target
        y = history.to(self.free).transpose(1, 2).reshape(batch * d, length, 1)
        model = self._model(self._kappa(), None if both is None else both.repeat_interleave(d, 0), batch)
        begin = model.initial_state(len(y)) if state is None else GaussianState(*[m.flatten(0, 1) for m in state])
        _, after = model[:length].filter(y, begin, lengths=None if lengths is None else lengths.repeat_interleave(d))
        assert after is not None
        found = model[length:].forecast(after, steps).observations
        mean, deviation = (
            m.unflatten(0, (batch, d))[..., 0].transpose(1, 2) for m in (found.mean, found.variance.sqrt())
        )
        forecasts = torch.stack([mean + z * deviation for z in self._normal_quantiles()], -1)
        if state is None:
            return forecasts, None
        return forecasts, GaussianState(*[m.unflatten(0, (batch, d)) for m in after])

    def scaled_forecasts(
        self,
        history: Tensor,
        state: GaussianState | None,
        covariates: Tensor | None,
        future_covariates: Tensor | None,
        lengths: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, GaussianState | None]:
        """As of a Forecaster: forecasts in units of ``config.scale``, relative to 0."""
        found, state = self(history, state, covariates=covariates, future_covariates=future_covariates, lengths=lengths)
        scale = found.new_full((1, 1, 1, 1), self.config.scale)
        return found / scale, torch.zeros_like(scale), scale, state

    def scaled_losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """As of a Forecaster."""
        return quantile_losses(outputs, targets, self.config.quantiles)

    def series(self, values: Tensor, covariates: Tensor | None) -> Series:
        """What :meth:`log_likelihood` reads, whatever the parameters are.

        Shapes:  values: (n_series, length, d_target), NaN where missing; covariates: (n_series, length, d_covariates)
        """
        d = self.config.d_target
        y = values.to(self.free).transpose(1, 2).reshape(len(values) * d, -1, 1)
        both = None if covariates is None or not self.config.d_covariates else covariates.repeat_interleave(d, 0)
        return self.structural.looked_at(self.structural.series(y, both))

    def log_likelihood(self, free: Tensor, series: Series) -> Tensor:
        """(d_target,): of all series together, for free numbers (d_target, k)."""
        d = self.config.d_target
        n_series = len(series.y) // d
        natural = {name: value.repeat(n_series, *[1] * (value.ndim - 1)) for name, value in self.natural(free).items()}
        return self.structural.score(natural, series).unflatten(0, (n_series, d)).sum(0)

    def _model(self, kappa: Tensor, covariates: Tensor | None, n: int = 1) -> LinearGaussian:
        """For ``n`` rows of each target; of one for all, where there is one target."""
        natural = self.parameters_by_name
        if self.config.d_target > 1:
            natural = {name: value.repeat(n, *[1] * (value.ndim - 1)) for name, value in natural.items()}
            kappa = kappa.expand(n * self.config.d_target, -1)
        blocks = self.structural.blocks(natural, kappa)
        if covariates is None and self.config.d_covariates:
            covariates = kappa.new_zeros(1, 1, self.config.d_covariates)
        return self.structural.assemble(blocks, Series(kappa, covariates, None, kappa), natural)

    def _kappa(self) -> Tensor:
        one = DIFFUSE * (_FAR * self.config.scale) ** 2
        return self.free.new_full((1, self.structural.n_states), one)

    def _normal_quantiles(self) -> list[float]:
        """Standard deviations from the mean."""
        if self.config.quantiles is None:
            return [0.0]
        q = torch.tensor(self.config.quantiles, dtype=torch.float64)
        return [float(z) for z in math.sqrt(2) * torch.erfinv(2 * q - 1)]

    def _check(self, history: Any, state: Any, covariates: Any, future_covariates: Any, steps: int) -> Tensor | None:
        """The covariates of the past and of the horizon, one after the other."""
        config = self.config
        if not isinstance(history, Tensor) or history.ndim != 3 or history.shape[-1] != config.d_target:
            got = tuple(history.shape) if isinstance(history, Tensor) else type(history).__name__
            raise InputError(f"history must be a tensor of shape (batch, length, {config.d_target}), got {got}")
        if not history.is_floating_point():
            raise InputError(f"history must be real, with NaN in its gaps, got {history.dtype}; use history.float()")
        n, d = self.structural.n_states, config.d_target
        if state is not None:
            if not isinstance(state, GaussianState):
                raise InputError(
                    f"state must be a GaussianState or None, got {type(state).__name__}; begin with "
                    "model.initial_state(batch)"
                )
            shape = GaussianState(leaf(d, n), leaf(d, n, n))
            check_state("StructuralForecaster", state, shape, len(history), history.device)
        parts = []
        for name, value, length in (
            ("covariates", covariates, history.shape[1]),
            ("future_covariates", future_covariates, steps),
        ):
            if value is None and not config.d_covariates:
                continue
            wanted = (len(history), length, config.d_covariates)
            if not isinstance(value, Tensor) or value.shape != wanted:
                given = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise InputError(f"{name} must be a tensor of shape {wanted}, got {given}")
            if not bool(value.isfinite().all()):
                raise InputError(f"the {name} hold NaN or infinity; fill them first; only the history may have gaps")
            parts.append(value.to(self.free))
        return torch.cat(parts, 1) if config.d_covariates else None
