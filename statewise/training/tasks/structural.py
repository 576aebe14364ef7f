"""Structural time series fitted by their likelihood, and scored as any other forecaster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from statewise.data.base import DataConfig
from statewise.data.series import SeriesData, SeriesDataConfig, open_series
from statewise.errors import ConfigError
from statewise.estimation.search_rows import climb
from statewise.estimation.structural.fit import starting_points
from statewise.models.structural import StructuralForecaster, StructuralForecasterConfig
from statewise.training.config import RunConfig
from statewise.training.tasks.forecasting import ForecastingTask

N_ITERATIONS = 15  # of the search, in one step of training
TOLERANCE = 1e-9  # of the log-likelihood, for each known number


class WholeSeries(NamedTuple):
    """The training span of all series, which end together: values (n_series, length, d_target), NaN where missing;
    covariates (n_series, length, d_covariates)."""

    values: Tensor
    covariates: Tensor


class WholeSeriesBatches:
    """Every step reads all of them."""

    steps_per_epoch = 1

    def __init__(self, data: SeriesData) -> None:
        end = data.span("train")[1]
        values = np.full((len(data.tables), end, data.d_target), np.nan)
        covariates = np.zeros((len(data.tables), end, data.d_covariates))
        for number, table in enumerate(data.tables):
            own = table.index < end
            values[number, table.index[own]] = table.values[own]
            covariates[number, table.index[own]] = table.covariates[own, : data.d_covariates]
        self._all = WholeSeries(torch.from_numpy(values), torch.from_numpy(covariates))

    def __getitem__(self, step: int) -> WholeSeries:
        return self._all


class StructuralTask(ForecastingTask):
    """The log-likelihood of the training span. A step is a search of its own, of ``N_ITERATIONS`` iterations of BFGS
    from the parameters as they are, the first one from the best of a list of points; it takes no learning rate.
    """

    models = (StructuralForecasterConfig,)  # type: ignore[assignment]
    searches = True
    progress_line = "-log p {loss:.4f} a value"

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        for name in ("optimizer", "schedule"):
            given = getattr(run.train, name)
            if given != type(given)():
                raise ConfigError(
                    f"train.{name} is for steps along a gradient, and a structural model's are searches of its "
                    f"likelihood, which choose their own; leave train.{name} out"
                )
        for name, wanted in (("accumulation", 1), ("precision", "float32"), ("compile", False)):
            if getattr(run.train, name) != wanted:
                raise ConfigError(
                    f"train.{name}={getattr(run.train, name)!r}: a structural model is fitted to whole series, in "
                    f"float64; leave train.{name} out"
                )

    def check_model(self) -> None:
        model = cast(StructuralForecasterConfig, self.run.model)
        if self.data.d_past_covariates:
            raise ConfigError(
                "data.past_covariates are not known over the horizon, and a structural model forecasts from those "
                "that are; leave them out"
            )
        if model.d_covariates != self.data.d_covariates:
            raise ConfigError(
                f"the series have {self.data.d_covariates} covariates, and model.components a Regression of "
                f"{model.d_covariates}; make them equal, or leave data.calendar and data.covariates out"
            )
        for name, needed in (("d_target", self.data.d_target), ("horizon", self.data.config.horizon)):
            if (given := getattr(model, name)) != needed:
                raise ConfigError(
                    f"model.{name}={given}, but the series need {name}={needed}; set model.{name}={needed}"
                )

    @classmethod
    def model_fields(cls, data: DataConfig) -> Mapping[str, Any]:
        series = open_series(cast(SeriesDataConfig, data))
        values = WholeSeriesBatches(series)[0].values
        changes = (values[:, 1:] - values[:, :-1]).flatten()
        changes = changes[~changes.isnan()]
        size = float(changes.square().mean().sqrt()) if len(changes) else 1.0
        return {
            "d_target": series.d_target,
            "horizon": series.config.horizon,
            "scale": float(f"{size or 1.0:.2g}"),
        }

    @property
    def batches(self) -> WholeSeriesBatches:  # type: ignore[override]
        return WholeSeriesBatches(self.data)

    def units_in(self, n_batches: int) -> int:
        return n_batches * self._n_train

    def loss(self, model: StructuralForecaster, batch: WholeSeries, state: Any) -> tuple[Tensor, Any]:  # type: ignore[override]
        free = model.free.unflatten(0, (model.config.d_target, -1))
        likelihood = model.log_likelihood(free, model.series(batch.values, batch.covariates)).sum()
        return -likelihood / self.n_targets(batch), state

    def n_targets(self, batch: WholeSeries) -> int:  # type: ignore[override]
        return int((~batch.values.isnan()).sum())

    def search(  # type: ignore[override]
        self, model: StructuralForecaster, batch: WholeSeries, number: int
    ) -> tuple[float, float]:
        series = model.series(batch.values, batch.covariates)

        def value(free: Tensor, rows: Tensor) -> Tensor:
            whole = model.free.detach().unflatten(0, (model.config.d_target, -1)).index_copy(0, rows, free)
            return model.log_likelihood(whole, series)[rows]

        def score(free: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
            leaf = free.detach().clone().requires_grad_()
            with torch.enable_grad():
                values = value(leaf, rows)
                (gradient,) = torch.autograd.grad(values.sum(), leaf)
            return values.detach(), gradient

        d = model.config.d_target
        rows, begin = torch.arange(d), model.free.detach().unflatten(0, (d, -1))
        if not number:
            points = starting_points(model.structural, begin)
            with torch.no_grad():
                values = torch.stack([value(point.expand(d, -1), rows) for point in points])
            begin = points[values.nan_to_num(nan=-torch.inf).argmax(0)]
        n_known = (~batch.values.isnan()).sum((0, 1)).to(begin)
        found = climb(score, begin, TOLERANCE * n_known, N_ITERATIONS)
        _, gradient = score(found.point, rows)
        with torch.no_grad():
            model.free.copy_(found.point.flatten())
        return -float(found.value.sum() / n_known.sum()), float(gradient.norm() / n_known.sum())
