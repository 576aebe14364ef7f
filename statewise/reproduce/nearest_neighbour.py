"""The classical baseline of time series classification: the nearest neighbour by dynamic time warping (DTW)."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from statewise.errors import DataError, package_folder

BLOCK = 8  # rows whose distances are computed in one call, which no signal interrupts


def require_aeon() -> None:
    """Errors: DataError if the package with the distances is not installed."""
    package_folder("aeon", "tasks", "DTW is measured with", DataError)


def nearest_neighbour(
    train: Sequence[np.ndarray],
    train_classes: np.ndarray,
    test: Sequence[np.ndarray],
    test_classes: np.ndarray,
    *,
    windows: Sequence[float] = (),
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """The accuracy on ``test`` of the class of the nearest row of ``train``, by full DTW and by DTW within a window.

    The window, a share of the length, is the one of ``windows`` with the most rows of ``train`` classified right by the
    others (leave one out; the smallest of equal ones), as the UCR archive does it; 0 is the Euclidean distance.

    Shapes:  rows: (length, channels) each, with their class
    Cost:    O(train test length^2 channels), and O(train^2 length^2 channels window) for each window
    Errors:  DataError if aeon is not installed.
    Source:  Dau et al. 2019 (the UCR archive), arXiv:1810.07758.
    """
    require_aeon()
    n_train, n_test = len(train), len(test)
    total, done = n_test * (2 if windows else 1) + n_train * len(windows), 0

    def told(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress(done, total)

    begun = time.perf_counter()
    nearest = distances(test, train, None, told).argmin(1)
    found: dict[str, Any] = {
        "full": {"accuracy": _accuracy(train_classes[nearest], test_classes), "seconds": time.perf_counter() - begun}
    }
    if not windows:
        return found
    begun = time.perf_counter()
    left_out = {}
    for window in sorted(windows):
        among = distances(train, train, window, told)
        np.fill_diagonal(among, np.inf)
        left_out[window] = _accuracy(train_classes[among.argmin(1)], train_classes)
    best = max(left_out, key=lambda window: (left_out[window], -window))
    nearest = distances(test, train, best, told).argmin(1)
    found["windowed"] = {
        "window": best,
        "accuracy": _accuracy(train_classes[nearest], test_classes),
        "left_out": {f"{window:g}": accuracy for window, accuracy in left_out.items()},
        "seconds": time.perf_counter() - begun,
    }
    return found


def distances(
    rows: Sequence[np.ndarray], others: Sequence[np.ndarray], window: float | None, told: Callable[[int], None]
) -> np.ndarray:
    """DTW of each row with each other one, (len(rows), len(others)): the sum of squared differences along the path.

    ``window``: how far the path may leave the diagonal, as a share of the length; None: as far as it likes.
    """
    from aeon.distances import dtw_pairwise_distance

    threads = torch.get_num_threads()
    columns = [np.ascontiguousarray(row.T, np.float64) for row in others]
    parts = []
    try:
        for begin in range(0, len(rows), BLOCK):
            block = [np.ascontiguousarray(row.T, np.float64) for row in rows[begin : begin + BLOCK]]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Numba's, when it compiles
                parts.append(dtw_pairwise_distance(block, columns, window=window, n_jobs=threads))
            told(len(block))
    finally:
        torch.set_num_threads(threads)  # Numba may share OpenMP with PyTorch, and aeon sets its threads
    return np.concatenate(parts)


def _accuracy(predicted: np.ndarray, true: np.ndarray) -> float:
    return float((predicted == true).mean())
