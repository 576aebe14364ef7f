"""A classifier and a regressor of sequences that work like scikit-learn's."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from statewise.integrations.sklearn.layers import layers_for
from statewise.integrations.sklearn.rows import read_rows
from statewise.integrations.sklearn.training import on_the_cpu, trained_model
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.predict.answers import Answers
from statewise.predict.predictor import predictor
from statewise.training.presets.labelled import Size


class SequenceEstimator(BaseEstimator):
    """What :class:`StatewiseClassifier` and :class:`StatewiseRegressor` share.

    X is (n, length), (n, length, channels), or a list of rows of unlike lengths, each (length,) or (length, channels).
    Arrays that are asked about have the length of those of ``fit``, as scikit-learn has it; lists of rows have any.

    mixer:     what mixes along time, by name ("s4d", "mamba2", "attention", ...), or a config of a mixer or a block
    d_model, n_layers, dropout: the size of the model
    epochs, lr, batch_size: of the training; None: what suits the number and the length of the rows
    normalize: "dataset": each channel has mean 0 and variance 1 over the rows of ``fit``; "series": over each row's own
               steps; "none": as it is. It is part of the model, so X is always given raw
    validation_fraction: this share of the rows is held out, and the parameters that did best on it are kept; 0: the
               last ones are
    random_state: of the parameters, the dropout, the order of the rows and what is held out
    device:    "auto" (CUDA where there is one), "cpu" or "cuda"
    verbose:   a progress bar
    out:       a folder, new or empty, that keeps the run: ``statewise evaluate``, ``predict`` and ``export`` take it;
               None: nothing is kept but the estimator

    After ``fit``: ``model_``, a Statewise model for raw data, in evaluation mode, and for arrays ``n_features_in_``,
    the steps of a row.

    Errors:  ValueError from ``fit`` and ``predict``, never from the constructor, as scikit-learn has it.
    """

    model_: Any

    def __init__(
        self,
        *,
        mixer: Any = "s4d",
        d_model: int = 64,
        n_layers: int = 2,
        dropout: float = 0.1,
        epochs: float | None = None,
        lr: float | None = None,
        batch_size: int | None = None,
        normalize: str = "dataset",
        validation_fraction: float = 0.0,
        random_state: Any = None,
        device: str = "auto",
        verbose: bool = False,
        out: Any = None,
    ) -> None:
        self.mixer = mixer
        self.d_model = d_model
        self.n_layers = n_layers
        self.dropout = dropout
        self.epochs = epochs
        self.lr = lr
        self.batch_size = batch_size
        self.normalize = normalize
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.device = device
        self.verbose = verbose
        self.out = out

    def embed(self, X: Any) -> np.ndarray:
        """What the head of the model reads of each row, (n, d_model): features for other estimators."""
        values: np.ndarray = self._ask(X, embeddings=True).values  # type: ignore[attr-defined]
        return values

    def _fit(self, kind: type[SequenceModelConfig], x: np.ndarray, lengths: Any, y: np.ndarray, **fields: Any) -> Self:
        each = np.full(len(x), x.shape[1]) if lengths is None else lengths
        size = Size(len(x), int(each.max()), int(each.min()))
        config = kind(
            d_input=x.shape[2] if x.ndim == 3 else 1,
            layers=tuple(layers_for(self.mixer, self.d_model, self.n_layers, self.dropout, size)),
            d_model=int(self.d_model),
            frame_length=size.frame_length,
            **fields,
        )
        self.model_ = trained_model(
            config,
            (x, y, lengths),
            out=self.out,
            random_state=self.random_state,
            device=self.device,
            epochs=size.epochs if self.epochs is None else self.epochs,
            lr=self.lr,
            batch_size=self.batch_size,
            progress=bool(self.verbose),
            set={
                "data.normalize": self.normalize,
                "data.validation_fraction": self.validation_fraction,
                "data.test_fraction": 0.0,
                "train.drop_last": False,
            },
        )
        return self

    def _ask(self, X: Any, *, embeddings: bool = False) -> Answers:
        check_is_fitted(self, "model_")
        x, _, _ = read_rows(self, X)
        asked = predictor(self.model_)
        return asked.embed(x) if embeddings else asked.predict(x)

    def __getstate__(self) -> Any:
        return on_the_cpu(dict(super().__getstate__()))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class StatewiseClassifier(ClassifierMixin, SequenceEstimator):
    """Classes of sequences. The parameters are those of :class:`SequenceEstimator`.

    After ``fit`` also ``classes_``.

    >>> import numpy as np, statewise as sw
    >>> X = np.random.default_rng(0).normal(size=(40, 20)) + np.repeat([0, 3], 20)[:, None]
    >>> y = np.repeat(["low", "high"], 20)
    >>> classifier = sw.StatewiseClassifier(d_model=16, n_layers=1, epochs=10, random_state=0).fit(X, y)
    >>> classifier.predict([np.zeros(7), np.full(30, 3.0)]).tolist()
    ['low', 'high']
    """

    classes_: np.ndarray

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on all rows.

        Shapes:  X: (n, length), (n, length, channels) or a list of n rows; y: (n,) classes of any type
        Errors:  ValueError for another shape, numbers that are not finite, and fewer than two classes.
        """
        x, lengths, y = read_rows(self, X, y)
        check_classification_targets(y)
        self.classes_, numbers = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"y has 1 class, {self.classes_[0]}; a StatewiseClassifier needs two classes or more")
        return self._fit(SequenceClassifierConfig, x, lengths, _named(self.classes_)[numbers], n_classes=2)

    def predict(self, X: Any) -> np.ndarray:
        """(n,) classes, the most likely one of each row."""
        likeliest = self.predict_proba(X).argmax(1)
        return self.classes_[likeliest]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, n_classes), in the order of ``classes_``."""
        probabilities: np.ndarray = self._ask(X).probabilities  # type: ignore[attr-defined]
        return probabilities


class StatewiseRegressor(RegressorMixin, SequenceEstimator):
    """Numbers from sequences. The parameters are those of :class:`SequenceEstimator`.

    The targets' own mean and deviation are part of the model, so y is given in its own units.

    >>> import numpy as np, statewise as sw
    >>> X = np.random.default_rng(0).normal(size=(60, 20))
    >>> y = 200_000 + 1_000 * X.mean(1)
    >>> sw.StatewiseRegressor(d_model=16, n_layers=1, epochs=30, random_state=0).fit(X, y).score(X, y) > 0.8
    True
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Trains on all rows.

        Shapes:  X: (n, length), (n, length, channels) or a list of n rows; y: (n,) or (n, d_output) numbers
        Errors:  ValueError for another shape, and numbers that are not finite.
        """
        x, lengths, y = read_rows(self, X, y, numbers=True)
        y = np.asarray(y, np.float64)
        self._flat = y.ndim == 1
        deviation = y.std(0, keepdims=True).ravel()
        fields = {
            "d_output": 1 if y.ndim == 1 else y.shape[1],
            "target_mean": tuple(y.mean(0, keepdims=True).ravel().tolist()),
            "target_deviation": tuple(np.where(deviation > 0, deviation, 1.0).tolist()),
        }
        return self._fit(SequenceRegressorConfig, x, lengths, y, **fields)

    def predict(self, X: Any) -> np.ndarray:
        """(n,) or (n, d_output) numbers, as y was."""
        values = self._ask(X).values.astype(np.float64)  # type: ignore[attr-defined]
        found: np.ndarray = values[:, 0] if self._flat else values
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


def _named(classes: np.ndarray) -> np.ndarray:
    """Classes as a run's data have them, integers or strings, whose sorted order is theirs.

    >>> _named(np.array([1.0, 10.0])).tolist(), _named(np.array(["a", "b"], object)).tolist()
    ([1, 10], ['a', 'b'])
    """
    if classes.dtype.kind in "iu":
        return classes
    return classes.astype(np.int64) if classes.dtype.kind == "f" else np.array([str(name) for name in classes])
