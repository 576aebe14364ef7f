"""Data: text (sources, tokenizers, the token store on disk), labelled sequences, memory tasks, time series, synthetic
languages; batches.

Only the batches need torch, and only a tokenizer.json the ``tokenizers`` library: each is imported when first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from statewise.data.labelled import LabelledData as LabelledData
from statewise.data.labelled import LabelledDataConfig as LabelledDataConfig
from statewise.data.labelled import open_labelled as open_labelled
from statewise.data.labelled_text import LabelledTextData as LabelledTextData
from statewise.data.labelled_text import LabelledTextDataConfig as LabelledTextDataConfig
from statewise.data.labelled_text import open_labelled_texts as open_labelled_texts
from statewise.data.memory_tasks import MemoryData as MemoryData
from statewise.data.memory_tasks import MemoryDataConfig as MemoryDataConfig
from statewise.data.memory_tasks import open_memory_task as open_memory_task
from statewise.data.sequences import LabelledSplit as LabelledSplit
from statewise.data.series import SeriesData as SeriesData
from statewise.data.series import SeriesDataConfig as SeriesDataConfig
from statewise.data.series import SeriesSplit as SeriesSplit
from statewise.data.series import open_series as open_series
from statewise.data.synthetic_languages import AssociativeRecallConfig as AssociativeRecallConfig
from statewise.data.synthetic_languages import InductionHeadConfig as InductionHeadConfig
from statewise.data.synthetic_languages import LongInductionHeadConfig as LongInductionHeadConfig
from statewise.data.synthetic_languages import MultiQueryRecallConfig as MultiQueryRecallConfig
from statewise.data.synthetic_languages import SelectiveCopyingConfig as SelectiveCopyingConfig
from statewise.data.synthetic_languages import SyntheticLanguage as SyntheticLanguage
from statewise.data.synthetic_languages import SyntheticLanguageConfig as SyntheticLanguageConfig
from statewise.data.synthetic_languages import open_synthetic_language as open_synthetic_language
from statewise.data.text import Corpus as Corpus
from statewise.data.text import TextDataConfig as TextDataConfig
from statewise.data.text import TokenSplit as TokenSplit
from statewise.data.text import open_corpus as open_corpus
from statewise.data.tokenizers import ByteTokenizer as ByteTokenizer
from statewise.data.tokenizers import FileTokenizer as FileTokenizer
from statewise.data.tokenizers import Tokenizer as Tokenizer
from statewise.data.tokenizers import load_tokenizer as load_tokenizer
from statewise.data.tokenizers import require_same_tokenizer as require_same_tokenizer

if TYPE_CHECKING:
    from statewise.data.batches import Batch as Batch
    from statewise.data.batches import Batches as Batches
    from statewise.data.labelled_batches import LabelledBatch as LabelledBatch
    from statewise.data.labelled_batches import LabelledBatches as LabelledBatches
    from statewise.data.series_batches import SeriesBatch as SeriesBatch
    from statewise.data.series_batches import SeriesBatches as SeriesBatches


_WITH_TORCH = {
    f"{kind}{one}": module
    for kind, module in (("", "batches"), ("Labelled", "labelled_batches"), ("Series", "series_batches"))
    for one in ("Batch", "Batches")
}


def __getattr__(name: str) -> Any:
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"statewise.data.{_WITH_TORCH[name]}"), name)
