"""How well a model forecasts: errors over rolling origins, compared with forecasts that need no model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from statewise.data.series import SeriesData, SeriesSplit
from statewise.data.series_batches import SeriesBatch, collate
from statewise.data.series_windows import Origin
from statewise.errors import InputError, NotFiniteError, require_least
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.forecaster import Forecaster
from statewise.models.quantiles import scaled_targets
from statewise.models.structural import StructuralForecaster

AnyForecaster = Forecaster | StructuralForecaster

DRIFT_SEASONS = 10  # that the drift is the mean of; on co2 it forecasts better than 1, 3 or all of them


@dataclass(frozen=True, kw_only=True)
class ForecastScores:
    """Errors of one forecaster over all known values.

    mae, mse:  mean absolute and mean squared error of the point forecast, in the units of the data
    mase:      mean absolute scaled error: each error divided by the seasonal-naive forecast's mean absolute error in
               the training span of its series; below 1 is better than seasonal-naive was there. None if that error is 0
    """

    mae: float
    mse: float
    mase: float | None


@dataclass(frozen=True, kw_only=True)
class ForecastEvaluation:
    """What :func:`evaluate_forecasts` found.

    n_windows, n_values: origins, and known values that were forecast
    model:        the scores of the model's point forecast: the quantile nearest to the median, or the mean
    baselines:    the scores of "seasonal naive", "seasonal naive with drift" and "last value" on the same values
    skill:        1 - mae / mae of seasonal naive: 0 is as good, 1 means no error; None if seasonal naive has no error
    loss:         what training minimises: the pinball loss or the squared error, in units of each row's scale
    pinball:      mean pinball loss over values and quantiles; None for a model of the mean
    coverage:     the share of values between the lowest and the highest quantile, ends included; None below 2 quantiles
    nominal:      what that share should be: the difference of those two quantiles
    seconds:      of the model's forecasts, wall time
    """

    n_windows: int
    n_values: int
    model: ForecastScores
    baselines: dict[str, ForecastScores]
    skill: float | None
    loss: float
    pinball: float | None
    coverage: float | None
    nominal: float | None
    seconds: float


def evaluate_forecasts(
    model: AnyForecaster,
    split: SeriesSplit,
    *,
    stride: int = 1,
    max_windows: int | None = None,
    batch_size: int = 64,
    progress: Callable[[int, int], None] | None = None,
) -> ForecastEvaluation:
    """Forecast from every ``stride``-th origin of a split, or from ``max_windows`` of them, drawn the same every time,
    and score the forecasts.

    At each origin the model reads the history of its window, as in training. The baselines read all of the series
    before the origin. A value that is forecast from several origins counts once for each.

    Numerics: the layers in their own dtype, everything else in float64.
    Errors:   InputError for a model that does not fit the data and options out of range; NotFiniteError.
    """
    check_fits(model, split.data)
    require_least(InputError, stride=(stride, 1), max_windows=(max_windows, 1), batch_size=(batch_size, 1))
    origins = _some(split.every(stride), max_windows)
    targets = np.stack([split.window(origin).targets for origin in origins])
    begin = time.perf_counter()
    forecasts, loss = _forecasts(model, split, origins, batch_size, progress)
    seconds = time.perf_counter() - begin
    if not np.isfinite(forecasts).all():
        raise NotFiniteError("the model's forecasts are not finite: its parameters hold NaN or infinity")

    scale = split.data.naive_errors[[origin.series for origin in origins]][:, None]  # (windows, 1, d_target)
    scores = score_forecasts(forecasts[..., model.config.point], targets, scale)
    baselines = {
        name: score_forecasts(np.stack([rule(split.data, origin) for origin in origins]), targets, scale)
        for name, rule in BASELINES.items()
    }
    known = ~np.isnan(targets)
    naive = baselines["seasonal naive"].mae
    quantiles = model.config.quantiles
    pinball = coverage = nominal = None
    if quantiles is not None:
        error = (targets[..., None] - forecasts)[known]
        pinball = float(np.maximum(np.array(quantiles) * error, (np.array(quantiles) - 1) * error).mean())
        if len(quantiles) > 1:
            inside = (forecasts[..., 0] <= targets) & (targets <= forecasts[..., -1])
            coverage, nominal = float(inside[known].mean()), quantiles[-1] - quantiles[0]
    return ForecastEvaluation(
        n_windows=len(origins),
        n_values=int(known.sum()),
        model=scores,
        baselines=baselines,
        skill=1 - scores.mae / naive if naive else None,
        loss=loss,
        pinball=pinball,
        coverage=coverage,
        nominal=nominal,
        seconds=seconds,
    )


def _some(origins: Sequence[Origin], most: int | None) -> Sequence[Origin]:
    """Not the first ones: these may all be of one series."""
    if most is None or most >= len(origins):
        return origins
    return [origins[i] for i in np.sort(np.random.default_rng(0).choice(len(origins), most, replace=False))]


def forecast(
    model: AnyForecaster, split: SeriesSplit, origins: Sequence[Origin], *, batch_size: int = 64
) -> np.ndarray:
    """The model's forecasts at some origins of a split, float64 (origins, horizon, d_target, n_quantiles)."""
    return _forecasts(model, split, origins, batch_size, None)[0]


def _forecasts(
    model: AnyForecaster,
    split: SeriesSplit,
    origins: Sequence[Origin],
    batch_size: int,
    progress: Callable[[int, int], None] | None,
) -> tuple[np.ndarray, float]:
    """The forecasts, and the mean loss."""
    parameter = next(model.parameters())
    found, loss, n_known = [], 0.0, 0
    with evaluation_mode(model), torch.no_grad():
        for begin in range(0, len(origins), batch_size):
            batch = SeriesBatch(*(x.to(parameter.device) for x in collate(split, origins[begin : begin + batch_size])))
            outputs, anchor, scale, _ = model.scaled_forecasts(
                batch.history,
                None,
                batch.covariates.to(parameter.dtype),
                batch.future_covariates.to(parameter.dtype),
                batch.lengths,
            )
            targets = scaled_targets(batch.targets, anchor, scale).to(outputs.dtype)
            loss += float(model.scaled_losses(outputs, targets).double().sum())
            n_known += int((~batch.targets.isnan()).sum()) * model.config.n_quantiles
            found.append((anchor + scale * outputs).cpu().numpy())
            if progress is not None:
                progress(min(begin + batch_size, len(origins)), len(origins))
    return np.concatenate(found), loss / n_known


def check_fits(model: AnyForecaster, data: SeriesData) -> None:
    """InputError unless the model reads and forecasts what the data have."""
    for name, needed in model_fields(data).items():
        given = getattr(model.config, name)
        if given != needed:
            raise InputError(f"the model has {name}={given}, but the data need {name}={needed}")


def model_fields(data: SeriesData) -> dict[str, int]:
    """The fields of a ForecasterConfig that follow from the data."""
    return {
        "d_target": data.d_target,
        "horizon": data.config.horizon,
        "d_covariates": data.d_covariates,
        "d_past_covariates": data.d_past_covariates,
    }


def score_forecasts(forecasts: np.ndarray, targets: np.ndarray, scale: np.ndarray) -> ForecastScores:
    """Shapes: (windows, horizon, d_target) each, targets NaN where unknown, scale broadcast, NaN where there is none.

    Source:  MASE: Hyndman & Koehler 2006, Int. J. Forecasting 22(4), sec. 3.

    >>> score_forecasts(np.array([[[1.0], [2.0]]]), np.array([[[2.0], [5.0]]]), np.array([[[2.0]]]))
    ForecastScores(mae=2.0, mse=5.0, mase=1.0)
    """
    error = np.abs(forecasts - targets)
    known = ~np.isnan(error)
    scaled = error / np.broadcast_to(scale, error.shape)
    scaled = scaled[~np.isnan(scaled)]
    return ForecastScores(
        mae=float(error[known].mean()),
        mse=float(np.square(error[known]).mean()),
        mase=float(scaled.mean()) if len(scaled) else None,
    )


def last_value(data: SeriesData, origin: Origin) -> np.ndarray:
    """(horizon, d_target): the last value known before the origin; NaN where there is none."""
    past = _filled(data.tables[origin.series].values[: origin.row], 1)
    return np.repeat(past[-1:], data.config.horizon, 0)


def seasonal_naive(data: SeriesData, origin: Origin) -> np.ndarray:
    """(horizon, d_target): the value one season before, or the last season's before the origin where that is not known
    yet; where it is missing, that of the season before it; without any, the last value.
    """
    past = _filled(data.tables[origin.series].values[: origin.row], data.season)
    if len(past) < data.season:  # the first season is not over
        return last_value(data, origin)
    season = past[-data.season :][np.arange(data.config.horizon) % data.season]
    return np.where(np.isnan(season), last_value(data, origin), season)


def seasonal_naive_with_drift(data: SeriesData, origin: Origin) -> np.ndarray:
    """(horizon, d_target): seasonal-naive, plus for each season ahead the mean change over a season, in the last ten
    seasons before the origin or as many as there are.
    """
    season = data.season
    recent = data.tables[origin.series].values[: origin.row][-(DRIFT_SEASONS + 1) * season :]
    changes = recent[season:] - recent[:-season]
    seen = ~np.isnan(changes)
    drift = np.where(seen, changes, 0).sum(0) / np.maximum(seen.sum(0), 1)
    ahead = 1 + np.arange(data.config.horizon) // min(season, data.config.horizon)  # any number
    return seasonal_naive(data, origin) + ahead[:, None] * drift


BASELINES: dict[str, Callable[[SeriesData, Origin], np.ndarray]] = {
    "seasonal naive": seasonal_naive,
    "seasonal naive with drift": seasonal_naive_with_drift,
    "last value": last_value,
}


def _filled(past: np.ndarray, season: int) -> np.ndarray:
    """Its end, each missing value taken from a season before, and from the one before that, as far as there are any."""
    if season >= len(past):  # nothing has a season before it
        return past
    padding = -len(past) % season
    seasons = np.pad(past, ((padding, 0), (0, 0)), constant_values=np.nan).reshape(-1, season, past.shape[1])
    rows = np.where(np.isnan(seasons), 0, np.arange(len(seasons))[:, None, None])
    latest = np.maximum.accumulate(rows, 0)
    return np.take_along_axis(seasons, latest, 0).reshape(-1, past.shape[1])[padding:]
