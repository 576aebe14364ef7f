"""Synthetic languages: rows of tokens in which the answer to the last of them was seen before.

The data need only numpy; the batches need torch, and are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statewise.data.synthetic_languages.config import LANGUAGES as LANGUAGES
from statewise.data.synthetic_languages.config import AssociativeRecallConfig as AssociativeRecallConfig
from statewise.data.synthetic_languages.config import InductionHeadConfig as InductionHeadConfig
from statewise.data.synthetic_languages.config import LongInductionHeadConfig as LongInductionHeadConfig
from statewise.data.synthetic_languages.config import MultiQueryRecallConfig as MultiQueryRecallConfig
from statewise.data.synthetic_languages.config import SelectiveCopyingConfig as SelectiveCopyingConfig
from statewise.data.synthetic_languages.config import SyntheticLanguageConfig as SyntheticLanguageConfig
from statewise.data.synthetic_languages.data import IGNORED as IGNORED
from statewise.data.synthetic_languages.data import LanguageSplit as LanguageSplit
from statewise.data.synthetic_languages.data import SyntheticLanguage as SyntheticLanguage
from statewise.data.synthetic_languages.data import open_synthetic_language as open_synthetic_language
from statewise.data.synthetic_languages.language import Language as Language
from statewise.data.synthetic_languages.language import Rows as Rows

if TYPE_CHECKING:
    from statewise.data.synthetic_languages.batches import RecallBatch as RecallBatch
    from statewise.data.synthetic_languages.batches import RecallBatches as RecallBatches


def __getattr__(name: str) -> Any:
    if name in ("RecallBatch", "RecallBatches"):
        from statewise.data.synthetic_languages import batches

        return getattr(batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
