"""What a synthetic language is: its fields, and how rows of it are drawn."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from statewise.data.synthetic_languages.words import Words
from statewise.errors import ConfigError

if TYPE_CHECKING:
    from statewise.data.synthetic_languages.config import SyntheticLanguageConfig


class Rows(NamedTuple):
    """n drawn rows, all int64.

    inputs:     (n, length) the tokens a model reads
    answers:    (n, n_answers) the tokens asked for
    positions:  (n, n_answers) where: after reading the input at this position the answer is due
    sources:    (n, n_answers) where the answer stands in the input: the last place that shows it before it is due
    """

    inputs: np.ndarray
    answers: np.ndarray
    positions: np.ndarray
    sources: np.ndarray


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
        """Whether rows of this length can be drawn; ``field`` is what the length is called.

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
        """Of how many tokens an answer is one: always naming the same of them is right once in so many."""

    @property
    @abc.abstractmethod
    def symbols(self) -> tuple[str, ...]:
        """A name for each token."""

    def require(self, field: str, holds: bool, expected: str) -> None:
        """Raises ConfigError about a field, unless it ``holds``."""
        if not holds:
            raise ConfigError(
                f"{type(self.config).__name__}.{field}={getattr(self.config, field)} does not fit; expected {expected}"
            )
