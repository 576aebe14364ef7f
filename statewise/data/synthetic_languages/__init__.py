"""Synthetic languages: rows of tokens in which the answer to the last of them was seen before.

The data need only numpy; the batches need torch, and are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statewise.data.synthetic_languages.config import (
    LANGUAGES,
    AssociativeRecallConfig,
    InductionHeadConfig,
    LongInductionHeadConfig,
    MultiQueryRecallConfig,
    SelectiveCopyingConfig,
    SyntheticLanguageConfig,
)
from statewise.data.synthetic_languages.data import (
    IGNORED,
    LanguageSplit,
    SyntheticLanguage,
    open_synthetic_language,
)
from statewise.data.synthetic_languages.language import Language, Rows

if TYPE_CHECKING:
    from statewise.data.synthetic_languages.batches import RecallBatch, RecallBatches

__all__ = [
    "IGNORED",
    "LANGUAGES",
    "AssociativeRecallConfig",
    "InductionHeadConfig",
    "Language",
    "LanguageSplit",
    "LongInductionHeadConfig",
    "MultiQueryRecallConfig",
    "RecallBatch",
    "RecallBatches",
    "Rows",
    "SelectiveCopyingConfig",
    "SyntheticLanguage",
    "SyntheticLanguageConfig",
    "open_synthetic_language",
]


def __getattr__(name: str) -> Any:
    if name in ("RecallBatch", "RecallBatches"):
        from statewise.data.synthetic_languages import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
