"""Random numbers of many rows at once, each row's from a seed of its own, whichever rows are drawn with it."""

from __future__ import annotations

import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Words:
    """The generators of some rows, side by side: word j of a row is the j-th of SplitMix64 from the row's seed.

    The seed is mixed from (seed, stream, row, attempt); ``rows`` and ``attempts`` are (n,) and say which n rows these
    are. Every method takes the same number of words from each row, and gives (n, count).

    Cost:    a few numpy operations for all rows together.
    Source:  Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", fig. 16.
    """

    def __init__(self, seed: int, stream: int, rows: np.ndarray, attempts: np.ndarray) -> None:
        key = mixed(np.full(len(rows), seed, np.uint64))
        for part in (np.full(len(rows), stream), rows, attempts):
            key = mixed(key + GOLDEN * (part.astype(np.uint64) + np.uint64(1)))
        self._key, self._taken = key[:, None], 0

    def words(self, count: int) -> np.ndarray:
        """uint64."""
        numbers = np.arange(self._taken + 1, self._taken + count + 1, dtype=np.uint64)
        self._taken += count
        return mixed(self._key + GOLDEN * numbers)

    def integers(self, high: int, count: int) -> np.ndarray:
        """int64 from 0 to high - 1; none is likelier than another by more than one part in 2^32 / high."""
        return ((self.words(count) >> np.uint64(32)) * np.uint64(high) >> np.uint64(32)).astype(np.int64)

    def uniforms(self, count: int) -> np.ndarray:
        """float64, strictly between 0 and 1."""
        return ((self.words(count) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52

    def distinct(self, high: int, count: int) -> np.ndarray:
        """int64 from 0 to high - 1, no two of a row equal, every ordered choice as likely.

        Cost:    count^2 / 2 comparisons a row, whatever ``high`` is.
        Source:  Floyd's algorithm (Bentley and Floyd 1987), then a shuffle.
        """
        chosen = np.empty((len(self._key), count), np.int64)
        for i in range(count):
            last = high - count + i
            drawn = self.integers(last + 1, 1)
            there = (chosen[:, :i] == drawn).any(1)
            chosen[:, i] = np.where(there, last, drawn[:, 0])
        return np.take_along_axis(chosen, self.words(count).argsort(1), 1)

    def weighted(self, weights: np.ndarray, count: int) -> np.ndarray:
        """int64 from 0 to len(weights) - 1, no two of a row equal, drawn one by one in proportion to ``weights``.

        Source:  exponential clocks: the first ``count`` of len(weights) that ring (Efraimidis and Spirakis 2006).
        """
        rings = -np.log(self.uniforms(len(weights))) / weights
        return rings.argsort(1)[:, :count]


def mixed(words: np.ndarray) -> np.ndarray:
    """SplitMix64's output function: a bijection of 64 bits that leaves no pattern."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
