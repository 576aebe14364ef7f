"""Multi-query associative recall (MQAR): pairs of a key and its value, then each key again, once, somewhere later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from statewise.configuration.types import Count, Positive, at_least
from statewise.data.synthetic_languages.language import (
    Language,
    RowCount,
    Rows,
    SyntheticLanguageConfig,
    TrainingRowCount,
)
from statewise.data.synthetic_languages.words import Words


class MultiQueryRecall(Language):
    """``n_pairs`` keys, each with its value behind it; later each key once more, where its value is the answer.

    A model reads ``length`` tokens. Keys are 1 to V/2 - 1 and values V/2 to V - 1, all keys of a row differ, and so do
    its values. The queries stand at even distances behind the pairs: key i at step 2 n_pairs + 2 g_i, where the g_i
    are drawn from 0 to length/2 - n_pairs - 1 without repetition, g with a weight of (g + 1)^(alpha - 1). The value is
    asked for at the query, and it is not in the input behind it: all steps that are neither pair nor query hold a
    random token of the whole vocabulary, which may be a key or a value too (random_non_queries=False: token 0).

    Chance: 1 / (V/2) over the values, 0.02 % at the published 8192; 1/n_pairs when naming a value of the row.
    Source: Arora et al. 2023 (Zoology), arXiv:2312.04927, and HazyResearch/zoology, zoology/data/multiquery_ar.py;
        figure 2 has (length, n_pairs) = (64, 4), (128, 8), (256, 16), (512, 64), with 100,000 rows for training and
        3,000 for the test. Dao and Gu 2024 (Mamba-2), arXiv:2405.21060, sec. 9.1: lengths 256, 512 and 1024 with a
        quarter as many pairs. The validation rows are ours.
    """

    config: MultiQueryRecallConfig

    def check(self, length: int, field: str) -> None:
        n_pairs, n_keys = self.config.n_pairs, self.vocab_size // 2 - 1
        self.require("n_pairs", 1 <= n_pairs <= n_keys, f"1 to {n_keys}, the keys of vocab_size {self.vocab_size}")
        self.require(field, length % 2 == 0, "an even number")
        self.require("n_pairs", 4 * n_pairs <= length, f"at most {length // 4}, a quarter of {field} {length}")

    def draw(self, words: Words, length: int) -> Rows:
        n_pairs, half = self.config.n_pairs, self.vocab_size // 2
        keys = 1 + words.distinct(half - 1, n_pairs)
        values = half + words.distinct(self.n_candidates, n_pairs)
        weights = np.arange(1, length // 2 - n_pairs + 1) ** (self.config.alpha - 1.0)
        positions = 2 * n_pairs + 2 * words.weighted(weights, n_pairs)
        if self.config.random_non_queries:
            inputs = words.integers(self.vocab_size, length)
        else:
            inputs = np.zeros((len(keys), length), np.int64)
        inputs[:, 0 : 2 * n_pairs : 2] = keys
        inputs[:, 1 : 2 * n_pairs : 2] = values
        np.put_along_axis(inputs, positions, keys, 1)
        order = positions.argsort(1)  # the answers in the order in which they are due
        sources = np.broadcast_to(2 * np.arange(n_pairs) + 1, keys.shape)
        return Rows(inputs, *(np.take_along_axis(x, order, 1) for x in (values, positions, sources)))

    @property
    def n_candidates(self) -> int:
        return self.vocab_size - self.vocab_size // 2

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(map(str, range(self.vocab_size)))


@dataclass(frozen=True, kw_only=True)
class MultiQueryRecallConfig(SyntheticLanguageConfig):
    """The values of many keys: :class:`MultiQueryRecall`.

    n_pairs, alpha, random_non_queries:   the pairs, the power law of their gaps, and what stands between the queries
    """

    task: ClassVar[str] = "mqar"

    vocab_size: Annotated[int, at_least(6)] = 8192  # two keys, two values and the token 0 at least
    length: Count = 64
    n_pairs: Count = 4
    alpha: Positive = 0.01
    random_non_queries: bool = True
    n_train: TrainingRowCount = 100_000
    n_validation: RowCount = 3000
    n_test: RowCount = 3000

    @property
    def language(self) -> Language:
        return MultiQueryRecall(self)
