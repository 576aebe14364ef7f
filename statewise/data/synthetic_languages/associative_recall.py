"""Associative recall: pairs of a key and its value, then a key again; the value is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from statewise.configuration.types import Count, at_least
from statewise.data.synthetic_languages.induction_head import named_as_text
from statewise.data.synthetic_languages.language import (
    AskedOnceConfig,
    Language,
    Rows,
    TrainingRowCount,
)
from statewise.data.synthetic_languages.words import Words


class AssociativeRecall(Language):
    """Pairs of a key and its value, "=>", one of the keys that occurred, and the answer: its value. An example is
    ``length`` tokens with the answer, (length - 3) / 2 pairs (10 in 23); a model reads all but the answer.

    The first half of the ordinary tokens are keys, the others values. The vocabulary of 10 counts "=>" and "." in
    (the second never occurs), which leaves 4 and 4. Each example draws a value for every key, two keys may have the
    same one; the keys of the pairs are drawn with repetition, and the key at the end is any of those that occurred,
    each as likely. The ids are those of the published code: "." is 0, then the keys, the values, and "=>" last. The
    code divides the tokens' names sorted as text, and gives the ids in the same order, so the halves are ranges.

    Chance: 1/4 = 25 % over the values. Naming a value that occurred, or the most frequent one, does better than that.
    Source: Fu et al. 2023 (H3), arXiv:2212.14052, sec. 3.1, and HazyResearch/safari, src/dataloaders/synthetics.py
        with the configs "vs10": 5,000 rows for training and 500 for the test, no two alike. Its other configs have a
        vocabulary of 20 and 43 tokens; H3 is also trained on 20 tokens of pairs and tested on 40 (test_length 43).
    """

    deduplicated = True

    def check(self, length: int, field: str) -> None:
        row = (
            'an odd number from 5 up: pairs, "=>", a key and its value (or counted="body", and the tokens of the pairs)'
        )
        self.require(field, length >= 5 and length % 2 == 1, row, of_body="an even number from 2 up: pairs")

    def draw(self, words: Words, length: int) -> Rows:
        n_keys, n_pairs = (self.vocab_size - 2) // 2, (length - 3) // 2
        values = 1 + n_keys + words.integers(self.n_candidates, n_keys)  # (rows, keys): the map of each row
        keys = words.integers(n_keys, n_pairs)
        shown = np.zeros((len(keys), n_keys), bool)
        np.put_along_axis(shown, keys, True, 1)
        luck = words.words(n_keys)  # of the keys that occurred, the one with the most
        asked = np.where(shown, luck | np.uint64(1), np.uint64(0)).argmax(1)[:, None]
        answers = np.take_along_axis(values, asked, 1)
        inputs = np.empty((len(keys), length - 1), np.int64)
        inputs[:, 0:-2:2] = 1 + keys
        inputs[:, 1:-2:2] = np.take_along_axis(values, keys, 1)
        inputs[:, -2] = self.vocab_size - 1
        inputs[:, -1:] = 1 + asked
        last_pair = n_pairs - 1 - (keys[:, ::-1] == asked).argmax(1)[:, None]
        return Rows(inputs, answers, np.full_like(asked, length - 2), 2 * last_pair + 1)

    @property
    def n_candidates(self) -> int:
        n_ordinary = self.vocab_size - 2
        return n_ordinary - n_ordinary // 2

    @property
    def symbols(self) -> tuple[str, ...]:
        return named_as_text(self.vocab_size)


@dataclass(frozen=True, kw_only=True)
class AssociativeRecallConfig(AskedOnceConfig):
    """The value of a key: :class:`AssociativeRecall`."""

    task: ClassVar[str] = "associative-recall"
    n_behind: ClassVar[int] = 3  # "=>", the key and its value

    vocab_size: Annotated[int, at_least(6)] = 10  # "=>", ".", two keys and two values at least
    length: Count = 23
    answer_only: bool = False
    n_train: TrainingRowCount = 5000

    @property
    def language(self) -> Language:
        return AssociativeRecall(self)
