"""The model that is served: what turns requests into tokens, and tokens into text."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from statewise import kernels
from statewise.data.tokenizers import Tokenizer
from statewise.decoding import Decoder, check_weights, dequantised, why_not
from statewise.errors import DataError, InputError, excerpt
from statewise.generation.chat_text import ChatText, n_agreeing
from statewise.generation.decode import document_token_of
from statewise.generation.prompt import encode_prompt
from statewise.generation.reading import nothing_read
from statewise.generation.sample import ids_without_token
from statewise.generation.stopping import end_tokens
from statewise.kernels.exact import is_exact
from statewise.kernels.exact.owner import exact_in
from statewise.mixers.attention import Attention
from statewise.models.freezing import freeze, has_operators_to_prepare
from statewise.models.language_model import LanguageModel
from statewise.serve.rows import DecoderRows, ModelRows, Rows
from statewise.serve.token_names import TokenNames

Prompts = Callable[[Sequence[str]], Sequence[Any] | None]


class ServedModel:
    """A language model with its tokenizer, under a name.

    weights:  precision of the matrices for the tokens that are written, as in :func:`statewise.generate`
    template: a chat template (Jinja); None: the published one
    prompts:  texts as this model's prompts; None: as :func:`statewise.generate` takes them
    Errors:   InputError for a name that is empty or not printable, a tokenizer that does not fit, and ``weights`` that
              the model cannot have.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        *,
        name: str = "statewise",
        weights: str | None = None,
        template: str | None = None,
        prompts: Prompts | None = None,
    ) -> None:
        if not name.strip() or not name.isprintable():
            raise InputError(f"the name {excerpt(name)} is none that clients could ask for; give one of printable text")
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.document_token = document_token_of(model, tokenizer, None)
        self.reader = freeze(model) if has_operators_to_prepare(model) else model
        self.device = model.embedding.weight.device
        self.ends = end_tokens(tokenizer, self.document_token)
        self.without_token = ids_without_token(nothing_read(model, 1, None).logits, tokenizer)
        self._prompts = prompts
        conventions = tokenizer.conventions
        self.chat_sampling: dict[str, Any] = {} if conventions is None else conventions.sampling
        self.chat: ChatText | None = None
        self.why_no_chat: str | None = None
        try:
            self.chat = ChatText(tokenizer, template)
        except (InputError, DataError) as error:
            self.why_no_chat = str(error)
        self._weights = weights
        self._decoder: Decoder | None = None
        self._writer = self.reader
        if weights is not None:
            if is_exact() or exact_in(model):
                raise InputError(f"weights={weights!r}: exact mode reads by the model itself; leave weights out")
            check_weights(model, weights)
        if self.device.type == "cpu" and kernels.backend.backend() != "torch" and why_not(model) is None:
            self._decoder = Decoder(model, weights)
        elif weights is not None:
            self._writer = dequantised(model, weights).eval()
        self.names = TokenNames(tokenizer)

    @property
    def precision(self) -> str:
        """What the matrices are rounded to for the tokens that are written."""
        if self._decoder is not None:
            return self._decoder.weights
        return self._weights or str(self.model.head.weight.dtype).removeprefix("torch.")

    @property
    def longest(self) -> int | None:
        """How many positions there are; None: any number."""
        limits = [self.model.config.max_positions]
        limits += [
            mixer.config.max_positions
            for block in self.model.blocks
            for mixer in block.mixer.parts()
            if isinstance(mixer, Attention)
        ]
        return min((limit for limit in limits if limit is not None), default=None)

    def rows(self, n: int) -> Rows:
        """Places for n sequences that are written together."""
        return ModelRows(self._writer, n) if self._decoder is None else DecoderRows(self._decoder, n)

    def encode(self, prompt: str | Sequence[int], *, continued: bool = False) -> np.ndarray:
        """(n,) int32, a prompt as the command line's ``generate`` has it. One that is ``continued`` from a state may be
        empty.

        Errors:  InputError for ids outside the vocabulary and an empty prompt; DataError for a text that is none.
        """
        given: Any = [prompt]
        if isinstance(prompt, str) and not continued and self._prompts is not None:
            given = self._prompts([prompt])
        ids, _ = encode_prompt(
            given,
            vocab_size=self.model.config.vocab_size,
            tokenizer=self.tokenizer,
            document_token=self.document_token,
            n_continued=1 if continued else None,
            may_be_empty=continued,
        )
        found: np.ndarray = ids[0].numpy().astype(np.int32)
        return found

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **variables: Any) -> tuple[np.ndarray, int]:
        """The ids of a conversation up to where the answer begins, and how many of them the next turn will most likely
        begin with.

        Errors:  DataError without a chat template, and for a conversation that it refuses.
        """
        if self.chat is None:
            raise DataError(f"this model has no conversations: {self.why_no_chat}. Use /v1/completions")
        ids = self.chat.encode(messages, **variables)
        stable = n_agreeing(self.chat.encode(messages, add_generation_prompt=False, **variables), ids)
        return np.array(ids, np.int32), stable

    @staticmethod
    def joined(ids: np.ndarray, more: Sequence[int]) -> np.ndarray:
        """Both, one behind the other."""
        return np.concatenate([ids, np.array(more, np.int32)])
