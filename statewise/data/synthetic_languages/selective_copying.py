"""Selective copying: symbols scattered in noise, to be recalled in order at the end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from statewise.configuration.types import Count, at_least
from statewise.data.synthetic_languages.language import (
    Language,
    RowCount,
    Rows,
    SyntheticLanguageConfig,
    TrainingRowCount,
)
from statewise.data.synthetic_languages.words import Words


class SelectiveCopying(Language):
    """``n_copied`` symbols at random places among noise, then as many markers, at which the symbols are asked for in
    the order in which they came. A model reads ``length`` tokens: length - n_copied of symbols and noise, and the
    markers.

    Token 0 is the noise, 1 to vocab_size - 2 are the symbols, drawn with repetition, and the last token is the marker.

    Chance: 1 / (vocab_size - 2), 7.1 % at the published 16.
    Source: Gu and Dao 2023 (Mamba), arXiv:2312.00752, sec. 4.1.1 and appendix E.1: length 4096, vocabulary 16 with the
        noise, 16 data tokens, 400,000 steps of 64 rows: so many are the rows for training, each read once. The paper
        names no marker; ours is that of the authors' copying task (state-spaces/s4), whose vocabulary counts noise and
        marker in. The sizes of the validation and test splits are ours too.
    """

    config: SelectiveCopyingConfig

    def check(self, length: int, field: str) -> None:
        n_copied = self.config.n_copied
        self.require("n_copied", 1 <= n_copied <= length // 2, f"1 to {length // 2}, half of {field} {length}")

    def draw(self, words: Words, length: int) -> Rows:
        n_copied: int = self.config.n_copied
        places = np.sort(words.distinct(length - n_copied, n_copied), 1)
        symbols = 1 + words.integers(self.n_candidates, n_copied)
        inputs = np.zeros((len(symbols), length), np.int64)
        np.put_along_axis(inputs, places, symbols, 1)
        inputs[:, -n_copied:] = self.vocab_size - 1
        positions = np.broadcast_to(np.arange(length - n_copied, length), symbols.shape)
        return Rows(inputs, symbols, positions, places)

    def content(self, rows: Rows) -> np.ndarray:
        return np.concatenate([rows.answers, rows.sources], 1)

    @property
    def n_candidates(self) -> int:
        return self.vocab_size - 2

    @property
    def symbols(self) -> tuple[str, ...]:
        return (".", *map(str, range(1, self.vocab_size - 1)), "?")


@dataclass(frozen=True, kw_only=True)
class SelectiveCopyingConfig(SyntheticLanguageConfig):
    """``n_copied`` symbols among noise, in order: :class:`SelectiveCopying`."""

    task: ClassVar[str] = "selective-copying"

    vocab_size: Annotated[int, at_least(4)] = 16  # the noise, the marker and two symbols at least
    length: Count = 4096
    n_copied: Count = 16
    n_train: TrainingRowCount = 25_600_000
    n_validation: RowCount = 256
    n_test: RowCount = 512

    @property
    def language(self) -> Language:
        return SelectiveCopying(self)
