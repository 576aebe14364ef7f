"""A language model as ``transformers`` wants it: configuration, cache, padding and loss around ours."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor, nn
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from statewise.configuration import to_dict
from statewise.data.tokenizers import Tokenizer, require_fits
from statewise.errors import InputError
from statewise.integrations.transformers.arguments import IGNORED, check_assisted, check_labels, refuse, starts_of
from statewise.integrations.transformers.cache import StatewiseCache
from statewise.integrations.transformers.config import StatewiseConfig
from statewise.integrations.transformers.padding import from_right_padded, read_mask, to_right_padded
from statewise.integrations.transformers.pretrained import StatewisePreTrainedModel, wrapped
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.language_model import LanguageModel, LanguageModelConfig


class StatewiseForCausalLM(StatewisePreTrainedModel, GenerationMixin):
    """Any Statewise language model for ``generate``, ``Trainer`` and ``pipeline``. ``model`` is ours.

    Rows may be padded anywhere, left or right: a column whose ``attention_mask`` is 0 is not read, whatever its id, and
    its logits are those of the row's last token before it. Rows of a padded batch say what they would say alone.
    """

    main_input_name = "input_ids"
    model: LanguageModel
    _is_stateful = False  # to them, a cache that cannot be cut back
    _tied_weights_keys = {"model.head.weight": "model.embedding.weight"}  # noqa: RUF012 (the base class has a dict)

    def __init__(self, config: StatewiseConfig) -> None:
        super().__init__(config)
        self._readers: list[LanguageModel] = []  # frozen copies while they generate; in a list they are no submodules

    def _config_of(self, config: StatewiseConfig) -> LanguageModelConfig:
        return config.language_model()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embedding

    def get_output_embeddings(self) -> nn.Module:
        return self.model.head

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Refused, unless nothing would change: the vocabulary is part of the model's config."""
        if new_num_tokens in (None, self.config.vocab_size):
            return self.model.embedding
        raise InputError(
            f"a Statewise model's vocabulary of {self.config.vocab_size} cannot be resized to {new_num_tokens}; "
            "use tokens that it has (padding may have any id, as masked columns are not read)"
        )

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """As theirs; mixers that are time-invariant discretise once and not at every token.

        Errors:  InputError for ids without a column, and for what a state cannot do.
        """
        given = args[0] if args else kwargs.get("inputs", kwargs.get("input_ids"))
        if isinstance(given, Tensor) and given.ndim == 2 and not given.shape[1]:
            raise InputError(
                f"the prompt has the shape {tuple(given.shape)}, which has no token to continue from; "
                "begin every row with a token, such as the tokenizer's bos token"
            )
        check_assisted(kwargs)
        if self.training or not has_operators_to_prepare(self.model):
            return super().generate(*args, **kwargs)
        self._readers.append(freeze(self.model))
        try:
            return super().generate(*args, **kwargs)
        finally:
            self._readers.pop()

    def prepare_inputs_for_generation(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """As theirs, without the tokenizers of stop strings, which they pass on with what the model reads."""
        for name in ("tokenizer", "assistant_tokenizer"):
            kwargs.pop(name, None)
        return cast("dict[str, Any]", super().prepare_inputs_for_generation(*args, **kwargs))

    def _prepare_cache_for_generation(self, generation_config: Any, model_kwargs: dict[str, Any], *rest: Any) -> None:
        """A cache of ours where the caller gave none."""
        given = generation_config.cache_implementation
        if given not in (None, "dynamic"):
            raise InputError(
                f"cache_implementation={given!r} is for keys and values, which a state does not need; leave it out"
            )
        cache = model_kwargs.get("past_key_values")
        if cache is None and generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = StatewiseCache()
        elif cache is not None:
            cache._is_user_defined = True  # generate returns such a cache as it leaves it
        if generation_config.is_assistant:
            model_kwargs["past_key_values"].activate_past_recording()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: StatewiseCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast | tuple[Any, ...]:
        """Logits, the loss if ``labels`` are given, and the cache.

        past_key_values: read on from it; the new state is written into it
        labels:          the tokens, -100 where there is no target; position t is compared with the label of t + 1.
                         Padding has no target, and neither has a row's first token.
        logits_to_keep:  logits of that many last columns alone, or of these columns; 0: all
                         With labels all of them are needed.
        position_ids:    (batch, length) or (1, length), only read for where they are 0: there a packed document begins

        Shapes:  input_ids, attention_mask, labels: (batch, length)   ->   logits: (batch, length, vocab_size)
        Errors:  InputError for arguments that do not fit, and for arguments of theirs that have no meaning here.
        """
        position_ids = kwargs.pop("position_ids", None)
        loss_arguments = {"num_items_in_batch": kwargs.pop("num_items_in_batch", None)}
        refuse(kwargs)
        if not isinstance(input_ids, Tensor) or input_ids.ndim != 2:
            raise InputError("input_ids must be a tensor (batch, length); a Statewise model reads ids, not embeddings")
        starts = starts_of(position_ids, input_ids)
        if labels is not None:
            check_labels(labels, input_ids, logits_to_keep, self.model.config.vocab_size)
        cache = self._cache(past_key_values, use_cache, len(input_ids))
        fresh = cache is None or not cache.n_columns
        real = read_mask(attention_mask, input_ids)
        features = self._features(input_ids, real, starts, cache, fresh)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self._reading_model.head(features[:, kept])
        loss = None
        if labels is not None:
            labels = labels if real is None else labels.masked_fill(_no_target(real, fresh), IGNORED)
            loss = self.loss_function(logits, labels, vocab_size=logits.shape[-1], **loss_arguments)
        output = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache)
        return output if (self.config.return_dict if return_dict is None else return_dict) else output.to_tuple()

    @property
    def _reading_model(self) -> LanguageModel:
        return self._readers[-1] if self._readers else self.model

    def _cache(self, cache: Any, use_cache: bool | None, batch: int) -> StatewiseCache | None:
        """The cache to read on from, with a state in it."""
        if cache is None:
            use_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
            cache = StatewiseCache() if use_cache else None
        elif not isinstance(cache, StatewiseCache):
            raise InputError(f"past_key_values is a {type(cache).__name__}; a Statewise model needs a StatewiseCache")
        if cache is None:
            return None
        if cache.state is None:
            cache.state = self.model.initial_state(batch)
            weight = self.model.head.weight
            cache.features = weight.new_zeros(batch, weight.shape[1])
        elif cache.batch_size != batch:
            raise InputError(
                f"the cache has {cache.batch_size} rows and the tokens {batch}; for beams or several continuations of "
                "a row, call cache.batch_repeat_interleave(n) first"
            )
        return cast(StatewiseCache, cache)

    def _features(
        self, tokens: Tensor, real: Tensor | None, starts: Tensor | None, cache: StatewiseCache | None, fresh: bool
    ) -> Tensor:
        """The model's features of every column; the cache is advanced."""
        n_columns, lengths, document = tokens.shape[1], None, self.config.document_token_id
        if real is not None:
            lengths, (tokens, starts) = to_right_padded(real, tokens, starts)  # type: ignore[assignment]
        if document is not None:
            starts = tokens == document if starts is None else starts | (tokens == document)
        if starts is not None and fresh and starts.shape[1]:
            starts[:, 0] = False  # a row that begins at rest needs no telling, and goes faster untold
        if starts is not None and not bool(starts.any()):
            starts = None
        state = None if cache is None else cache.readable()
        features, state = self._reading_model.features(tokens, state, lengths=lengths, starts=starts)
        if real is not None:
            before = features.new_zeros(len(features), features.shape[-1]) if cache is None else cache.features
            features = from_right_padded(features, cast(Tensor, before), real)
        if cache is not None and n_columns:
            cache.advance(state, features, real)
        return features


def wrap_language_model(model: LanguageModel, tokenizer: Tokenizer | None) -> StatewiseForCausalLM:
    """As ``from_statewise``."""
    ids: dict[str, Any] = {}
    if tokenizer is not None:
        require_fits(tokenizer, model.config.vocab_size)
        names = ("document_token_id", "bos_token_id", "eos_token_id", "pad_token_id")
        ids = dict.fromkeys(names, tokenizer.document_token)
        theirs = tokenizer.conventions
        if theirs is not None:
            ids = dict(zip(names, (None, theirs.begin_id, list(theirs.end_ids), theirs.padding_id)))
    around = wrapped(StatewiseForCausalLM, StatewiseConfig(model=model.config, **ids), model)
    if tokenizer is not None:
        without_token = [*tokenizer.gaps, *range(tokenizer.vocab_size, model.config.vocab_size)]
        around.generation_config.suppress_tokens = without_token or None
        if tokenizer.conventions is not None:
            for name, value in to_dict(tokenizer.conventions.settings).items():
                if value is not None and not name.endswith("_token_id"):
                    setattr(around.generation_config, name, value)
    return around


def _no_target(real: Tensor, fresh: bool) -> Tensor:
    """Padding, and a row's first token, which nothing before it predicts."""
    return ~real | (real.cumsum(1) < 2) if fresh else ~real
