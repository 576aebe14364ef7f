"""Presets for your own data: sizes, time scales and the budget follow from the data.

They aim at a decent model in a minute or two on two cores. The tuned presets show what more work on one data set gives.
Each is a function of the data and of the names of their fields that were given, which it leaves as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import cast

from statewise.data.base import DataConfig
from statewise.data.fasta import holds_bases
from statewise.data.recognise import CORPUS, LABELLED, SERIES_KIND, TEXTS
from statewise.data.text import TextDataConfig
from statewise.data.text_sources import find_text
from statewise.data.tokenizers import NAMED
from statewise.models import presets as models
from statewise.models.base import ModelConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.forecaster import ForecasterConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.training.config import (
    BudgetConfig,
    OptimizerConfig,
    ReportingConfig,
    RunConfig,
    ScheduleConfig,
    TrainConfig,
)
from statewise.training.environment import multiplies_bfloat16
from statewise.training.presets.forecasting import forecaster
from statewise.training.presets.labelled import classifier, labelled, regressor
from statewise.training.presets.texts import text_classifier

LANGUAGE_MINUTES = 5.0
VOCABULARY = ((300_000, 0), (3_000_000, 2048), (1 << 62, 4096))  # of texts up to so many bytes; 0: bytes
BYTES_A_TOKEN = 3.5  # of what is learned, about
FEW_TOKENS = 60_000  # so few are read often enough before the time is up: their run ends after so many epochs
EPOCHS = 30.0


def language(data: DataConfig, given: Collection[str]) -> RunConfig:
    """The hybrid of ``make demo`` on any text: five minutes, in tokens that it learns where there is text enough."""
    data = cast(TextDataConfig, data)
    found = find_text(data.source, data.text_field, as_text=data.as_text)
    n_bytes, bases = found.n_bytes, holds_bases(found)
    if "tokenizer" not in given and bases is not None:  # no words to learn
        data = replace(data, tokenizer="bases" if bases else "bytes")
    elif "tokenizer" not in given:
        size = next(size for most, size in VOCABULARY if n_bytes <= most)
        data = replace(data, tokenizer=f"bpe:{size}") if size else data
    n_tokens = n_bytes if data.tokenizer in NAMED else n_bytes / BYTES_A_TOKEN
    batch_size, length = 8, 256
    while batch_size > 1 and 4 * batch_size * length > n_tokens:
        batch_size //= 2
    while length > 16 and 2 * batch_size * length > n_tokens:
        length //= 2
    train = TrainConfig(
        budget=BudgetConfig(minutes=LANGUAGE_MINUTES, epochs=EPOCHS if n_tokens <= FEW_TOKENS else None),
        optimizer=OptimizerConfig(lr=4e-3, matrices="muon"),
        schedule=ScheduleConfig(kind="linear", min_ratio=0.0),
        reporting=ReportingConfig(evaluate_minutes=1.0, save_minutes=2.0, evaluate_items=65_536, log_every=25),
        batch_size=batch_size,
        length=length,
        precision="bfloat16" if multiplies_bfloat16() else "float32",
        matmul="fast",
    )
    return RunConfig(model=models.demo(), data=data, train=train)


Preset = Callable[[DataConfig, Collection[str]], RunConfig]
GENERAL: dict[str, Preset] = {
    "classifier": classifier,
    "regressor": regressor,
    "text-classifier": text_classifier,
    "language": language,
    "forecaster": forecaster,
}
KIND_OF = {
    "classifier": LABELLED,
    "regressor": LABELLED,
    "text-classifier": TEXTS,
    "language": CORPUS,
    "forecaster": SERIES_KIND,
}
OF_KIND: dict[str, Preset] = {
    LABELLED: labelled,
    TEXTS: text_classifier,
    CORPUS: language,
    SERIES_KIND: forecaster,
}
MODELS: dict[type[ModelConfig], str] = {  # and the preset that says how they are trained
    SequenceClassifierConfig: "classifier",
    SequenceRegressorConfig: "regressor",
    LanguageModelConfig: "language",
    ForecasterConfig: "forecaster",
}
