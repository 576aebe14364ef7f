"""A model of lm-eval (EleutherAI's lm-evaluation-harness) that runs our language models as they are.

What is measured is what lm-eval's own models measure, to rounding: the same tokens, conditions and sums. How it is
computed differs. A question is read once and shared by all its choices, and so are the examples before it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from statewise.errors import ConfigError, DataError, importing

with importing("lm_eval", "eval", "evaluating on tasks needs"):
    from lm_eval import utils as lm_eval_utils
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import TemplateLM
    from lm_eval.api.registry import register_model
    from lm_eval.models.utils import normalize_gen_kwargs

import torch
from tqdm import tqdm

from statewise import __version__
from statewise.data.tokenizers import Tokenizer, require_fits
from statewise.evaluate.text.likelihood import Score, keep_the_end, score
from statewise.evaluate.text.perplexity import position_limit
from statewise.integrations.lm_eval.opening import open_model, rows_together
from statewise.integrations.lm_eval.texts import write
from statewise.models.language_model import LanguageModel

# Of a task's generation_kwargs: what has another name here, and what changes nothing at this value.
NEUTRAL: Mapping[str, Any] = {"num_beams": 1, "num_return_sequences": 1, "early_stopping": False, "use_cache": True}
SAMPLING = ("top_k", "top_p", "min_p", "repetition_penalty")


@register_model("statewise")
class StatewiseLM(TemplateLM):  # type: ignore[misc, unused-ignore] # a class of Any where lm-eval is not installed
    """A language model and its tokenizer, for lm-eval.

    pretrained:     a model, the folder of a run, or whatever :func:`statewise.load` takes, "hub:owner/name" too
                    ("pretrained" is what lm-eval's models call it)
    tokenizer:      a tokenizer, "bytes" or the path of a tokenizer.json. None: that of the folder
    device:         of a folder's model, such as "cpu" or "cuda". None: the CPU
    dtype:          of a folder's model, "float32", "float16", "bfloat16" or "float64". None or "auto": as saved
    batch_size:     rows read together; "auto" is 16
    max_length:     tokens that a prediction may depend on: longer contexts are cut at their beginning, as in lm-eval's
                    own models. None: all of them, but no more than there are learned positions
    add_bos_token:  begin every context with the document token, and otherwise as the tokenizer itself begins a text:
                    with nothing (GPT-2's and GPT-NeoX's), or with a token of its own (Mistral's). None: with the
                    document token, as ``sw.generate`` does and as models trained here have seen every document begin;
                    but not where ``pretrained`` is a path or name of a model that others published, since published
                    numbers are measured without. (Of a model that is given as it is, nothing says who made it.)
    max_gen_toks:   tokens to write where a task does not say how many
    seed:           of what is drawn, for tasks that sample

    An empty context is that beginning, or the document token where there is none, as with lm-eval's own models.

    Errors:  ConfigError for unknown arguments and a tokenizer larger than the model; CheckpointError and DataError for
             what cannot be opened.
    """

    def __init__(
        self,
        pretrained: str | os.PathLike[str] | LanguageModel,
        *,
        tokenizer: str | Tokenizer | None = None,
        device: str | None = None,
        dtype: str | torch.dtype | None = None,
        batch_size: int | str | None = None,
        max_batch_size: int | None = None,
        max_length: int | None = None,
        add_bos_token: bool | None = None,
        max_gen_toks: int = 256,
        seed: int = 1234,
        **unknown: Any,
    ) -> None:
        super().__init__()
        if unknown:
            raise ConfigError(
                f"StatewiseLM has no argument {next(iter(unknown))!r}; see help(StatewiseLM) for its arguments"
            )
        self.model, self.tokenizer, begins_documents = open_model(pretrained, tokenizer, device, dtype)
        require_fits(self.tokenizer, self.model.config.vocab_size, ConfigError)
        self.batch_size = rows_together(batch_size, max_batch_size)
        for name, value in (("max_length", max_length), ("max_gen_toks", max_gen_toks)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ConfigError(f"StatewiseLM {name}={value!r} is out of range; use an integer of at least 1")
        limits = [limit for limit in (position_limit(self.model), max_length) if limit is not None]
        self.max_length = min(limits, default=None)
        self.add_bos_token = begins_documents if add_bos_token is None else add_bos_token
        self.begin = [self.eot_token_id] if self.add_bos_token else list(self.tokenizer.prefix)
        self.max_gen_toks, self.seed = max_gen_toks, seed
        self._device = self.model.embedding.weight.device

    @property
    def eot_token_id(self) -> int:
        """The document token."""
        return self.tokenizer.document_token

    @property
    def prefix_token_id(self) -> int:
        """What an empty context is."""
        return self.begin[-1] if self.begin else self.eot_token_id

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's fingerprint, by which lm-eval tells its caches of requests apart."""
        return f"statewise-{self.tokenizer.fingerprint[:16]}"

    def get_model_info(self) -> dict[str, Any]:
        """What lm-eval writes into the results beside its own."""
        return {
            "statewise_version": __version__,
            "model_num_parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "model_dtype": str(self.model.embedding.weight.dtype),
            "tokenizer": self.tokenizer.fingerprint,
            "add_bos_token": self.add_bos_token,
            "max_length": self.max_length,
        }

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """The ids of a text, after what begins every context if nothing says otherwise."""
        return ([] if add_special_tokens is False else self.begin) + self.tokenizer.encode(string)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        pair: tuple[list[int], list[int]] = super()._encode_pair(context, continuation)
        if not pair[0]:  # of white space alone, which has gone over to the continuation
            pair = [self.prefix_token_id], pair[1]
        if not pair[1]:
            raise DataError(
                f"the continuation {continuation!r} adds no token to its context, so there is nothing to score; begin "
                "it with a space or another character that is its own token"
            )
        return pair

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """(log-probability in nats, whether it is what greedy decoding would say) for (context, continuation)."""
        for request in requests:
            if not request.args[1]:
                raise DataError("a continuation is empty, so there is nothing to score; check the task's choices")
        result: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=disable_tqdm)
        return result

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        disable_tqdm: bool = False,
        **kwargs: Any,
    ) -> list[tuple[float, bool]]:
        pairs = [
            # lm-eval has one token for an empty context
            keep_the_end(context if texts[0] or len(self.begin) < 2 else self.begin, continuation, self.max_length)
            for texts, context, continuation in requests
        ]

        def keep(i: int, result: Score) -> None:
            self.cache_hook.add_partial("loglikelihood", requests[i][0], tuple(result))

        return [(nats, is_greedy) for nats, is_greedy in self._score(pairs, keep, disable_tqdm)]

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-probability of each text after what an empty context is: read as one sequence, or with
        ``max_length`` in the windows of lm-eval's own models."""
        pairs: list[tuple[list[int], list[int]]] = []
        owners: list[int] = []
        for i, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in self._windows(tokens):
                pairs.append(window)
                owners.append(i)
        left = Counter(owners)
        sums = [0.0] * len(requests)

        def keep(j: int, result: Score) -> None:
            i = owners[j]
            sums[i] += result.log_probability
            left[i] -= 1
            if not left[i]:
                self.cache_hook.add_partial("loglikelihood_rolling", requests[i].args, sums[i])

        self._score(pairs, keep, disable_tqdm)
        return sums

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """What the model writes after each context, up to a stop text or the document token."""
        texts = [""] * len(requests)
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(repr(request.args[1]), []).append(i)
        with tqdm(total=len(requests), desc="texts written", disable=disable_tqdm) as progress:
            for indices in groups.values():
                given = requests[indices[0]].args[1]
                options = self._options(given)
                prompts = [self._prompt(requests[i].args[0], options["max_new_tokens"]) for i in indices]

                def keep(j: int, text: str, indices: list[int] = indices) -> None:
                    texts[indices[j]] = text
                    self.cache_hook.add_partial("generate_until", requests[indices[j]].args, text)
                    progress.update()

                write(
                    self.model,
                    prompts,
                    tokenizer=self.tokenizer,
                    seed=self.seed,
                    batch_size=self.batch_size,
                    done=keep,
                    **options,
                )
        return texts

    def _score(
        self,
        pairs: Sequence[tuple[Sequence[int], Sequence[int]]],
        keep: Callable[[int, Score], None],
        disable_tqdm: bool,
    ) -> list[Score]:
        with tqdm(total=len(pairs), desc="continuations scored", disable=disable_tqdm) as progress:

            def done(i: int, result: Score) -> None:
                keep(i, result)
                progress.update()

            return score(self.model, pairs, batch_size=self.batch_size, done=done)

    def _windows(self, tokens: list[int]) -> list[tuple[list[int], list[int]]]:
        """(context, continuation) for a text: every token predicted once."""
        if self.max_length is None:
            return [(self.begin or [self.eot_token_id], tokens)] if tokens else []
        windows = lm_eval_utils.get_rolling_token_windows(
            token_list=tokens, prefix_token=self.prefix_token_id, max_seq_len=self.max_length, context_len=1
        )
        return [lm_eval_utils.make_disjoint_window(window) for window in windows]

    def _prompt(self, context: str, max_new_tokens: int) -> list[int]:
        tokens = self.tok_encode(context) or [self.prefix_token_id]
        if self.max_length is None:
            return tokens
        if max_new_tokens >= self.max_length:
            raise DataError(
                f"{max_new_tokens} new tokens leave no room for a prompt: max_length is {self.max_length}; "
                "lower the task's max_gen_toks"
            )
        return tokens[-(self.max_length - max_new_tokens) :]

    def _options(self, given: dict[str, Any]) -> dict[str, Any]:
        """A task's generation_kwargs as options of ``generate``."""
        kwargs = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        until = kwargs.pop("until", None) or []
        temperature = float(kwargs.pop("temperature", 1.0))
        options = {
            "max_new_tokens": kwargs.pop("max_gen_toks"),
            "stop": [until] if isinstance(until, str) else [text for text in until if text],
            "temperature": temperature if kwargs.pop("do_sample") else 0.0,
        }
        for name, value in kwargs.items():
            if name in SAMPLING:
                options[name] = value
            elif name not in NEUTRAL or value != NEUTRAL[name]:
                raise DataError(
                    f"the task's generation_kwargs ask for {name}={value!r}, which is not supported; use until, "
                    f"max_gen_toks, do_sample, temperature, {', '.join(SAMPLING)}"
                )
        return options
