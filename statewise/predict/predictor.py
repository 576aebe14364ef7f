"""``sw.predictor``: ask a trained model about new data."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from statewise.checkpoints import load, locate_source, read_tokenizer, resolve
from statewise.checkpoints.convert.source import is_published
from statewise.data.in_memory_tables import frame_of
from statewise.data.progress import Progress
from statewise.data.tokenizers import ByteTokenizer, FileTokenizer, Tokenizer, require_fits
from statewise.errors import DataError, InputError, require_least
from statewise.evaluate.text.likelihood import encode_pair, score
from statewise.models.base import Model
from statewise.models.classifier import SequenceClassifier
from statewise.models.encoder import SequenceModel, SequenceModelConfig
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.forecaster import Forecaster
from statewise.models.language_model import LanguageModel
from statewise.models.regressor import SequenceRegressor
from statewise.models.structural import StructuralForecaster
from statewise.models.text_input import needs_tokenizer
from statewise.predict.answers import Answers, Classes, Embeddings, Likelihoods, Numbers, joined, taken
from statewise.predict.asked import ARRAYS, NamedRows, rows_at, rows_of_frame, rows_of_paths
from statewise.predict.forecasting import Forecasting
from statewise.predict.forecasts import Forecasts
from statewise.predict.kept import require_no_fields
from statewise.predict.rows import as_batch, as_rows, files_of
from statewise.predict.stream import Stream
from statewise.predict.texts import encode_texts, texts_at, texts_of_frame

POOL_BATCHES = 16  # how many batches' rows are sorted by length together, so that little of them is padding


class Predictor(Forecasting):
    """Takes raw data, and answers with names; :func:`predictor` makes one.

    ``predict`` answers for a :class:`~statewise.predict.answers.Classes` of a classifier, ``Numbers`` of a regressor,
    ``Likelihoods`` of texts of a language model, and :meth:`forecast` is what answers for a forecaster.

    model, tokenizer: of a language model the one it was trained with
    begins_documents: whether a text begins with the document token, as in training, or as its tokenizer begins texts
    """

    def __init__(self, model: Model, *, tokenizer: Tokenizer | None = None, begins_documents: bool = True) -> None:
        reason = _refusal(model)
        if reason is not None:
            raise InputError(f"a {type(model).__name__} has no predictor: {reason}")
        if isinstance(model, LanguageModel) and tokenizer is None:
            raise InputError(
                "the language model comes without its tokenizer; give one, such as tokenizer=sw.ByteTokenizer()"
            )
        if needs_tokenizer(model.config) and tokenizer is not None:
            require_fits(tokenizer, model.config.vocab_size)  # type: ignore[attr-defined]
        self.model, self.tokenizer, self.begins_documents = model, tokenizer, begins_documents

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the logits; numbers where they are not known."""
        return class_names(self.model)

    def predict(
        self,
        x: Any,
        *,
        lengths: Any = None,
        keep_fields: Sequence[str] = (),
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Classes | Numbers | Likelihoods | Forecasts:
        """The answers to rows, or to texts; of a forecaster those of :meth:`forecast`.

        x:       numbers as they were stored: (n, length, d_input), (n, length) for d_input=1 and for tokens, or a list
                 of n rows of different lengths; texts for a language model, and for a classifier of documents. Or a
                 path: an .npz or .npy, or the kind of file that the model was trained on: a folder of pictures or
                 sounds, one of them or a list of them, a table; see :func:`statewise.predict.asked.rows_at`. Or, for
                 a model that was trained on a table, a DataFrame: the model finds its columns by their names
        lengths: (n,) where x is padded
        keep_fields: columns of a table, or fields of records, to have beside the answers, such as an id
        progress: is called with the number of rows answered so far, and the number of all rows

        Numerics: a row is scaled in its own precision: give the one that you trained on, float32 for float32.
        Errors:   InputError, one line, for rows that the model does not read, and for answers that are not finite;
                  DataError for files that it does not read.
        """
        if isinstance(self.model, (Forecaster, StructuralForecaster)):
            require_no_fields(keep_fields, "forecasts have the series and the time of each answer")
            return self.forecast(x, batch_size=batch_size, progress=progress)
        rows = self.rows(x, lengths, keep_fields=keep_fields)
        parts = list(self.batches(rows, batch_size=batch_size, progress=progress))
        return joined(parts)  # type: ignore[return-value]

    def embed(
        self,
        x: Any,
        *,
        lengths: Any = None,
        keep_fields: Sequence[str] = (),
        batch_size: int = 64,
        progress: Progress | None = None,
    ) -> Embeddings:
        """The pooled features of rows, which the model's head reads. Arguments and errors: as :meth:`predict`."""
        rows = self.rows(x, lengths, keep_fields=keep_fields)
        parts = list(self.batches(rows, batch_size=batch_size, progress=progress, embeddings=True))
        return joined(parts)  # type: ignore[return-value]

    def stream(self, batch: int = 1) -> Stream:
        """Reads signals as they arrive, and carries the state; see :class:`~statewise.predict.stream.Stream`.

        Errors:  InputError for a model that needs whole rows.
        """
        if not isinstance(self.model, SequenceModel):
            other = "reads texts; stream them with sw.generate"
            if isinstance(self.model, (Forecaster, StructuralForecaster)):
                other = "has no stream; call it with each piece of values: forecasts, state = model(values, state)"
            raise InputError(f"a {type(self.model).__name__} {other}")
        return Stream(self.model, self.answer, batch)

    def rows(
        self, x: Any, lengths: Any = None, *, array: str | None = None, keep_fields: Sequence[str] = ()
    ) -> Sequence[Any]:
        """Your data as rows or texts. ``array``: which one of an .npz. Errors: as :meth:`predict`."""
        if isinstance(keep_fields, str):
            raise InputError(f"keep_fields={keep_fields!r} is one text; give a list of names: [{keep_fields!r}]")
        if isinstance(self.model, (Forecaster, StructuralForecaster)):
            raise InputError(f"a {type(self.model).__name__} forecasts; use forecast, or statewise forecast")
        if isinstance(x, os.PathLike) and Path(x).suffix not in ARRAYS and (reads := self._texts_field) is not None:
            x, keep_fields = texts_at(Path(x), *reads, keep=keep_fields), ()
        elif (frame := frame_of(x)) is not None:
            if (reads := self._texts_field) is None:
                return rows_of_frame(frame, self.model.config, keep_fields)  # type: ignore[arg-type]
            x, keep_fields = texts_of_frame(frame, *reads, keep=keep_fields), ()
        if isinstance(self.model, SequenceModel) and (paths := _paths(x, self.model.config)) is not None:
            config = self.model.config
            if isinstance(paths, Path):
                return rows_at(paths, config, array, keep_fields)
            require_no_fields(keep_fields, "the files of a list have no columns, and the answers name each file")
            return rows_of_paths(paths, config)
        require_no_fields(keep_fields, "values in memory have no columns, and their rows are numbered")
        rows: Sequence[Any] = [x] if isinstance(x, str) else x
        if isinstance(self.model, SequenceModel):
            config = self.model.config
            if config.text is not None and isinstance(rows, Sequence) and all(isinstance(t, str) for t in rows):
                rows = _named_like(rows, encode_texts(rows, config.text, self.tokenizer))
            rows = _named_like(rows, as_rows(rows, lengths, config))
        else:
            if lengths is not None or not isinstance(rows, Sequence) or not all(isinstance(t, str) for t in rows):
                raise InputError("a language model reads texts; give a string, or a list of strings")
        if not len(rows):
            raise InputError("x has no rows; give at least one")
        return rows

    @property
    def _texts_field(self) -> tuple[str | None] | None:
        """The field of records that holds the text; None for a model that does not read texts."""
        if not isinstance(self.model, SequenceModel):
            return (None,)
        text = self.model.config.text
        return None if text is None else (text.field,)

    def batches(
        self, rows: Sequence[Any], *, batch_size: int = 64, progress: Progress | None = None, embeddings: bool = False
    ) -> Iterator[Answers]:
        """The answers to the rows of :meth:`rows`, some at a time and in order: for files larger than memory.

        Errors:  as :meth:`predict`.
        """
        require_least(InputError, batch_size=(batch_size, 1))
        if embeddings and getattr(self.model.config, "pooling", None) is None:
            raise InputError("an embedding needs a pooling, and this model has none; use predict")
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
            pooled = taken(pooled, np.argsort(pooled.row, kind="stable"))
            if (names := getattr(rows, "names", None)) is not None:
                asked = np.array(names[begin : begin + pool])[pooled.row - begin]
                pooled = replace(pooled, asked=asked, asked_by=rows.named_by)  # type: ignore[attr-defined]
            if (kept := getattr(rows, "kept", None)) is not None:
                pooled = replace(pooled, kept=kept.beside(pooled.row, pooled.step))
            yield pooled

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
                raise DataError(f"text {number} is empty, so it has no tokens to score; leave it out")
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
    """Open a model to predict with it: a run (its best checkpoint), a checkpoint, or what :func:`statewise.load` takes.

    tokenizer: for a language model that was saved without one

    Errors:  as ``load``; InputError for a model that is asked by calling it, as a PairClassifier.

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
    if tokenizer is None and not published and (isinstance(model, LanguageModel) or needs_tokenizer(model.config)):
        stored = read_tokenizer(resolve(path))
        if stored is not None:
            tokenizer = ByteTokenizer() if stored.json is None else FileTokenizer(stored.json)
    return Predictor(model, tokenizer=tokenizer, begins_documents=not published)


def _paths(x: Any, config: SequenceModelConfig) -> Path | list[Path] | None:
    """Where the rows lie, if it is not the rows that were given. Words are texts for a model that reads texts."""
    if isinstance(x, os.PathLike) or (isinstance(x, str) and config.d_input is not None):
        return Path(x)
    kinds = (str, os.PathLike) if files_of(config) is not None else os.PathLike
    if isinstance(x, Sequence) and x and all(isinstance(one, kinds) for one in x):
        return [Path(one) for one in x]
    return None


def _named_like(given: Sequence[Any], rows: list[np.ndarray]) -> list[np.ndarray]:
    """The rows, called as those that they were made of."""
    return NamedRows(rows, given.names, given.named_by, given.kept) if isinstance(given, NamedRows) else rows


def class_names(model: Model) -> tuple[str, ...]:
    """The names of a classifier's classes; () for other models."""
    if not isinstance(model, SequenceClassifier):
        return ()
    return model.config.classes or tuple(map(str, range(model.config.n_classes)))


def _refusal(model: Model) -> str | None:
    """Why it is not asked here; None if it is."""
    if isinstance(model, (SequenceClassifier, SequenceRegressor, LanguageModel, Forecaster, StructuralForecaster)):
        return None
    if isinstance(model, SequenceModel):
        return "it compares two sequences, rows 2 i and 2 i + 1 of its input; call the model"
    return "what its answers mean is not known; call the model"
