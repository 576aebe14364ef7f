"""Forecasting: the next steps of time series, from those before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from statewise.data.base import DataConfig
from statewise.data.series import SeriesDataConfig, open_series
from statewise.data.series_batches import SeriesBatch, SeriesBatches
from statewise.data.splits import SPLITS
from statewise.errors import ConfigError
from statewise.evaluate.forecasting import evaluate_forecasts, model_fields, plot_forecasts
from statewise.models.forecaster import Forecaster, ForecasterConfig
from statewise.train.config import RunConfig
from statewise.train.plotting import require_plot
from statewise.train.tasks.base import Table, Task


class ForecastingTask(Task[Forecaster, SeriesBatch]):
    """Pinball loss of the quantiles, or squared error of the mean, in units of each window's own scale."""

    models = (ForecasterConfig,)
    unit = "windows"
    noun = "series"
    metric = "loss"
    higher_is_better = False
    evaluate_options = ("stride",)
    evaluation_line = "loss {loss:.4f}, MAE {mae:.4g}"
    plot_of = "forecasts that follow one another over the split, with the interval between the outer quantiles"

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        self.data = open_series(cast(SeriesDataConfig, run.data))
        self.check_model()

    def check_model(self) -> None:
        """Errors: ConfigError for a model that does not fit the series."""
        for name, needed in model_fields(self.data).items():
            if (given := getattr(self.run.model, name)) != needed:
                raise ConfigError(
                    f"model.{name}={given}, but the series need {name}={needed}; set model.{name}={needed}"
                )

    @classmethod
    def model_fields(cls, data: DataConfig) -> Mapping[str, Any]:
        return model_fields(open_series(cast(SeriesDataConfig, data)))

    @property
    def fingerprint(self) -> str:
        return self.data.fingerprint

    def describe(self) -> str:
        return self.data.describe()

    def sizes(self) -> dict[str, int]:
        present = [name for name in SPLITS if self.data.span(name)[0] < self.data.span(name)[1]]
        return {name: len(self.data.split(name).origins) for name in present}

    @cached_property
    def batches(self) -> SeriesBatches:
        train = self.run.train
        return SeriesBatches(self.data.split("train"), train.batch_size, train.seed, train.drop_last)

    def loss(self, model: Forecaster, batch: SeriesBatch, state: Any) -> tuple[Tensor, Any]:
        return model.loss(
            batch.history,
            batch.targets,
            state,
            covariates=batch.covariates,
            future_covariates=batch.future_covariates,
            lengths=batch.lengths,
        )

    def n_targets(self, batch: SeriesBatch) -> int:
        return int((~batch.targets.isnan()).sum())

    def evaluate(
        self, model: Forecaster, split: str, *, max_items: int | None = None, stride: int = 1, **options: Any
    ) -> dict[str, Any]:
        """``stride``: score every so many-th window. What there is not, as the coverage of a mean, is not in it."""
        result = asdict(
            evaluate_forecasts(model, self.data.split(split), stride=stride, max_windows=max_items, **options)
        )
        own, baselines = result.pop("model"), result.pop("baselines")
        result[self.unit] = result.pop("n_windows")
        record = {name: value for name, value in {**own, **result}.items() if value is not None}
        return {**record, "baselines": {name: _there(scores) for name, scores in baselines.items()}}

    def tables(self, record: Mapping[str, Any]) -> list[Table]:
        rows = [("model", record), *record["baselines"].items()]
        notes = [f"{record['windows']:,} windows, {record['n_values']:,} known values, in units of the data"]
        if "skill" in record:
            notes.append(
                f"the model's error is {abs(record['skill']):.1%} {_less(record['skill'])} than seasonal naive's"
            )
        if "coverage" in record:
            notes.append(f"{record['coverage']:.1%} of the values lie in the interval of {record['nominal']:.0%}")
        return [
            Table(
                "forecasts",
                ("", "MAE", "MSE", "MASE"),
                [(name, *(f"{s[key]:.4g}" if key in s else "-" for key in ("mae", "mse", "mase"))) for name, s in rows],
                tuple(notes),
            )
        ]

    def plot(self, path: Path, *, model: Forecaster, split: str, record: Mapping[str, Any]) -> None:
        require_plot(path)
        plot_forecasts(model, self.data.split(split), path)


def _there(scores: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if value is not None}


def _less(skill: float) -> str:
    return "smaller" if skill >= 0 else "larger"
