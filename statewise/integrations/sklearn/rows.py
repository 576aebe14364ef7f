"""What estimators are given: arrays of rows of one length, or a list of rows of unlike lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_consistent_length, column_or_1d
from sklearn.utils.validation import check_array, validate_data

from statewise.data.in_memory import as_array, as_padded


def are_rows(X: Any) -> bool:
    """Whether X is a list of rows, each an array of its own, rather than an array, or lists that make one."""
    if hasattr(X, "to_numpy") and getattr(X, "ndim", 0) == 1:  # a column of a table whose cells are arrays
        X = X.to_numpy()
    if isinstance(X, np.ndarray):
        return X.dtype.kind == "O" and X.ndim == 1 and len(X) > 0 and all(np.ndim(row) for row in X)
    if not isinstance(X, (list, tuple)) or not X:
        return False
    return any(hasattr(row, "shape") and len(row.shape) > 0 for row in X) or as_array(list(X)) is None


def read_rows(estimator: BaseEstimator, X: Any, y: Any = None, *, numbers: bool = False) -> tuple[Any, Any, Any]:
    """x, its lengths and y, checked as scikit-learn checks them.

    X:       (n, length) or (n, length, channels), or a list of n rows (length,) or (length, channels)
    y:       None to predict: then arrays have as many steps as those of ``fit``, while rows have any length
    numbers: y is (n,) or (n, d_output) real numbers; else classes

    Errors:  ValueError and TypeError as scikit-learn's own.
    """
    fits = y is not None or not hasattr(estimator, "model_")
    if are_rows(X):
        x, lengths = as_padded(list(X), "X")
        if not fits:
            return list(X), None, None
        if y is None:
            raise ValueError(f"{type(estimator).__name__} requires y to be passed, but the target y is None")
        y = check_array(y, ensure_2d=False, dtype="numeric") if numbers else column_or_1d(y, warn=True)
        check_consistent_length(x, y)
        for name in ("n_features_in_", "feature_names_in_"):  # of a fit before
            vars(estimator).pop(name, None)
        return x, lengths, y
    if not fits:
        return validate_data(estimator, X, reset=False, allow_nd=True), None, None
    options: dict[str, Any] = {"multi_output": True, "y_numeric": True} if numbers else {}
    x, y = validate_data(estimator, X, y, allow_nd=True, **options)
    return x, None, y
