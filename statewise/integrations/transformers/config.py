"""A model's config inside that of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from statewise.errors import ConfigError
from statewise.models.language_model import LanguageModelConfig
from statewise.models.registry import model_from_dict, model_to_dict

DERIVED = ("vocab_size", "hidden_size", "num_hidden_layers", "tie_word_embeddings")


class StatewiseConfig(PreTrainedConfig):
    """config.json of model type "statewise": our config under "model", as a checkpoint of Statewise has it.

    model:             a ``LanguageModelConfig``, or what ``registry.model_to_dict`` made of one
    document_token_id: this token begins a document wherever it is read, which then knows nothing of the one before;
                       None: no token does
    use_cache:         whether a call in evaluation mode gives a cache, where it does not say

    ``vocab_size``, ``hidden_size``, ``num_hidden_layers`` and ``tie_word_embeddings`` follow from ``model`` and are
    there for other tools to read.

    Errors:  ConfigError for a model that Statewise does not know, and for derived fields that contradict it.
    """

    model_type = "statewise"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 (the base class has a list)

    model: Any = None
    document_token_id: int | None = None
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    vocab_size: int | None = None
    hidden_size: int | None = None
    num_hidden_layers: int | None = None
    tie_word_embeddings: bool | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        if self.model is not None:
            config = self.model if isinstance(self.model, LanguageModelConfig) else _read(self.model)
            self.model = model_to_dict(config)
            derived = (config.vocab_size, config.d_model, len(config.layers), config.tie_embeddings)
            for name, value in zip(DERIVED, derived):
                given = getattr(self, name)
                if given is not None and given != value:
                    raise ConfigError(f"{name}={given!r} contradicts model, which says {value!r}; leave {name} out")
                setattr(self, name, value)
        super().__post_init__(**kwargs)

    def language_model(self) -> LanguageModelConfig:
        """Our config. Errors: ConfigError if there is none."""
        return _read(self.model)


def _read(data: Any) -> LanguageModelConfig:
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"StatewiseConfig.model={data!r}; expected a LanguageModelConfig, or the JSON object that describes one"
        )
    config = model_from_dict(data)
    if not isinstance(config, LanguageModelConfig):
        raise ConfigError(f"StatewiseConfig.model is a {type(config).__name__}; expected a LanguageModelConfig")
    return config
