"""Induction head: what followed the special token the first time is what follows it now."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from statewise.configuration.types import Count, at_least
from statewise.data.synthetic_languages.language import (
    AskedOnceConfig,
    Language,
    Rows,
    TrainingRowCount,
)
from statewise.data.synthetic_languages.words import Words


class InductionHead(Language):
    """A body of random ordinary tokens, one of which is replaced by "=>"; then "=>" again, and the answer: the token
    that followed the first. An example is ``length`` tokens with the answer; a model reads all but that.

    With the published vocabulary of 20, which counts "=>" and "." in (the second never occurs), 18 tokens are
    ordinary. The body has length - 2 tokens (30), and "=>" takes the place of any but its last two. The ids are those
    of the published code, which sorts the tokens' names as text: "." is 0, the ordinary tokens follow, "=>" is last.
    In which order the ordinary ones stand makes no difference: all are drawn alike.

    Chance: 1/18 = 5.6 % over the ordinary tokens; the published 5.0 % is 1/20.
    Source: Fu et al. 2023 (H3), arXiv:2212.14052, sec. 3.1, and HazyResearch/safari, src/dataloaders/synthetics.py:
        5,000 rows for training and 500 for the test, no two alike.
    """

    deduplicated = True

    def check(self, length: int, field: str) -> None:
        row = 'at least 5: a body of three tokens, "=>" and the answer'
        self.require(field, length >= 5, row, of_body="at least 3")

    def draw(self, words: Words, length: int) -> Rows:
        return draw_induction(words, length, first=1, n_ordinary=self.vocab_size - 2, special=self.vocab_size - 1)

    @property
    def n_candidates(self) -> int:
        return self.vocab_size - 2

    @property
    def symbols(self) -> tuple[str, ...]:
        return named_as_text(self.vocab_size)


def draw_induction(words: Words, length: int, *, first: int, n_ordinary: int, special: int) -> Rows:
    """Rows whose body is drawn from the ``n_ordinary`` tokens from ``first`` on."""
    n_body = length - 2
    inputs = first + words.integers(n_ordinary, n_body + 1)
    place = words.integers(n_body - 2, 1)
    np.put_along_axis(inputs, place, special, 1)
    inputs[:, -1] = special
    answers = np.take_along_axis(inputs, place + 1, 1)
    return Rows(inputs, answers, np.full_like(place, n_body), place + 1)


def named_as_text(vocab_size: int) -> tuple[str, ...]:
    """The names that the published code gives the tokens of a vocabulary with "=>" and ".".

    >>> named_as_text(14)
    ('.', '0', '1', '10', '11', '2', '3', '4', '5', '6', '7', '8', '9', '=>')
    """
    return (".", *sorted(map(str, range(vocab_size - 2))), "=>")


@dataclass(frozen=True, kw_only=True)
class InductionHeadConfig(AskedOnceConfig):
    """The token that followed "=>" the first time: :class:`InductionHead`."""

    task: ClassVar[str] = "induction-head"
    n_behind: ClassVar[int] = 2  # "=>" and the answer

    vocab_size: Annotated[int, at_least(4)] = 20  # "=>", "." and two others at least
    length: Count = 32
    answer_only: bool = False
    n_train: TrainingRowCount = 5000

    @property
    def language(self) -> Language:
        return InductionHead(self)
