"""Which rows are for training, which for validation, which for the test: parts 0, 1 and 2."""

from __future__ import annotations

import numpy as np

from statewise.data.divided_rows import held_out
from statewise.data.long_range.config import LongRangeDataConfig
from statewise.errors import DataError

PUBLISHED_SEED = 42  # of the random divisions of the published S4 runs


def divide_documents(config: LongRangeDataConfig, labels: np.ndarray, parts: np.ndarray) -> np.ndarray:
    """Documents of your own (n,): the test is held out first, unless the folder has one, then the validation rows, of
    each class alike, by numpy's generators of ``seed`` and ``seed`` + 1.

    Errors:  DataError for a ``test_fraction`` where the folder has a test of its own, and for a fraction of which
             nothing is held out, since no class has two documents.
    """
    if (parts == 2).any() and config.test_fraction is not None:
        raise DataError("data.test_fraction: the folder has its own test documents; leave it out")
    return held_out(
        labels,
        parts,
        validation_fraction=config.resolved("validation_fraction"),
        test_fraction=config.resolved("test_fraction") or 0.0,
        seed=config.seed,
        where=str(config.folder),
    )


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
