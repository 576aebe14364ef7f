"""The synthetic languages by name, and what their JSON was in older runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statewise.configuration import TYPE_KEY
from statewise.data.synthetic_languages.associative_recall import AssociativeRecallConfig
from statewise.data.synthetic_languages.induction_head import InductionHeadConfig
from statewise.data.synthetic_languages.language import SyntheticLanguageConfig
from statewise.data.synthetic_languages.long_induction_head import LongInductionHeadConfig
from statewise.data.synthetic_languages.multi_query_recall import MultiQueryRecallConfig
from statewise.data.synthetic_languages.selective_copying import SelectiveCopyingConfig
from statewise.errors import ConfigError

__all__ = [
    "LANGUAGES",
    "OLD_FIELDS",
    "AssociativeRecallConfig",
    "InductionHeadConfig",
    "LongInductionHeadConfig",
    "MultiQueryRecallConfig",
    "SelectiveCopyingConfig",
    "SyntheticLanguageConfig",
    "from_one_class",
]

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
