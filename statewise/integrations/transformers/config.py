"""A model's config inside that of ``transformers``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig

from statewise.errors import ConfigError
from statewise.models.base import ModelConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.language_model import LanguageModelConfig
from statewise.models.registry import model_from_dict, model_to_dict
from statewise.models.regressor import SequenceRegressorConfig

MODELS = (LanguageModelConfig, SequenceClassifierConfig, SequenceRegressorConfig)


class StatewiseConfig(PreTrainedConfig):
    """config.json of model type "statewise": our config under "model", as a checkpoint of Statewise has it.

    model:             the config of a language model, a classifier or a regressor, or what ``registry.model_to_dict``
                       made of one
    document_token_id: this token begins a document wherever a language model reads it, which then knows nothing of the
                       one before; None: no token does
    use_cache:         whether a call of a language model in evaluation mode gives a cache, where it does not say

    ``vocab_size``, ``hidden_size``, ``num_hidden_layers``, ``tie_word_embeddings``, and of classifiers and regressors
    ``id2label`` and ``problem_type``, follow from ``model`` and are there for other tools to read.

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
            config = self.model if isinstance(self.model, MODELS) else _read(self.model, MODELS)
            self.model = model_to_dict(config)
            for name, value in _derived(config).items():
                given = getattr(self, name)
                if name == "id2label" and given is not None:
                    given = {int(number): label for number, label in given.items()}  # JSON has only texts as keys
                if given is not None and given != value:
                    raise ConfigError(f"{name}={given!r} contradicts model, which says {value!r}; leave {name} out")
                setattr(self, name, value)
            n_labels = kwargs.pop("num_labels", None)
            if n_labels is not None and self.id2label is not None and n_labels != len(self.id2label):
                raise ConfigError(
                    f"num_labels={n_labels} contradicts model, which says {len(self.id2label)}; leave num_labels out"
                )
        super().__post_init__(**kwargs)

    def language_model(self) -> LanguageModelConfig:
        """Our config. Errors: ConfigError if there is none, or that of another model."""
        return _read(self.model, (LanguageModelConfig,))

    def sequence_model(self) -> SequenceClassifierConfig | SequenceRegressorConfig:
        """Our config. Errors: ConfigError if there is none, or that of another model."""
        config: SequenceClassifierConfig | SequenceRegressorConfig = _read(self.model, MODELS[1:])
        return config


def _derived(config: ModelConfig) -> dict[str, Any]:
    """Fields of theirs, from our config."""
    shared = {"hidden_size": config.d_model, "num_hidden_layers": len(config.layers)}  # type: ignore[attr-defined]
    if isinstance(config, LanguageModelConfig):
        return {**shared, "vocab_size": config.vocab_size, "tie_word_embeddings": config.tie_embeddings}
    assert isinstance(config, (SequenceClassifierConfig, SequenceRegressorConfig))
    names = getattr(config, "classes", ()) or [f"LABEL_{i}" for i in range(config.n_outputs)]  # as theirs has it
    kind = "single_label_classification" if isinstance(config, SequenceClassifierConfig) else "regression"
    return {
        **shared,
        **({} if config.vocab_size is None else {"vocab_size": config.vocab_size}),
        "tie_word_embeddings": False,
        "id2label": dict(enumerate(names)),
        "label2id": {name: number for number, name in enumerate(names)},
        "problem_type": kind,
    }


def _read(data: Any, kinds: tuple[type[ModelConfig], ...]) -> Any:
    expected = " or ".join(kind.__name__ for kind in kinds)
    if not isinstance(data, Mapping):
        raise ConfigError(
            f"StatewiseConfig.model={data!r}; expected a {expected}, or the JSON object that describes one"
        )
    config = model_from_dict(data)
    if not isinstance(config, kinds):
        raise ConfigError(f"StatewiseConfig.model is a {type(config).__name__}; expected a {expected}")
    return config
