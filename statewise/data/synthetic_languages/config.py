"""Which synthetic language, of what size: a class for each, whose defaults are the published values."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from statewise.configuration import TYPE_KEY
from statewise.configuration.types import Count, LongSeed, Positive, at_least, from_to
from statewise.data.base import DataConfig
from statewise.data.synthetic_languages.associative_recall import AssociativeRecall
from statewise.data.synthetic_languages.induction_head import InductionHead
from statewise.data.synthetic_languages.language import Language
from statewise.data.synthetic_languages.long_induction_head import LongInductionHead
from statewise.data.synthetic_languages.multi_query_recall import MultiQueryRecall
from statewise.data.synthetic_languages.selective_copying import SelectiveCopying
from statewise.errors import ConfigError

Rows = Annotated[int, from_to(0, 2**31 - 1, "2**31 - 1")]
TrainingRows = Annotated[int, from_to(1, 2**31 - 1, "2**31 - 1")]


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
    n_train: TrainingRows
    n_validation: Rows = 500
    n_test: Rows = 500
    seed: LongSeed = 0

    def __post_init__(self) -> None:
        self.language.check(self.length, "length")
        if self.test_length is not None:
            self.language.check(self.test_length, "test_length")

    @property
    @abc.abstractmethod
    def language(self) -> Language:
        """What draws its rows."""

    def with_absolute_paths(self) -> SyntheticLanguageConfig:
        return self


@dataclass(frozen=True, kw_only=True)
class InductionHeadConfig(SyntheticLanguageConfig):
    """The token that followed "=>" the first time: :class:`InductionHead`."""

    task: ClassVar[str] = "induction-head"

    vocab_size: Annotated[int, at_least(4)] = 20  # "=>", "." and two others at least
    length: Count = 32
    answer_only: bool = False
    n_train: TrainingRows = 5000

    @property
    def language(self) -> Language:
        return InductionHead(self)


@dataclass(frozen=True, kw_only=True)
class AssociativeRecallConfig(SyntheticLanguageConfig):
    """The value of a key: :class:`AssociativeRecall`."""

    task: ClassVar[str] = "associative-recall"

    vocab_size: Annotated[int, at_least(6)] = 10  # "=>", ".", two keys and two values at least
    length: Count = 23
    answer_only: bool = False
    n_train: TrainingRows = 5000

    @property
    def language(self) -> Language:
        return AssociativeRecall(self)


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
    n_train: TrainingRows = 100_000
    n_validation: Rows = 3000
    n_test: Rows = 3000

    @property
    def language(self) -> Language:
        return MultiQueryRecall(self)


@dataclass(frozen=True, kw_only=True)
class SelectiveCopyingConfig(SyntheticLanguageConfig):
    """``n_copied`` symbols among noise, in order: :class:`SelectiveCopying`."""

    task: ClassVar[str] = "selective-copying"

    vocab_size: Annotated[int, at_least(4)] = 16  # the noise, the marker and two symbols at least
    length: Count = 4096
    n_copied: Count = 16
    n_train: TrainingRows = 25_600_000
    n_validation: Rows = 256
    n_test: Rows = 512

    @property
    def language(self) -> Language:
        return SelectiveCopying(self)


@dataclass(frozen=True, kw_only=True)
class LongInductionHeadConfig(SyntheticLanguageConfig):
    """The induction head at any length of the test: :class:`LongInductionHead`."""

    task: ClassVar[str] = "long-induction-head"

    vocab_size: Annotated[int, at_least(3)] = 16  # "=>" and two others at least
    length: Count = 256
    n_train: TrainingRows = 25 * 8192 * 8
    n_validation: Rows = 512
    n_test: Rows = 512

    @property
    def language(self) -> Language:
        return LongInductionHead(self)


# By the names of their tasks.
LANGUAGES: dict[str, type[Any]] = {
    cls.task: cls
    for cls in (
        InductionHeadConfig,
        AssociativeRecallConfig,
        MultiQueryRecallConfig,
        SelectiveCopyingConfig,
        LongInductionHeadConfig,
    )
}
# What the one class for all of them had, whose JSON is in older runs: there None was the published value, or said that
# the task has no such field.
OLD_FIELDS = (
    "vocab_size", "length", "test_length", "n_pairs", "alpha", "random_non_queries", "n_copied", "answer_only",
    "n_train", "n_validation", "n_test", "seed",
)  # fmt: skip


def from_one_class(data: Any) -> Any:
    """The JSON of a language as runs have it now. What is not of that older form stays as it is.

    Errors:  ConfigError for a task that is none.

    >>> from_one_class({"type": "SyntheticLanguageConfig", "task": "mqar", "n_pairs": 8, "n_copied": None})
    {'type': 'MultiQueryRecallConfig', 'n_pairs': 8}
    """
    if not isinstance(data, Mapping) or data.get(TYPE_KEY) != SyntheticLanguageConfig.__name__:
        return data
    task = data.get("task", InductionHeadConfig.task)
    if not isinstance(task, str) or task not in LANGUAGES:
        raise ConfigError(f"data.task={task!r} is unknown; use one of {', '.join(LANGUAGES)}")
    fields = {name: value for name, value in data.items() if name not in (TYPE_KEY, "task") and value is not None}
    return {TYPE_KEY: LANGUAGES[task].__name__, **fields}
