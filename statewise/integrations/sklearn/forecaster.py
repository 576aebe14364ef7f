"""A forecaster of series that works like scikit-learn's estimators."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from statewise.configuration import TYPE_KEY, to_dict
from statewise.errors import InputError, importing
from statewise.integrations.sklearn.layers import layers_for
from statewise.integrations.sklearn.training import on_the_cpu, trained_model
from statewise.predict.forecasts import Forecasts
from statewise.predict.predictor import predictor

TIME, SERIES = "time", "series"


class StatewiseForecaster(BaseEstimator):
    """The next steps of series, with quantiles. One model learns all series of ``fit``.

    y is (length,), (length, d_target) for series that belong together, a pandas Series or DataFrame with times as its
    index, or a list of several of these, of any length. NaN is a gap.

    horizon:   how many steps are forecast at once; more are forecast block by block. None: a season, or chosen for you
    season:    after how many steps the series repeats, such as 12 for months; None: from the times
    history:   how many steps are read; None: chosen for you
    quantiles: of the forecasts, 0.5 among them
    mixer, d_model, n_layers, dropout, lr, batch_size, random_state, device, verbose, out: as for StatewiseClassifier
    steps:     of the training; None: chosen for you

    After ``fit``: ``model_``, and ``frame_``, the table that was learned.

    Needs pandas. For covariates train on a table instead: ``sw.train("forecaster", table, ...)``.

    >>> import numpy as np, statewise as sw
    >>> y = 100 + 10 * np.sin(np.arange(120) * 2 * np.pi / 12)
    >>> forecaster = sw.StatewiseForecaster(horizon=12, season=12, d_model=8, n_layers=1, steps=60, random_state=0)
    >>> _ = forecaster.fit(y)
    >>> forecaster.predict(6).shape, forecaster.predict_interval(24).shape
    ((6,), (24, 2))
    """

    model_: Any
    frame_: Any

    def __init__(
        self,
        *,
        horizon: int | None = None,
        season: int | None = None,
        history: int | None = None,
        quantiles: tuple[float, ...] = (0.1, 0.5, 0.9),
        mixer: Any = "s4d",
        d_model: int = 32,
        n_layers: int = 2,
        dropout: float = 0.1,
        steps: int | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool = False,
        out: Any = None,
    ) -> None:
        self.horizon = horizon
        self.season = season
        self.history = history
        self.quantiles = quantiles
        self.mixer = mixer
        self.d_model = d_model
        self.n_layers = n_layers
        self.dropout = dropout
        self.steps = steps
        self.lr = lr
        self.batch_size = batch_size
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.out = out

    def fit(self, y: Any) -> Self:
        """Trains on all of y, up to its end.

        Errors:  ValueError for another shape, series that are too short, and times that are not evenly spaced.
        """
        frame, targets, several, flat = as_table(y)
        layers = layers_for(self.mixer, self.d_model, self.n_layers, self.dropout)
        settings = {
            "data.season": self.season,
            "data.history": self.history,
            "data.validation_fraction": 0.0,
            "data.test_fraction": 0.0,
            "data.series": SERIES if several else None,
            "model.d_model": int(self.d_model),
            "model.layers": [{TYPE_KEY: "BlockConfig", **to_dict(layer)} for layer in layers],
            "model.dropout": self.dropout,
            "model.quantiles": list(self.quantiles),
        }
        self.model_ = trained_model(
            "forecaster",
            frame,
            out=self.out,
            random_state=self.random_state,
            device=self.device,
            time=TIME,
            targets=targets,
            horizon=self.horizon,
            steps=self.steps,
            lr=self.lr,
            batch_size=self.batch_size,
            progress=bool(self.verbose),
            set={name: value for name, value in settings.items() if value is not None},
        )
        self.frame_, self._several, self._flat = frame, several, flat
        return self

    def predict(self, steps: int | None = None, y: Any = None) -> np.ndarray:
        """The medians of the steps after ``fit``'s series, or after y, which must have the same targets.

        Shapes:  (steps,) or (steps, d_target), as y was; of a list of series (n_series, steps, ...)
        """
        return self._shaped(self.forecast(steps, y).point, y)

    def predict_interval(self, steps: int | None = None, y: Any = None) -> np.ndarray:
        """The lowest and highest of ``quantiles``, such as 0.1 and 0.9: about 80 % of the values should be between
        them.

        Shapes:  as of ``predict``, and (..., 2)
        """
        if len(self.quantiles) < 2:
            raise InputError(f"quantiles={self.quantiles} has no lowest and highest one; fit with (0.1, 0.5, 0.9)")
        values = self.forecast(steps, y).values
        return np.stack([self._shaped(values[..., place], y) for place in (0, -1)], -1)

    def forecast(self, steps: int | None = None, y: Any = None) -> Forecasts:
        """The whole forecast: times, quantiles, ``to_frame()`` and ``plot(path)``.

        steps:  None: the horizon
        """
        check_is_fitted(self, "model_")
        frame = self.frame_
        if y is not None:
            frame, targets, several, _ = as_table(y)
            expected = self.model_.config.series.targets
            if targets != expected or (several and not self._several):
                raise InputError(
                    f"y has {'several series' if several else 'one series'} of {', '.join(targets)}; expected "
                    f"{'any number' if self._several else 'one'} of {', '.join(expected)}, as in fit"
                )
            if self._several and not several:
                frame.insert(1, SERIES, "0")
        return predictor(self.model_).forecast(frame, steps)

    def _shaped(self, values: np.ndarray, y: Any) -> np.ndarray:
        """(n_series, steps, d_target), without the axes that y did not have."""
        several, flat = (self._several, self._flat) if y is None else as_table(y)[2:]
        values = values[..., 0] if flat else values
        return values if several else values[0]

    def __getstate__(self) -> Any:
        return on_the_cpu(dict(super().__getstate__()))


def as_table(y: Any) -> tuple[Any, tuple[str, ...], bool, bool]:
    """Series as a DataFrame: a column of times, of names where there are several, and of each target.

    Returns: the table, the targets' names, whether y is a list of series, and whether each is (length,)
    Errors:  InputError for another shape, series that do not go together, and without pandas.
    """
    with importing("pandas", "estimators", "a StatewiseForecaster needs"):
        import pandas
    several = isinstance(y, (list, tuple)) and any(np.ndim(one) for one in y)
    parts = []
    flat = None
    for number, one in enumerate(y if several else [y]):
        if not isinstance(one, (pandas.Series, pandas.DataFrame)):
            values = np.asarray(one, np.float64)
            if values.ndim not in (1, 2) or not values.size:
                raise InputError(f"a series has the shape {values.shape}; expected (length,) or (length, d_target)")
            one = pandas.Series(values) if values.ndim == 1 else pandas.DataFrame(values)
        is_flat = isinstance(one, pandas.Series)
        if flat not in (None, is_flat):
            raise InputError(f"series {number} is {'(length,)' if is_flat else '(length, d_target)'}, the first is not")
        flat = is_flat
        one = one.to_frame("value") if is_flat else one.set_axis(_names(one.columns), axis=1)
        index = one.index.to_timestamp() if isinstance(one.index, pandas.PeriodIndex) else one.index
        one = one.reset_index(drop=True)
        one.insert(0, TIME, index)
        if several:
            one.insert(1, SERIES, f"{number}")
        parts.append(one)
    columns = {tuple(part.columns) for part in parts}
    if len(columns) > 1:
        raise InputError(
            f"the series have the columns {' and '.join(', '.join(names) for names in columns)}; expected the same"
        )
    targets = tuple(name for name in parts[0].columns if name not in (TIME, SERIES))
    return pandas.concat(parts, ignore_index=True), targets, several, bool(flat)


def _names(columns: Any) -> list[str]:
    """The names of targets; numbered columns are "value 0" and so on, and none has the name of a column of ours."""
    return [f"value {name}" if not isinstance(name, str) or name in (TIME, SERIES) else name for name in columns]
