"""Standard errors and intervals: against their definitions, and against scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from statewise.errors import InputError
from statewise.evaluate.intervals import bootstrap, mean_of_shares, standard_error_of_mean, wilson


@pytest.mark.parametrize(("n_right", "n"), [(0, 5), (5, 5), (1, 1), (27, 56), (666, 1000), (5153, 5153)])
def test_wilson_is_scipys(n_right: int, n: int) -> None:
    found = wilson(n_right, n)
    expected = stats.binomtest(n_right, n).proportion_ci(0.95, method="wilson")
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert found.kind == "wilson"
    assert found.low > 0 or n_right == 0


@pytest.mark.parametrize("n", [1, 3, 20, 1000])
def test_wilson_ends_where_shares_do(n: int) -> None:
    assert wilson(0, n).low == 0
    assert wilson(n, n).high == 1


def test_wilson_is_where_the_score_test_turns() -> None:
    """Its definition: at its ends p, the observed share is 1.96 of p's own standard errors away."""
    found = wilson(30, 104)
    for p in (found.low, found.high):
        assert abs(30 / 104 - p) / math.sqrt(p * (1 - p) / 104) == pytest.approx(stats.norm.ppf(0.975))


def test_standard_error_of_mean() -> None:
    values = np.array([0.0, 1, 1, 0, 1, 0.5])
    assert standard_error_of_mean(values) == pytest.approx(stats.sem(values))
    assert standard_error_of_mean(values[:1]) is None


def test_bootstrap() -> None:
    values = np.random.default_rng(1).normal(2.0, 3.0, 400)
    error, interval = bootstrap(values, lambda drawn: float(drawn.mean()))
    assert error == pytest.approx(stats.sem(values), rel=0.1)
    assert interval.low == pytest.approx(values.mean() - 1.96 * stats.sem(values), abs=0.05)
    assert interval.high == pytest.approx(values.mean() + 1.96 * stats.sem(values), abs=0.05)
    assert bootstrap(values, lambda drawn: float(drawn.mean())) == (error, interval)
    assert bootstrap(values[:1], lambda drawn: float(drawn.mean()))[0] is None


@pytest.mark.parametrize(("k", "n"), [(67, 1), (9, 1), (67, 2), (8, 5), (9, 20)])
@pytest.mark.parametrize("shares", [(0.5, 0.5), (0.05, 0.95), (0.95, 0.95), (0.5, 1.0)])
def test_mean_of_shares_holds_the_mean(k: int, n: int, shares: tuple[float, float]) -> None:
    """At 95 %, or close to it: also of single trials, of which each alone looks certain."""
    behind = np.array([shares[i % 2] for i in range(k)])
    drawn = np.random.default_rng(2).binomial(n, behind, (400, k)) / n
    found = [mean_of_shares(list(row), [n] * k) for row in drawn]
    assert np.mean([one.low <= behind.mean() <= one.high for one in found]) > 0.91


def test_mean_of_shares() -> None:
    shares, n = np.array([0.7, 0.9, 0.4]), 100_000
    found = mean_of_shares(list(shares), [n] * 3)
    assert found.high - found.low == pytest.approx(
        2 * 1.96 * math.sqrt((shares * (1 - shares) / n).sum()) / 3, rel=1e-3
    )
    assert mean_of_shares([1.0, 1.0], [5, 1]).high == 1.0
    assert mean_of_shares([0.0], [1]).low == 0.0
    assert mean_of_shares([1.0] * 8, [2] * 8).low < 0.9


def test_refusals() -> None:
    for n_right, n in ((1, 0), (-1, 4), (5, 4)):
        with pytest.raises(InputError, match="is not a share"):
            wilson(n_right, n)
    for shares, counts in (([], []), ([0.5], [1, 2]), ([0.5, 0.5], [1, 0])):
        with pytest.raises(InputError, match="have no mean"):
            mean_of_shares(shares, counts)
    with pytest.raises(InputError, match="needs at least 1 row and 2 resamples"):
        bootstrap(np.zeros(0), lambda drawn: 0.0)
