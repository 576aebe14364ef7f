"""What a synthetic language is: its fields, and how rows of it are drawn."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np

from statewise.configuration.types import Count, LongSeed, from_to
from statewise.data.base import DataConfig
from statewise.data.synthetic_languages.words import Words
from statewise.errors import ConfigError

RowCount = Annotated[int, from_to(0, 2**31 - 1, "2**31 - 1")]
TrainingRowCount = Annotated[int, from_to(1, 2**31 - 1, "2**31 - 1")]


class Rows(NamedTuple):
    """n drawn rows, all int64.

    inputs:     (n, length) the tokens a model reads
    answers:    (n, n_answers) the tokens asked for
    positions:  (n, n_answers) where: after reading the input at this position the answer is due
    sources:    (n, n_answers) where the answer is in the input: the last place that shows it before it is due
    """

    inputs: np.ndarray
    answers: np.ndarray
    positions: np.ndarray
    sources: np.ndarray


@dataclass(frozen=True, kw_only=True)
class SyntheticLanguageConfig(DataConfig):
    """One of five languages that ask what a model remembers of the tokens before.

    vocab_size:   all tokens, the special ones counted in
    length:       tokens of a row; for the two induction heads and associative recall with the answer at the end, which
                  a model does not read
    test_length:  of the test split, where it is not ``length``
    answer_only:  whether the loss counts the answers alone, or every next token as well; accuracy is always that of the
                  answers. The published setting is the second for the first two tasks, and the first for the others.
    n_train, n_validation, n_test:   how many rows. No row of a split is in another one, at any sizes.

    task:         its name, as presets and reproductions have it

    Errors:  ConfigError that names the field.
    """

    task: ClassVar[str]

    vocab_size: Count
    length: Count
    test_length: Count | None = None
    answer_only: bool = True
    n_train: TrainingRowCount
    n_validation: RowCount = 500
    n_test: RowCount = 500
    seed: LongSeed = 0

    def __post_init__(self) -> None:
        self.language.check(self.row_length("train"), "length")
        if self.test_length is not None:
            self.language.check(self.row_length("test"), "test_length")

    def row_length(self, split: str) -> int:
        """Tokens of a row, with the answer where that is one of them."""
        return self.test_length if split == "test" and self.test_length is not None else self.length

    @property
    @abc.abstractmethod
    def language(self) -> Language:
        """What draws its rows."""

    def with_absolute_paths(self) -> SyntheticLanguageConfig:
        return self


@dataclass(frozen=True, kw_only=True)
class AskedOnceConfig(SyntheticLanguageConfig):
    """A language with a body, a question behind it, and one answer.

    counted:  what ``length`` and ``test_length`` count: the tokens of a "row", or those of its "body" alone, as the
              table in H3's paper does (30 and 20)
    """

    n_behind: ClassVar[int]  # tokens of the question and the answer

    counted: Literal["row", "body"] = "row"

    def row_length(self, split: str) -> int:
        return super().row_length(split) + (self.n_behind if self.counted == "body" else 0)


class Language(abc.ABC):
    """One of the languages, with the numbers of its config.

    deduplicated  whether no row of a split may be equal to another of it
    """

    deduplicated: ClassVar[bool] = False

    def __init__(self, config: SyntheticLanguageConfig) -> None:
        self.config = config
        self.vocab_size = config.vocab_size

    @abc.abstractmethod
    def check(self, length: int, field: str) -> None:
        """Whether rows of this length can be drawn; ``field`` is what it is called.

        Errors:  ConfigError that names the field at fault.
        """

    @abc.abstractmethod
    def draw(self, words: Words, length: int) -> Rows:
        """A row for each of the generators."""

    def content(self, rows: Rows) -> np.ndarray:
        """(n, any): numbers that are equal for two rows if and only if their inputs are."""
        return rows.inputs

    @property
    @abc.abstractmethod
    def n_candidates(self) -> int:
        """How many tokens an answer may be: always naming the same one is right once in this many."""

    @property
    @abc.abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """A name for each token."""

    def require(self, field: str, holds: bool, expected: str, *, of_body: str = "") -> None:
        """Raises ConfigError about a field, unless it ``holds``; ``of_body``: what is expected of a body's length."""
        if not holds:
            if isinstance(self.config, AskedOnceConfig) and self.config.counted == "body":
                expected = of_body or expected
            raise ConfigError(
                f"{type(self.config).__name__}.{field}={getattr(self.config, field)} does not fit; expected {expected}"
            )
