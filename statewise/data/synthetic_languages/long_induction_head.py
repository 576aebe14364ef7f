"""Induction heads over long sequences: trained at one length, tested at others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from statewise.configuration.types import Count, at_least
from statewise.data.synthetic_languages.induction_head import draw_induction
from statewise.data.synthetic_languages.language import (
    Language,
    RowCount,
    Rows,
    SyntheticLanguageConfig,
    TrainingRowCount,
)
from statewise.data.synthetic_languages.words import Words


class LongInductionHead(Language):
    """As the induction head, with a vocabulary of 16 of which only "=>", the last, is special, the loss on the answer
    alone, and a test of any ``test_length`` (the published ones are 64 to 2^20).

    An example is ``length`` tokens with the answer; a model reads all but that.

    Chance: 1/15 = 6.7 % over the ordinary tokens.
    Source: Gu and Dao 2023 (Mamba), arXiv:2312.00752, sec. 4.1.2 and appendix E.1: vocabulary 16, length 256, 8 rows a
        step drawn again, 25 epochs of 8,192 steps for Mamba, which gives the number of training rows. That the loss
        counts only at the answer is from state-spaces/mamba, issue 298. The sizes of the other splits are ours.
    """

    def check(self, length: int, field: str) -> None:
        self.require(field, length >= 5, 'at least 5: a body of three tokens, "=>" and the answer')

    def draw(self, words: Words, length: int) -> Rows:
        return draw_induction(words, length, first=0, n_ordinary=self.vocab_size - 1, special=self.vocab_size - 1)

    @property
    def n_candidates(self) -> int:
        return self.vocab_size - 1

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*map(str, range(self.vocab_size - 1)), "=>")


@dataclass(frozen=True, kw_only=True)
class LongInductionHeadConfig(SyntheticLanguageConfig):
    """The induction head at any length of the test: :class:`LongInductionHead`."""

    task: ClassVar[str] = "long-induction-head"

    vocab_size: Annotated[int, at_least(3)] = 16  # "=>" and two others at least
    length: Count = 256
    n_train: TrainingRowCount = 25 * 8192 * 8
    n_validation: RowCount = 512
    n_test: RowCount = 512

    @property
    def language(self) -> Language:
        return LongInductionHead(self)
