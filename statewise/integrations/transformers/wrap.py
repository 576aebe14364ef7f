"""From a model of ours to one of ``transformers``."""

from __future__ import annotations

from typing import overload

from statewise.data.tokenizers import Tokenizer
from statewise.errors import InputError
from statewise.integrations.transformers.classifier import StatewiseForSequenceClassification, wrap_sequence_model
from statewise.integrations.transformers.model import StatewiseForCausalLM, wrap_language_model
from statewise.models.classifier import SequenceClassifier
from statewise.models.language_model import LanguageModel
from statewise.models.regressor import SequenceRegressor


@overload
def from_statewise(model: LanguageModel, tokenizer: Tokenizer | None = None) -> StatewiseForCausalLM: ...
@overload
def from_statewise(
    model: SequenceClassifier | SequenceRegressor, tokenizer: Tokenizer | None = None
) -> StatewiseForSequenceClassification: ...
def from_statewise(
    model: LanguageModel | SequenceClassifier | SequenceRegressor, tokenizer: Tokenizer | None = None
) -> StatewiseForCausalLM | StatewiseForSequenceClassification:
    """The model, wrapped; nothing is copied, ``from_statewise(model).model is model``.

    With a tokenizer its document token begins and ends the documents of a language model; with that of a published
    model its own end tokens end a row, and the settings are the published ones. Ids that it does not have (of a
    vocabulary that was padded) are never drawn, as in ``sw.generate(..., tokenizer=tokenizer)``.

    Errors:  InputError for anything but a language model, a classifier or a regressor that is not frozen; for a
             tokenizer with more tokens, or beside a model that does not write; ConfigError for a model without pooling.
    """
    if not isinstance(model, (LanguageModel, SequenceClassifier, SequenceRegressor)) or model.is_frozen:
        what = "frozen model" if getattr(model, "is_frozen", False) else type(model).__name__
        raise InputError(
            f"from_statewise needs a LanguageModel, a SequenceClassifier or a SequenceRegressor that is not frozen, "
            f"got a {what}"
        )
    if isinstance(model, LanguageModel):
        return wrap_language_model(model, tokenizer)
    if tokenizer is not None:
        raise InputError(f"only a language model needs a tokenizer, not a {type(model).__name__}; leave it out")
    return wrap_sequence_model(model)
