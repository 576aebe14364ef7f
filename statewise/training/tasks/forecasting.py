"""Forecasting: the next steps of time series, from those before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from statewise.checkpoints import read_config, resolve
from statewise.data.base import DataConfig
from statewise.data.series import SeriesDataConfig, open_series
from statewise.data.series_batches import SeriesBatch, SeriesBatches
from statewise.data.splits import SPLITS
from statewise.errors import CheckpointError, ConfigError
from statewise.evaluate.forecast_plots import plot_forecasts
from statewise.evaluate.forecasting import evaluate_forecasts, model_fields
from statewise.models.base import ModelConfig
from statewise.models.forecaster import Forecaster, ForecasterConfig
from statewise.models.quantiles import QuantileConfig
from statewise.models.series_input import SeriesInputConfig
from statewise.plots.style import require_plot
from statewise.training.config import RunConfig
from statewise.training.tasks.base import Table, Task


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
        model = cast(QuantileConfig, run.model)
        self.data = open_series(cast(SeriesDataConfig, run.data), model.series or _of_initial(run.train.initial))
        self.check_model()
        self.run = replace(run, model=replace(model, series=self.data.input))  # to read tables when it is trained

    def go_on_from(self, saved: ModelConfig) -> None:
        """What its checkpoint says of the data; one of 0.1.0 says nothing, and these data are those that it read."""
        model = cast(QuantileConfig, self.run.model)
        self.run = replace(self.run, model=replace(model, series=getattr(saved, "series", None) or model.series))

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


def _of_initial(source: str | None) -> SeriesInputConfig | None:
    """What the model says of its data whose parameters a run begins with; None where there is none any more."""
    if source is None:
        return None
    try:
        return getattr(read_config(resolve(source)).model, "series", None)
    except CheckpointError:  # a run that is resumed does without; a new one is told when it reads the parameters
        return None


def _there(scores: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in scores.items() if value is not None}


def _less(skill: float) -> str:
    return "smaller" if skill >= 0 else "larger"
