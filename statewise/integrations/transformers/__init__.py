"""Statewise models in Hugging Face's ``transformers``: extra ``hf``, transformers 5.

Importing this module registers the model type "statewise" with ``AutoConfig``, ``AutoModelForCausalLM`` and
``AutoModelForSequenceClassification``.

A thin layer: state and mathematics are the models' own.
"""

from __future__ import annotations

from statewise.errors import importing

with importing("transformers", "hf", "the wrapper needs version 5 of"):
    import transformers
    from transformers import PreTrainedConfig as _  # noqa: F401 (its name since version 5)

from statewise.integrations.transformers.cache import StatewiseCache
from statewise.integrations.transformers.classifier import StatewiseForSequenceClassification
from statewise.integrations.transformers.config import StatewiseConfig
from statewise.integrations.transformers.model import StatewiseForCausalLM
from statewise.integrations.transformers.tokenizer import fast_tokenizer
from statewise.integrations.transformers.wrap import from_statewise

__all__ = [
    "StatewiseCache",
    "StatewiseConfig",
    "StatewiseForCausalLM",
    "StatewiseForSequenceClassification",
    "fast_tokenizer",
    "from_statewise",
]

transformers.AutoConfig.register(StatewiseConfig.model_type, StatewiseConfig, exist_ok=True)
for auto, ours in (
    (transformers.AutoModelForCausalLM, StatewiseForCausalLM),
    (transformers.AutoModelForSequenceClassification, StatewiseForSequenceClassification),
):
    auto.register(StatewiseConfig, ours, exist_ok=True)
