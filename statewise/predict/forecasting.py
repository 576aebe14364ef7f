"""The forecasts of a :class:`~statewise.predict.predictor.Predictor`, of whatever form the series come in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from statewise.data.progress import Progress
from statewise.data.series_ahead import Past, pasts_of_arrays, read_pasts
from statewise.errors import InputError, require_least
from statewise.models.base import Model
from statewise.models.forecaster import Forecaster
from statewise.models.structural import StructuralForecaster
from statewise.predict.ahead import forecast_batches
from statewise.predict.answers import joined
from statewise.predict.forecasts import Forecasts, forecasts_of


class Forecasting:
    """What a predictor does with a forecaster."""

    model: Model

    def forecast(
        self,
        data: Any,
        steps: int | None = None,
        *,
        future: Any = None,
        times: Any = None,
        paths: int = 100,
        seed: int = 0,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Forecasts:
        """What comes after the last known value of each series, from a forecaster.

        data:   a table with the columns of the training data: the path of a text file or of Parquet, or a DataFrame of
                pandas; rows below the last target say what is known ahead. Or values in memory, for a model without
                covariates: (n, length, d_target), (length, d_target) of one series, or a list of series
        steps:  None: the horizon. Beyond it, a direct forecaster continues block by block, along ``paths`` possible
                futures drawn by ``seed``; see :mod:`statewise.predict.ahead`
        future: a table with the covariates of the steps to come, if ``data`` does not have them
        times:  (length,) of values in memory: dates, texts or numbers

        Numerics: a network's layers are in the dtype of its parameters; the rest, and a structural model, in float64.
        Errors:   DataError and InputError, one line: another table than in training, a covariate that is missing.
        """
        pasts = self.pasts(data, steps, future=future, times=times)
        options: dict[str, Any] = {"paths": paths, "seed": seed, "batch_size": batch_size, "progress": progress}
        return joined(list(self.forecasts(pasts, steps, **options)))  # type: ignore[return-value]

    def pasts(self, data: Any, steps: int | None = None, *, future: Any = None, times: Any = None) -> list[Past]:
        """What was given, as series to forecast from. Errors: as :meth:`forecast`."""
        model = self._forecaster()
        config, n_steps = model.config.series, model.config.horizon if steps is None else steps
        require_least(InputError, steps=(n_steps, 1))
        if not (isinstance(data, (str, os.PathLike)) or hasattr(data, "columns") or hasattr(data, "to_frame")):
            if future is not None:
                raise InputError("future is for a table; values in memory have no covariates, so leave it out")
            return pasts_of_arrays(data, config, model.config.d_target, n_steps, times)
        if times is not None:
            raise InputError("times are for values in memory; a table has a column of times, so leave them out")
        if config is None:
            raise InputError(
                "the model does not say which columns it reads: it was not trained here, or by Statewise 0.1.0; "
                "continue its run (statewise train --resume), or give values in memory"
            )
        return read_pasts(data, config, n_steps, future)

    def forecasts(
        self,
        pasts: list[Past],
        steps: int | None = None,
        *,
        paths: int = 100,
        seed: int = 0,
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Iterator[Forecasts]:
        """The forecasts of what :meth:`pasts` gave, some series at a time and in their order."""
        model = self._forecaster()
        config, n_steps = model.config, model.config.horizon if steps is None else steps
        targets = tuple(f"value {i}" for i in range(config.d_target)) if config.d_target > 1 else ("value",)
        targets = targets if config.series is None else config.series.targets
        options: dict[str, Any] = {"paths": paths, "seed": seed, "batch_size": batch_size, "progress": progress}
        for numbers, values in forecast_batches(model, pasts, n_steps, **options):
            yield forecasts_of(pasts, numbers, values, targets, config.quantiles)

    def _forecaster(self) -> Forecaster | StructuralForecaster:
        if not isinstance(self.model, (Forecaster, StructuralForecaster)):
            raise InputError(f"a {type(self.model).__name__} does not forecast; use predict")
        return self.model
