"""How far a measured value may lie from the one behind it: standard errors and intervals, exact or resampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

from statewise.errors import InputError

CONFIDENCE = 0.95
RESAMPLES = 1000


class Interval(NamedTuple):
    """kind: "wilson", "bootstrap" or "plus four", how it was made; low, high: its ends, at 95 %."""

    kind: str
    low: float
    high: float


def standard_error_of_mean(values: np.ndarray) -> float | None:
    """The standard error of the mean of ``values`` (n,), as in lm-eval: the standard deviation with n - 1, over √n;
    None for n = 1.

    >>> standard_error_of_mean(np.array([1.0, 0.0, 1.0, 1.0]))
    0.25
    """
    return None if len(values) < 2 else float(values.std(ddof=1) / math.sqrt(len(values)))


def wilson(n_right: int, n: int, *, confidence: float = CONFIDENCE) -> Interval:
    """The score interval of a share: the shares p whose own n trials would give n_right within the confidence.

    It stays within [0, 1] and holds for few trials and for shares near the ends, where p ± 1.96 √(p(1-p)/n) does not.

    Errors:  InputError unless 0 <= n_right <= n and n >= 1
    Source:  Wilson 1927, "Probable inference, the law of succession, and statistical inference".

    >>> wilson(50, 100)
    Interval(kind='wilson', low=0.4038..., high=0.5961...)
    """
    if n < 1 or not 0 <= n_right <= n:
        raise InputError(f"n_right={n_right} of n={n} is not a share; give 0 <= n_right <= n and n of at least 1")
    z = _quantile(confidence)
    share, squared = n_right / n, z * z / n
    centre = (share + squared / 2) / (1 + squared)
    half = z * math.sqrt(share * (1 - share) / n + squared / (4 * n)) / (1 + squared)
    low = 0.0 if n_right == 0 else centre - half  # which rounding would leave a little above
    return Interval("wilson", low, 1.0 if n_right == n else centre + half)


def bootstrap(
    values: np.ndarray,
    statistic: Callable[[np.ndarray], float],
    *,
    confidence: float = CONFIDENCE,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> tuple[float | None, Interval]:
    """The standard error of ``statistic(values)`` and its percentile interval, from resamples of the rows.

    Shapes:  values: (n, ...), a row for each question
    Cost:    ``n_resamples`` draws of n rows, and as many calls of ``statistic``
    Numerics: drawn by a generator of its own, seeded with ``seed``: the same for the same values.
    Errors:  InputError for no rows or fewer than 2 resamples
    Source:  Efron and Tibshirani 1993, "An introduction to the bootstrap", chapters 6 and 13.
    """
    if len(values) < 1 or n_resamples < 2:
        raise InputError(
            f"{len(values)} rows and n_resamples={n_resamples}: a bootstrap needs at least 1 row and 2 resamples"
        )
    generator = np.random.default_rng(seed)
    drawn = np.array([statistic(values[generator.integers(0, len(values), len(values))]) for _ in range(n_resamples)])
    tail = (1 - confidence) / 2
    low, high = np.quantile(drawn, (tail, 1 - tail))
    error = float(drawn.std(ddof=1)) if len(values) > 1 else None
    return error, Interval("bootstrap", float(low), float(high))


def mean_of_shares(shares: Sequence[float], counts: Sequence[int], *, confidence: float = CONFIDENCE) -> Interval:
    """The unweighted mean of shares, each of a number of trials: the mean ± z standard errors, cut at 0 and 1.

    The variance of each share is taken at the share with two more trials right and two more wrong. So a share of one
    trial, or of trials that are all right, does not count as certain; of hundreds of trials it changes little.

    Errors:  InputError unless there are as many counts as shares, at least one, and each count is at least 1
    Source:  Agresti and Coull 1998, "Approximate is better than 'exact' for interval estimation of binomial
             proportions", for the two and two.

    >>> mean_of_shares([0.5, 1.0], [400, 100])
    Interval(kind='plus four', low=0.7220..., high=0.7779...)
    """
    if not len(shares) or len(shares) != len(counts) or min(counts) < 1:
        raise InputError(
            f"{len(shares)} shares of {list(counts)} trials have no mean; give a count of at least 1 for each share"
        )
    value = math.fsum(shares) / len(shares)
    fuller = [(share * n + 2) / (n + 4) for share, n in zip(shares, counts, strict=True)]
    variance = math.fsum(share * (1 - share) / n for share, n in zip(fuller, counts, strict=True)) / len(shares) ** 2
    half = _quantile(confidence) * math.sqrt(variance)
    return Interval("plus four", max(0.0, value - half), min(1.0, value + half))


def _quantile(confidence: float) -> float:
    return NormalDist().inv_cdf((1 + confidence) / 2)
