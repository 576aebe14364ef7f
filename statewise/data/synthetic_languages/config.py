"""Which synthetic language, of what size."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from statewise.data.base import DataConfig
from statewise.data.synthetic_languages.associative_recall import AssociativeRecall
from statewise.data.synthetic_languages.induction_head import InductionHead
from statewise.data.synthetic_languages.language import Language
from statewise.data.synthetic_languages.long_induction_head import LongInductionHead
from statewise.data.synthetic_languages.multi_query_recall import MultiQueryRecall
from statewise.data.synthetic_languages.selective_copying import SelectiveCopying
from statewise.errors import ConfigError

LANGUAGES: dict[str, type[Language]] = {
    "induction-head": InductionHead,
    "associative-recall": AssociativeRecall,
    "mqar": MultiQueryRecall,
    "selective-copying": SelectiveCopying,
    "long-induction-head": LongInductionHead,
}

# Of the fields that are no integers
KINDS: dict[str, tuple[tuple[type, ...], str]] = {
    "task": ((str,), "a name"),
    "alpha": ((int, float), "a number"),
    "random_non_queries": ((bool,), "true or false"),
    "answer_only": ((bool,), "true or false"),
}


@dataclass(frozen=True, kw_only=True)
class SyntheticLanguageConfig(DataConfig):
    """One of five languages that ask what a model remembers of the tokens before. Each is described in its class.

    induction-head       the token that followed "=>" the first time (``InductionHead``)
    associative-recall   the value of a key (``AssociativeRecall``)
    mqar                 the values of many keys (``MultiQueryRecall``; n_pairs, alpha, random_non_queries)
    selective-copying    symbols among noise, in order (``SelectiveCopying``; n_copied)
    long-induction-head  the first, at any length of the test (``LongInductionHead``)

    A field that is None has the value that was published for the task (``resolved``); one that the task does not have
    has to be None.

    vocab_size:   all tokens, the special ones counted in
    length:       tokens of a row; for the two induction heads and associative recall with the answer at the end, which
                  a model does not read
    test_length:  of the test split, where it is not ``length``
    n_pairs, alpha, random_non_queries:   mqar's pairs, the power law of its gaps, and what stands between its queries
    n_copied:     symbols to be copied
    answer_only:  whether the loss counts the answers alone, or every next token as well; accuracy is always that of the
                  answers. The published setting is the second for the first two tasks, and the first for the others.
    n_train, n_validation, n_test:   how many rows. No row of a split is in another one, at any sizes.

    Errors:  ConfigError that names the field and the task.
    """

    task: str = "induction-head"
    vocab_size: int | None = None
    length: int | None = None
    test_length: int | None = None
    n_pairs: int | None = None
    alpha: float | None = None
    random_non_queries: bool | None = None
    n_copied: int | None = None
    answer_only: bool | None = None
    n_train: int | None = None
    n_validation: int | None = None
    n_test: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.task, str) or self.task not in LANGUAGES:
            raise ConfigError(f"SyntheticLanguageConfig.task={self.task!r} is unknown; use one of {list(LANGUAGES)}")
        for name, value in asdict(self).items():
            kinds, expected = KINDS.get(name, ((int,), "an integer"))
            fits = isinstance(value, kinds) and (bool in kinds or not isinstance(value, bool))
            if not fits and (value is not None or name == "seed"):
                raise ConfigError(f"SyntheticLanguageConfig.{name}={value!r} does not fit; expected {expected}")
        language = LANGUAGES[self.task](self)
        for name, value in asdict(self).items():
            if value is not None and name not in ("task", "seed", *language.defaults):
                raise ConfigError(f"SyntheticLanguageConfig.{name} is not for the task {self.task!r}; leave it out")
        for name, low, high in (
            ("vocab_size", 1, 2**31),
            ("n_train", 1, 2**31),
            ("n_validation", 0, 2**31),
            ("n_test", 0, 2**31),
            ("seed", 0, 2**63),
        ):
            value = self.resolved(name)
            if not low <= value < high:
                raise ConfigError(f"SyntheticLanguageConfig.{name}={value} is out of range; use {low} to {high - 1}")
        language.check(self.resolved("length"), "length")
        if self.test_length is not None:
            language.check(self.test_length, "test_length")

    def resolved(self, name: str) -> Any:
        """A field, or the value that was published for the task; None where the task has no such field."""
        value = getattr(self, name)
        return LANGUAGES[self.task].defaults.get(name) if value is None else value

    def with_absolute_paths(self) -> SyntheticLanguageConfig:
        return self
