"""Statewise language models in Hugging Face's ``transformers``: extra ``hf``, transformers 5.

Importing this module registers the model type "statewise" with ``AutoConfig`` and ``AutoModelForCausalLM``.

A thin layer: state and mathematics are :class:`~statewise.models.language_model.LanguageModel`'s own.
"""

from __future__ import annotations

from statewise.errors import importing

with importing("transformers", "hf", "the wrapper needs version 5 of"):
    import transformers
    from transformers import PreTrainedConfig as _  # noqa: F401 (its name since version 5)

from statewise.integrations.transformers.cache import StatewiseCache
from statewise.integrations.transformers.config import StatewiseConfig
from statewise.integrations.transformers.model import StatewiseForCausalLM, from_statewise
from statewise.integrations.transformers.tokenizer import fast_tokenizer

__all__ = ["StatewiseCache", "StatewiseConfig", "StatewiseForCausalLM", "fast_tokenizer", "from_statewise"]

transformers.AutoConfig.register(StatewiseConfig.model_type, StatewiseConfig, exist_ok=True)
transformers.AutoModelForCausalLM.register(StatewiseConfig, StatewiseForCausalLM, exist_ok=True)
