"""Which rows are for training, which for validation, which for the test: parts 0, 1 and 2."""

from __future__ import annotations

import numpy as np

from statewise.data.long_range.config import LongRangeDataConfig
from statewise.data.sequences import hold_out
from statewise.errors import DataError

PUBLISHED_SEED = 42  # of the random divisions of the published S4 runs


def divide_documents(config: LongRangeDataConfig, labels: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Documents of your own (n,): the test is held out first, unless the folder has one, then the validation rows, of
    each class alike, by numpy's generators of ``seed`` and ``seed`` + 1.

    Errors:  DataError for a ``test_fraction`` where the folder has a test of its own, and for a fraction of which
             nothing is held out, since no class has two documents.
    """
    divided = parts.copy()
    if not (parts == 2).any():
        divided[_held(config, "test", np.arange(len(labels)), labels, config.seed)] = 2
    elif config.test_fraction is not None:
        raise DataError("data.test_fraction: the folder has test documents of its own; leave it out")
    divided[_held(config, "validation", np.flatnonzero(divided == 0), labels, config.seed + 1)] = 1
    return divided


def _held(config: LongRangeDataConfig, name: str, rows: np.ndarray, labels: np.ndarray, seed: int) -> np.ndarray:
    fraction = config.resolved(f"{name}_fraction")
    held = rows[hold_out(labels[rows], fraction, seed)]
    if fraction and not len(held):
        raise DataError(
            f"data.{name}_fraction={fraction:g} holds out nothing: no class in {config.folder} has two documents left "
            f"for training and {name}; give more of each, or set data.{name}_fraction=0"
        )
    return held


def published_division(n: int, n_validation: int, n_test: int) -> np.ndarray:
    """(n,) parts as ``torch.utils.data.random_split`` of a generator of seed 42 gives them: rows in a random order, the
    first for training, then validation, then test.
    """
    import torch

    order = torch.randperm(n, generator=torch.Generator().manual_seed(PUBLISHED_SEED)).numpy()
    parts = np.zeros(n, np.int64)
    parts[order[n - n_validation - n_test : n - n_test]] = 1
    parts[order[n - n_test :]] = 2
    return parts
