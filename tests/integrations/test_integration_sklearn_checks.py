"""scikit-learn's own checks of an estimator, on tables read as sequences: a row of a table is a sequence of numbers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest

import statewise as sw

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.base import clone
from sklearn.exceptions import SkipTestWarning
from sklearn.utils.estimator_checks import estimator_checks_generator

SMALL: dict[str, Any] = {"d_model": 16, "n_layers": 1, "dropout": 0.0, "batch_size": 32, "lr": 0.03}
# They ask for a score, and so for training.
LEARNED = {"check_classifiers_train", "check_regressors_train", "check_classifiers_classes"}
# Of the others those that fit often, for what the tests of these estimators show in less time.
FITTED_OFTEN = {
    "check_classifier_data_not_an_array",
    "check_dtype_object",
    "check_estimators_dtypes",
    "check_fit_idempotent",
    "check_fit_score_takes_y",
    "check_positive_only_tag_during_fit",
    "check_regressor_data_not_an_array",
    "check_regressors_int",
}
SKIPPED = {"check_array_api_input"}  # of scipy's, where it is not switched on


def name_of(check: Any) -> str:
    return getattr(check, "func", check).__name__


def checks() -> list[Any]:
    found = []
    for kind in (sw.StatewiseClassifier, sw.StatewiseRegressor):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SkipTestWarning)
            for number, (estimator, check) in enumerate(estimator_checks_generator(kind(**SMALL, epochs=1))):
                name = name_of(check)
                if name in SKIPPED:
                    continue
                estimator = clone(estimator).set_params(epochs=20 if name in LEARNED else 1)  # all get the same one
                marks = [pytest.mark.slow] if name in LEARNED | FITTED_OFTEN else []
                found.append(pytest.param(estimator, check, id=f"{kind.__name__}-{number}-{name}", marks=marks))
    return found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("estimator", "check"), checks())
def test_check(estimator: Any, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_most_of_them_apply() -> None:
    for kind in ("StatewiseClassifier", "StatewiseRegressor"):
        assert sum(param.id.startswith(kind) for param in checks()) > 45
