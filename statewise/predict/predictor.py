"""``sw.predictor``: a trained model, asked."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.checkpoints import load, locate_source, read_tokenizer, resolve
from statewise.checkpoints.convert.source import is_published
from statewise.data.progress import Progress
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer
from statewise.errors import DataError, InputError, require_least
from statewise.evaluate.text.likelihood import encode_pair, score
from statewise.models.base import Model
from statewise.models.classifier import SequenceClassifier
from statewise.models.encoder import SequenceModel
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel
from statewise.models.regressor import SequenceRegressor
from statewise.predict.answers import Answers, Classes, Embeddings, Likelihoods, Numbers, joined, taken
from statewise.predict.rows import as_batch, as_rows
from statewise.predict.stream import Stream
from statewise.predict.texts import encode_texts

POOL_BATCHES = 16  # how many batches' rows are sorted by length together, so that little of them is padding


class Predictor:
    """Takes raw data, answers with names; :func:`predictor` makes one.

    ``predict`` answers for a :class:`~statewise.predict.answers.Classes` of a classifier, ``Numbers`` of a regressor,
    and ``Likelihoods`` of texts of a language model.

    model, tokenizer: of a language model the one it was trained with
    begins_documents: whether a text begins with the document token, as in training, or as its tokenizer begins texts
    """

    def __init__(self, model: Model, *, tokenizer: Tokenizer | None = None, begins_documents: bool = True) -> None:
        reason = _refusal(model)
        if reason is not None:
            raise InputError(f"a {type(model).__name__} has no predictor: {reason}")
        if isinstance(model, LanguageModel) and tokenizer is None:
            raise InputError(
                "the language model comes without its tokenizer; give one, as tokenizer=sw.ByteTokenizer()"
            )
        self.model, self.tokenizer, self.begins_documents = model, tokenizer, begins_documents

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits; numbers where they are not known."""
        return class_names(self.model)

    def predict(
        self, x: Any, *, lengths: Any = None, batch_size: int = 64, progress: Progress | None = None
    ) -> Classes | Numbers | Likelihoods:
        """The answers to rows, or to texts.

        x:       numbers as they were stored: (n, length, d_input), (n, length) for d_input=1 and for tokens, or a list
                 of n rows of unlike lengths; texts for a language model, and for a classifier of documents
        lengths: (n,) where x is padded
        progress: is called with how many rows are answered, and of how many

        Numerics: a row is scaled in the precision that it has: give what you trained on, float32 for float32.
        Errors:   InputError, one line, for rows that the model does not read, and for answers that are not finite.
        """
        parts = list(self.batches(self.rows(x, lengths), batch_size=batch_size, progress=progress))
        return joined(parts)  # type: ignore[return-value]

    def embed(
        self, x: Any, *, lengths: Any = None, batch_size: int = 64, progress: Progress | None = None
    ) -> Embeddings:
        """The pooled features of rows, which the model's head reads; as :meth:`predict`."""
        rows = self.rows(x, lengths)
        parts = list(self.batches(rows, batch_size=batch_size, progress=progress, embeddings=True))
        return joined(parts)  # type: ignore[return-value]

    def stream(self, batch: int = 1) -> Stream:
        """Reads signals as they arrive, the state carried on; see :class:`~statewise.predict.stream.Stream`.

        Errors:  InputError for a model that needs whole rows.
        """
        if not isinstance(self.model, SequenceModel):
            raise InputError(f"a {type(self.model).__name__} reads texts; stream them by sw.generate")
        return Stream(self.model, self.answer, batch)

    def rows(self, x: Any, lengths: Any = None) -> Sequence[Any]:
        """What was given, as a list of rows or of texts. Errors: as :meth:`predict`."""
        rows: Sequence[Any] = [x] if isinstance(x, str) else x
        if isinstance(self.model, SequenceModel):
            config = self.model.config
            if config.text is not None and isinstance(rows, Sequence) and all(isinstance(t, str) for t in rows):
                rows = encode_texts(rows, config.text)
            rows = as_rows(rows, lengths, config)
        else:
            if lengths is not None or not isinstance(rows, Sequence) or not all(isinstance(t, str) for t in rows):
                raise InputError("a language model is asked about texts: give a string, or a list of strings")
        if not len(rows):
            raise InputError("x has no rows; give at least one")
        return rows

    def batches(
        self, rows: Sequence[Any], *, batch_size: int = 64, progress: Progress | None = None, embeddings: bool = False
    ) -> Iterator[Answers]:
        """The answers to rows that :meth:`rows` gave, some at a time and in their order: for files larger than memory.

        Errors:  as :meth:`predict`.
        """
        require_least(InputError, batch_size=(batch_size, 1))
        if embeddings and getattr(self.model.config, "pooling", None) is None:
            raise InputError("an embedding is what a pooling makes of a row, and this model has none; use predict")
        pool = POOL_BATCHES * batch_size
        for begin in range(0, len(rows), pool):
            here = rows[begin : begin + pool]
            order = np.argsort([len(row) for row in here], kind="stable")
            found = []
            for low in range(0, len(order), batch_size):
                chosen = order[low : low + batch_size]
                found.append(self._answer_batch([here[i] for i in chosen], begin + chosen, embeddings))
                if progress is not None:
                    progress(begin + low + len(chosen), len(rows))
            pooled = joined(found)
            yield taken(pooled, np.argsort(pooled.row, kind="stable"))

    def _answer_batch(self, rows: Sequence[Any], numbers: np.ndarray, embeddings: bool) -> Answers:
        model = self.model
        if not isinstance(model, SequenceModel):
            return self._likelihoods(rows, numbers)
        weight = model.head.weight
        x, lengths = as_batch(rows, model.config, weight.dtype)
        x, lengths = x.to(weight.device), None if lengths is None else lengths.to(weight.device)
        with evaluation_mode(model), torch.no_grad():
            outputs, _ = model.embed(x, lengths=lengths) if embeddings else model(x, lengths=lengths)
        steps = np.array([len(row) for row in rows]) if model.config.pooling is None else None
        return self.answer(outputs, numbers, steps, embeddings=embeddings)

    def answer(
        self, outputs: Tensor, numbers: np.ndarray, steps: np.ndarray | None = None, *, embeddings: bool = False
    ) -> Answers:
        """What outputs say of the rows ``numbers``; ``steps``: how many of each row's outputs are real."""
        values = outputs.to(torch.promote_types(outputs.dtype, torch.float32)).cpu().numpy()
        row, step = numbers, None
        if steps is not None:
            values = np.concatenate([one[:n] for one, n in zip(values, steps)])
            row, step = np.repeat(numbers, steps), np.concatenate([np.arange(n) for n in steps])
        finite = np.isfinite(values).all(1)
        if not finite.all():
            raise InputError(
                f"the answer to row {row[~finite][0]} is not finite: it holds NaN or infinity, or numbers far from "
                "those of the training; fill them, or leave the row out"
            )
        if embeddings:
            return Embeddings(row=row, step=step, values=values)
        if isinstance(self.model, SequenceRegressor):
            return Numbers(row=row, step=step, values=values)
        return Classes(row=row, step=step, names=self.classes, logits=values)

    def _likelihoods(self, texts: Sequence[str], numbers: np.ndarray) -> Likelihoods:
        assert isinstance(self.model, LanguageModel)
        assert self.tokenizer is not None
        pairs = []
        for text, number in zip(texts, numbers):
            if not text:
                raise DataError(f"text {number} is empty, so there is nothing to score; leave it out")
            pairs += encode_pair(self.tokenizer, "", [text], document_token=self.begins_documents)
        scores = score(self.model, pairs, batch_size=len(pairs))
        return Likelihoods(
            row=numbers,
            log_likelihoods=np.array([one.log_probability for one in scores]),
            tokens=np.array([len(ids) for _, ids in pairs]),
            n_bytes=np.array([len(text.encode("utf-8", "surrogateescape")) for text in texts]),
        )


def predictor(
    source: Model | str | os.PathLike[str],
    *,
    tokenizer: Tokenizer | None = None,
    device: torch.device | str = "cpu",
) -> Predictor:
    """A model to be asked: of a run (its best checkpoint), of a checkpoint, or as :func:`statewise.load` gives it.

    tokenizer: of a language model that was saved without one

    Errors:  as ``load``; InputError for a model that has other ways of being asked, as a forecaster.

    >>> import numpy as np, statewise as sw
    >>> layers = (sw.Mamba2Config(d_state=8, d_head=8),)
    >>> config = sw.SequenceClassifierConfig(n_classes=2, d_input=1, d_model=16, layers=layers, classes=("low", "high"))
    >>> answers = sw.predictor(config.build()).predict([np.zeros(20), np.ones(7)])
    >>> answers.labels.shape, answers.probabilities.shape
    ((2,), (2, 2))
    """
    if isinstance(source, Model):
        return Predictor(source, tokenizer=tokenizer)
    path = locate_source(source)
    model = load(path, device=device)
    published = is_published(path)
    if tokenizer is None and isinstance(model, LanguageModel) and not published:
        stored = read_tokenizer(resolve(path))
        if stored is not None:
            tokenizer = ByteTokenizer() if stored.json is None else FileTokenizer(stored.json)
    return Predictor(model, tokenizer=tokenizer, begins_documents=not published)


def class_names(model: Model) -> tuple[str, ...]:
    """Of a classifier; () of other models."""
    if not isinstance(model, SequenceClassifier):
        return ()
    return model.config.classes or tuple(map(str, range(model.config.n_classes)))


def _refusal(model: Model) -> str | None:
    """Why it is not asked here; None if it is."""
    if isinstance(model, (SequenceClassifier, SequenceRegressor, LanguageModel)):
        return None
    if isinstance(model, SequenceModel):
        return "it compares two sequences, rows 2 i and 2 i + 1 of its input; call the model"
    return "use statewise forecast"
