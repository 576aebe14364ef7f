"""When the results of two models count as different, and whether a published order is met."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

# Two-sided 95 % points of Student's t by degrees of freedom. Beyond the last its value is used, which is a little more
# than the right one: two models are then rather called equal.
T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

AS_PUBLISHED, EQUAL, REVERSED, UNKNOWN = "as published", "equal", "reversed", "unknown"


class Pair(NamedTuple):
    """better, worse: as published   difference: of our means, worse - better
    margin: below which they are equal; None if the spread is unknown
    """

    better: str
    worse: str
    difference: float
    margin: float | None

    @property
    def verdict(self) -> str:
        if self.margin is None:
            return UNKNOWN
        if abs(self.difference) < self.margin:
            return EQUAL
        return AS_PUBLISHED if self.difference > 0 else REVERSED


def margin(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Below it a difference of the means is within the spread of the seeds: Student's two-sample t-test at 95 %.

    It is t s sqrt(1/n_a + 1/n_b), s^2 being the pooled variance and t taken at n_a + n_b - 2 degrees of freedom; with
    three seeds each 2.27 s. None with one seed each: their spread is unknown.

    >>> round(margin([1.0, 2.0, 3.0], [11.0, 12.0, 13.0]), 2)
    2.27
    """
    freedom = len(a) + len(b) - 2
    if freedom < 1:
        return None
    squares = sum((x - statistics.fmean(part)) ** 2 for part in (a, b) for x in part)
    t = T_95[min(freedom, len(T_95)) - 1]
    return t * math.sqrt(squares / freedom * (1 / len(a) + 1 / len(b)))


def compare_order(published: Mapping[str, float], ours: Mapping[str, Sequence[float]]) -> list[Pair]:
    """Every pair of models that both have, the one that is better (lower) as published first."""
    ranked = sorted((name for name in published if name in ours), key=lambda name: published[name])
    return [
        Pair(better, worse, statistics.fmean(ours[worse]) - statistics.fmean(ours[better]), gap)
        for better, worse in combinations(ranked, 2)
        for gap in (margin(ours[better], ours[worse]),)
    ]


def chain(ours: Mapping[str, Sequence[float]], labels: Mapping[str, str]) -> str:
    """From the best to the worst mean, "=" between neighbours that are equal (those two: it does not carry on).

    Where the spread is unknown they are only listed.

    >>> chain({"a": [3.0, 3.1], "b": [1.0, 1.1], "c": [1.1, 1.2]}, {"a": "A", "b": "B", "c": "C"})
    'B 1.05 = C 1.15 < A 3.05'
    """
    ranked = sorted(ours, key=lambda name: statistics.fmean(ours[name]))
    text = ""
    for before, name in zip([None, *ranked], ranked):
        mean = statistics.fmean(ours[name])
        if before is not None:
            least = margin(ours[before], ours[name])
            is_equal = least is not None and mean - statistics.fmean(ours[before]) < least
            text += ", " if least is None else " = " if is_equal else " < "
        text += f"{labels[name]} {mean:.2f}"
    return text
