"""Language modelling: predict each token of a text from those before it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.data.base import DataConfig
from statewise.data.batches import Batch, Batches
from statewise.data.progress import on_terminal
from statewise.data.splits import WholeParts
from statewise.data.text import Corpus, TextDataConfig, TokenSplit, open_corpus, open_tokenizer
from statewise.data.tokenizers import Tokenizer
from statewise.errors import ConfigError
from statewise.evaluate.text.compression import compress
from statewise.evaluate.text.perplexity import Evaluation, evaluate_split, evaluate_text, has_bounded_state
from statewise.kernels.linear_cross_entropy import linear_cross_entropy
from statewise.mixers.positions import LearnedPositions
from statewise.models.language_model import LanguageModel, LanguageModelConfig, LanguageModelState
from statewise.training.config import RunConfig
from statewise.training.tasks.base import Table, Task

MANY_LOGITS = 1 << 23  # 32 MB in float32: beyond, a loss that does not keep them is as fast and spares their memory
EVALUATE_TOKENS = 65_536  # of the validation split, where the run does not say


class LanguageTask(Task[LanguageModel, Batch]):
    """Cross-entropy of the next token on windows of a text, or on streams of it whose state is carried on."""

    models = (LanguageModelConfig,)
    unit = "tokens"
    noun = "text"
    metric = "bits_per_byte"
    higher_is_better = False
    evaluate_options = ("across_documents", "chunk_length", "n_streams", "window", "stride", "compressors")
    progress_line = "loss {loss:.3f} {bits_per_byte:.3f} bits/byte"
    evaluation_line = "loss {loss:.4f}, {bits_per_byte:.4f} bits/byte"

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        model, self.data = cast(LanguageModelConfig, run.model), cast(TextDataConfig, run.data)
        self.corpus = open_corpus(self.data, progress=on_terminal("reading the text, byte"))
        needed = self.corpus.tokenizer.vocab_size
        if model.vocab_size < needed:  # a published model's may be padded
            raise ConfigError(
                f"model.vocab_size={model.vocab_size}, but the tokenizer {self.data.tokenizer!r} has {needed} tokens; "
                f"set model.vocab_size={needed}"
            )

    @classmethod
    def model_fields(cls, data: DataConfig) -> Mapping[str, Any]:
        return {"vocab_size": open_tokenizer(cast(TextDataConfig, data)).vocab_size}

    @property
    def fingerprint(self) -> str:
        return self.corpus.fingerprint

    @property
    def divided_by_content(self) -> bool:
        """So it is but for a few documents, whose text is cut in order."""
        return isinstance(self.corpus.parts["train"], WholeParts)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.corpus.tokenizer

    def describe(self) -> str:
        return self.corpus.describe()

    def sizes(self) -> dict[str, int]:
        validation = _validation_split(self.corpus)
        sizes = {"train": self.corpus.split("train").n_tokens}
        return sizes if validation is None else {**sizes, "validation": validation.n_tokens}

    @cached_property
    def batches(self) -> Batches:
        train = self.run.train
        return Batches(self._train_split, train.batch_size, self._length, train.seed, carry=train.carry_state)

    def units_in(self, n_batches: int) -> int:
        return n_batches * self.run.train.batch_size * self._length

    def initial_state(self, model: LanguageModel) -> LanguageModelState:
        if not has_bounded_state(model):
            raise ConfigError(
                "TrainConfig.carry_state=True, but a layer of the model has full attention, whose state would "
                "grow without end; give it a window, or set train.carry_state=false"
            )
        limits = [m.n_positions for m in model.modules() if isinstance(m, LearnedPositions)]
        longest = int(np.diff(self._train_split.document_offsets).max()) if limits else 0
        if limits and longest > min(limits):
            raise ConfigError(
                f"TrainConfig.carry_state=True, but the longest document has {longest:,} tokens, and the model has "
                f"learned positions up to max_positions={min(limits)}; use a larger one, or set train.carry_state=false"
            )
        return model.initial_state(self.run.train.batch_size)

    def loss(self, model: LanguageModel, batch: Batch, state: Any) -> tuple[Tensor, Any]:
        """The mean cross-entropy in nats a token, and the state after the batch."""
        features, state = model.features(batch.inputs, state, starts=batch.starts)
        return token_loss(model, features, batch.targets), state

    def n_targets(self, batch: Batch) -> int:
        return batch.targets.numel()

    def piece(self, batch: Batch, number: int, n_pieces: int) -> Batch:
        length, rest = divmod(self._length, n_pieces)
        if rest:
            raise ConfigError(
                f"{self.pieces_field}={n_pieces} does not divide train.length={self._length}; use a length that is "
                "a multiple of it"
            )

        def cut(whole: Tensor) -> Tensor:
            return whole.narrow(1, number * length, length)

        return Batch(cut(batch.inputs), cut(batch.targets), None if batch.starts is None else cut(batch.starts))

    def from_loss(self, loss: float) -> dict[str, float]:
        return {"bits_per_byte": loss * self._bits_per_nat}

    def validate(self, model: LanguageModel) -> dict[str, Any]:
        """The beginning of the validation split, several pieces side by side."""
        train, split = self.run.train, _validation_split(self.corpus)
        reporting = train.reporting
        assert split is not None  # nobody asks otherwise
        n_tokens = min(reporting.evaluate_items or EVALUATE_TOKENS, split.n_tokens)
        evaluation = evaluate_split(
            model,
            split,
            self.tokenizer,
            max_tokens=n_tokens,
            chunk_length=self._length,
            window=reporting.evaluate_window or (None if _can_read_on(model) else self._length),
            stride=reporting.evaluate_window,
            # Each piece begins at rest: pieces long enough for that not to matter
            n_streams=max(1, min(train.batch_size, n_tokens // (8 * self._length))),
        )
        return {
            "loss": evaluation.nats / evaluation.n_tokens,
            "bits_per_byte": evaluation.bits_per_byte,
            "tokens": evaluation.n_tokens,
            "tokens_per_second": evaluation.tokens_per_second,
        }

    def evaluate(
        self,
        model: LanguageModel,
        split: str,
        *,
        max_items: int | None = None,
        compressors: bool = True,
        **options: Any,
    ) -> dict[str, Any]:
        """The options are those of ``evaluate_tokens``; ``compressors``: also what xz and zlib make of the bytes."""
        part = self.corpus.split(split)
        result = evaluate_split(model, part, self.tokenizer, max_tokens=max_items, **options)
        content = (
            part.text_bytes()[: result.n_bytes] if compressors else None
        )  # what was scored, within a character too
        return _record(result, f"{split} split", content)

    def tables(self, record: Mapping[str, Any]) -> list[Table]:
        return text_tables(record)

    @cached_property
    def _train_split(self) -> TokenSplit:
        return self.corpus.split("train")

    @cached_property
    def _bits_per_nat(self) -> float:
        """Bits per byte of the training text for a mean loss of 1."""
        return self._train_split.n_tokens / self._train_split.n_bytes / math.log(2)

    @property
    def _length(self) -> int:
        assert self.run.train.length is not None  # RunConfig sets it for text
        return self.run.train.length


def token_loss(model: LanguageModel, features: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats of the tokens that the head makes of these features; -100 does not count.

    Shapes:  features: (..., d_model)   targets: (...) int64   ->   (), in float32 or wider
    """
    if targets.numel() * model.config.vocab_size > MANY_LOGITS and model.config.logit_cap is None:
        return linear_cross_entropy(features.flatten(0, -2), model.head.weight, targets.flatten())
    logits = model.head(features)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def evaluate_file(
    model: LanguageModel, tokenizer: Tokenizer, text: bytes, *, name: str, compressors: bool = True, **options: Any
) -> dict[str, Any]:
    """As :meth:`LanguageTask.evaluate`, but of a text read as one document, which ``name`` is put beside."""
    return _record(evaluate_text(model, tokenizer, text, **options), name, text if compressors else None)


def text_tables(record: Mapping[str, Any]) -> list[Table]:
    """The record of an evaluation, with its "checkpoint", beside the compressors that are in it."""
    rows = [("model", f"{record['bits_per_byte']:.4f}", "")]
    for compressor in ("xz", "zlib"):
        if (bits := record.get(f"{compressor}_bits_per_byte")) is not None:
            difference = record["bits_per_byte"] / bits - 1
            more = "more" if difference > 0 else "fewer"
            rows.append((f"{compressor} -9", f"{bits:.4f}", f"{abs(difference):.1%} {more} bits"))
    per_word = record["perplexity_per_word"]
    word = f", {per_word:,.1f} per word" if per_word is not None else ""
    notes = (
        f"perplexity {record['perplexity_per_token']:,.3f} per token{word}",
        f"{record['n_tokens']:,} tokens read at {record['tokens_per_second']:,.0f} tokens/s by {record['checkpoint']}",
    )
    title = f"{record['text']}, {record['n_bytes']:,} bytes"
    return [Table(title, ("", "bits per byte", "the model needs"), rows, notes)]


def _record(result: Evaluation, name: str, content: bytes | None) -> dict[str, Any]:
    """``content``: what the compressors get; None leaves them out."""
    record = {"text": name, **asdict(result)}
    if content is not None:
        compression = compress(content)
        record |= {key: value for key, value in asdict(compression).items() if key != "n_bytes"}
        record["xz_difference"] = result.bits_per_byte - compression.xz_bits_per_byte
    return record


def _validation_split(corpus: Corpus) -> TokenSplit | None:
    if corpus.config.validation_fraction == 0:
        return None
    split = corpus.split("validation")
    return split if split.n_tokens > 1 else None


def _can_read_on(model: LanguageModel) -> bool:
    """Whether a text of any length can be read as one sequence: not so with full attention or learned positions."""
    learned = any(isinstance(module, LearnedPositions) for module in model.modules())
    return has_bounded_state(model) and not learned
