"""Estimators as scikit-learn has them: extra ``estimators``. They train by :func:`statewise.train`."""

from __future__ import annotations

from statewise.errors import importing

with importing("sklearn", "estimators", "the estimators need version 1.6 of"):
    import sklearn  # noqa: F401
    from sklearn.utils.validation import validate_data as _  # noqa: F401 (its place since 1.6)

from statewise.integrations.sklearn.forecaster import StatewiseForecaster
from statewise.integrations.sklearn.labelled import StatewiseClassifier, StatewiseRegressor

__all__ = ["StatewiseClassifier", "StatewiseForecaster", "StatewiseRegressor"]
