"""Data: text (sources, tokenizers, the token store on disk), labelled sequences, memory tasks, time series, synthetic
languages; batches.

Only the batches need torch, and only a tokenizer.json the ``tokenizers`` library: each is imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from statewise.data.labelled import LabelledData, LabelledDataConfig, open_labelled
from statewise.data.memory_tasks import MemoryData, MemoryDataConfig, open_memory_task
from statewise.data.sequences import LabelledSplit
from statewise.data.series import SeriesData, SeriesDataConfig, SeriesSplit, open_series
from statewise.data.synthetic_languages import (
    AssociativeRecallConfig,
    InductionHeadConfig,
    LongInductionHeadConfig,
    MultiQueryRecallConfig,
    SelectiveCopyingConfig,
    SyntheticLanguage,
    SyntheticLanguageConfig,
    open_synthetic_language,
)
from statewise.data.text import Corpus, TextDataConfig, TokenSplit, open_corpus
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, load_tokenizer, require_same_tokenizer

if TYPE_CHECKING:
    from statewise.data.batches import Batch, Batches
    from statewise.data.labelled_batches import LabelledBatch, LabelledBatches
    from statewise.data.series_batches import SeriesBatch, SeriesBatches

__all__ = [
    "AssociativeRecallConfig",
    "Batch",
    "Batches",
    "ByteTokenizer",
    "Corpus",
    "FileTokenizer",
    "InductionHeadConfig",
    "LabelledBatch",
    "LabelledBatches",
    "LabelledData",
    "LabelledDataConfig",
    "LabelledSplit",
    "LongInductionHeadConfig",
    "MemoryData",
    "MemoryDataConfig",
    "MultiQueryRecallConfig",
    "SelectiveCopyingConfig",
    "SeriesBatch",
    "SeriesBatches",
    "SeriesData",
    "SeriesDataConfig",
    "SeriesSplit",
    "SyntheticLanguage",
    "SyntheticLanguageConfig",
    "TextDataConfig",
    "TokenSplit",
    "Tokenizer",
    "load_tokenizer",
    "open_corpus",
    "open_labelled",
    "open_memory_task",
    "open_series",
    "open_synthetic_language",
    "require_same_tokenizer",
]


def __getattr__(name: str) -> Any:
    if name in ("Batch", "Batches"):
        from statewise.data import batches

        return getattr(batches, name)
    if name in ("LabelledBatch", "LabelledBatches"):
        from statewise.data import labelled_batches

        return getattr(labelled_batches, name)
    if name in ("SeriesBatch", "SeriesBatches"):
        from statewise.data import series_batches

        return getattr(series_batches, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
