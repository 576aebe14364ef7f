"""What classification and regression of sequences share: the data, whether a model fits them, and the batches."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from statewise.data.base import DataConfig
from statewise.data.labelled import LabelledData, LabelledDataConfig, open_labelled
from statewise.data.labelled_batches import LabelledBatch, LabelledBatches
from statewise.data.labelled_text import LabelledTextData, LabelledTextDataConfig, open_labelled_texts
from statewise.data.long_range import LongRangeData, LongRangeDataConfig, open_long_range
from statewise.data.memory_tasks import MemoryData, MemoryDataConfig, open_memory_task
from statewise.data.own.known import NOTHING, Known
from statewise.data.progress import on_terminal
from statewise.data.sequences import LabelledSplit, Scaling
from statewise.data.splits import SPLITS
from statewise.data.tokenizers import FileTokenizer
from statewise.errors import ConfigError, DataError
from statewise.evaluate.labelled.classification import as_read
from statewise.models.base import ModelConfig
from statewise.models.classifier import SequenceClassifierConfig
from statewise.models.encoder import SequenceModel, SequenceModelConfig
from statewise.models.pair_classifier import PairClassifierConfig
from statewise.models.raw_input import InputConfig
from statewise.models.regressor import SequenceRegressorConfig
from statewise.models.text_input import TextInputConfig
from statewise.training.config import RunConfig
from statewise.training.tasks.base import Task

ModelType = TypeVar("ModelType", bound=SequenceModel)
WIDTHS = {"d_input": "a step", "d_output": "to predict"}


class SequenceTask(Task[ModelType, LabelledBatch]):
    """What ``ClassificationTask`` and ``RegressionTask`` have in common."""

    unit = "sequences"
    noun = "data"
    sorts = True
    reads_pairs = False  # whether a row is a pair of sequences

    def __init__(self, run: RunConfig) -> None:
        super().__init__(run)
        known = known_of(cast(SequenceModelConfig, run.model))
        self.data = open_sequences(run.data, known)
        is_pairs = isinstance(self.data, LongRangeData) and self.data.is_pairs
        if is_pairs != self.reads_pairs:
            kind, needed = ("pairs of documents", "Pair") if is_pairs else ("single sequences", "Sequence")
            raise ConfigError(
                f"model is a {type(run.model).__name__}, but the rows of the data are {kind}; use a "
                f"{needed}ClassifierConfig"
            )
        is_classifier = isinstance(run.model, (SequenceClassifierConfig, PairClassifierConfig))
        if is_classifier != bool(self.data.classes):
            needed, given = ("Regressor", "numbers") if is_classifier else ("Classifier", "classes")
            raise ConfigError(
                f"model is a {type(run.model).__name__}, but the targets of the data are {given}; use a "
                f"Sequence{needed}Config"
            )
        self._require_same_classes()
        for name, value in fields_of(self.data).items():
            actual = getattr(run.model, name)
            if actual != value and known != NOTHING and name in WIDTHS:
                n = f"{value} number{'s' * (value != 1)} {WIDTHS[name]}"
                raise ConfigError(f"the data have {n}, but the model was trained on {actual}; give data like those")
            if actual != value:
                raise ConfigError(
                    f"model.{name}={json.dumps(actual)}, but the data need {json.dumps(value)}; "
                    f"set model.{name}={json.dumps(value)}"
                )
        if not self.data.each_step and getattr(run.model, "pooling", None) is None:
            raise ConfigError(
                "model.pooling=null gives an output for each step, but the data have one target a sequence; "
                'set model.pooling="mean", "last" or "attention"'
            )

        frame_length = getattr(run.model, "frame_length", 1)
        shortest = min(int(self.data.split(name).lengths.min()) for name in self.sizes())
        if shortest < frame_length:
            raise ConfigError(
                f"model.frame_length={frame_length}, but the shortest row of the data has {shortest} "
                f"step{'s' * (shortest != 1)}; set model.frame_length={max(shortest, 1)} or less"
            )
        self.run = replace(run, model=self._answering(cast(SequenceModelConfig, run.model)))
        self._require_whole_rows()

    def _answering(self, model: SequenceModelConfig) -> SequenceModelConfig:
        """The model with what it needs to answer from raw data, where its config does not say so."""
        known: dict[str, Any] = {"input": input_of(self.data), "text": text_of(self.data)}
        if self.data.classes:
            known["classes"] = self.data.classes
        return replace(model, **{name: value for name, value in known.items() if not getattr(model, name)})

    def go_on_from(self, saved: ModelConfig) -> None:
        """The scaling of its checkpoint, to the last digit; of one of 0.1.0, which has none, the numbers it read by."""
        model = cast(SequenceModelConfig, self.run.model)
        known = getattr(saved, "input", None)
        if known is None and model.input is not None:
            known = model.input.in_float32()
        self.run = replace(self.run, model=replace(model, input=known))

    def _require_same_classes(self) -> None:
        known = getattr(self.run.model, "classes", ())
        if known and known != self.data.classes:
            raise ConfigError(
                f"the data have the classes {few(self.data.classes)}, but the model was trained on {few(known)}; "
                "give data with these"
            )

    def _require_whole_rows(self) -> None:
        model, train = cast(SequenceModelConfig, self.run.model), self.run.train
        n_pieces = max(train.parallel.sequence, train.pieces)
        reason = None if model.input is None else model.input.whole_rows
        if n_pieces > 1 and reason is not None:
            raise ConfigError(
                f"{self.pieces_field}={n_pieces} cuts rows in pieces, which this model does not read: {reason}; "
                f"set {self.pieces_field}=1"
            )

    @classmethod
    def model_fields(cls, data: DataConfig) -> Mapping[str, Any]:
        return fields_of(open_sequences(data))

    @property
    def fingerprint(self) -> str:
        return self.data.fingerprint

    @property
    def tokenizer(self) -> FileTokenizer | None:
        return self.data.tokenizer if isinstance(self.data, LabelledTextData) else None

    def describe(self) -> str:
        return self.data.describe()

    def sizes(self) -> dict[str, int]:
        sizes = {}
        for name in SPLITS:
            try:
                sizes[name] = len(self.data.split(name))
            except DataError:  # its fraction is 0
                continue
        return sizes

    def piece(self, batch: LabelledBatch, number: int, n_pieces: int) -> LabelledBatch:
        """With one target a row the rows are padded to a length that divides."""
        inputs, targets, lengths = batch
        length, frame_length = inputs.shape[1], getattr(self.run.model, "frame_length", 1)
        missing = -length % (n_pieces * frame_length)
        if missing and self.data.each_step:
            raise ConfigError(
                f"{self.pieces_field}={n_pieces} does not divide rows of {length} steps with a target each; set "
                f"{self.pieces_field}=1"
            )
        if missing and lengths is None:
            lengths = torch.full((len(inputs),), length)
        own = (length + missing) // n_pieces
        here = slice(number * own, (number + 1) * own)
        return LabelledBatch(
            _padded(inputs, missing)[:, here],
            targets[:, here] if self.data.each_step else targets,
            None if lengths is None else (lengths - number * own).clamp(0, own),
        )

    def n_pieces(self, batch: LabelledBatch) -> int:
        """Pieces are as long as those of the longest row, so a batch of shorter ones has fewer."""
        asked = self.run.train.pieces
        if asked > self._longest:
            raise ConfigError(
                f"train.pieces={asked:,}, but the longest row has {self._longest:,} steps; use fewer pieces than steps"
            )
        return max(1, -(-asked * batch.inputs.shape[1] // self._longest))

    @cached_property
    def _longest(self) -> int:
        return int(self.data.split("train").lengths.max())

    @cached_property
    def batches(self) -> LabelledBatches:
        train = self.run.train
        split = as_read(cast(SequenceModelConfig, self.run.model), self.data.split("train"))
        return LabelledBatches(split, train.batch_size, train.seed, train.drop_last, train.short_first)


SequenceData = LabelledData | LabelledTextData | MemoryData | LongRangeData


def _padded(inputs: Tensor, n_steps: int) -> Tensor:
    return F.pad(inputs, (0, 0) * (inputs.ndim - 2) + (0, n_steps))


def known_of(model: SequenceModelConfig) -> Known:
    """What a model says of the data that it was trained on; NOTHING of one that is yet to be trained."""
    classes: tuple[str, ...] = getattr(model, "classes", ())
    if model.input is None and model.text is None and not classes:
        return NOTHING
    regresses = isinstance(model, SequenceRegressorConfig)
    task = "regression" if regresses else "classification" if classes else None
    return Known(None if model.input is None else model.input.files, classes, task)


def open_sequences(config: DataConfig, known: Known = NOTHING) -> SequenceData:
    """The data of any of the kinds; on a terminal, with the progress of images and rows that are made once.

    ``known``: what a trained model says of your own labelled files, by which they are read
    """
    if isinstance(config, MemoryDataConfig):
        return open_memory_task(config)
    if isinstance(config, LongRangeDataConfig):
        return open_long_range(config, progress=on_terminal(f"{config.task}: making the rows,"))
    if isinstance(config, LabelledTextDataConfig):
        return open_labelled_texts(config, progress=on_terminal("reading the texts, byte"), known=known)
    assert isinstance(config, LabelledDataConfig)
    return open_labelled(config, progress=on_terminal(f"{config.source}: decoding,"), known=known)


def input_of(data: SequenceData) -> InputConfig | None:
    """What the data do to their raw numbers, for a model that is to do it; None where steps are tokens, or are drawn
    as they are read."""
    split = None if isinstance(data, MemoryData) else next(iter(data.splits.values()))
    if not isinstance(split, LabelledSplit):
        return None
    more: Any = {}
    scaling = Scaling("dataset", split.scale[0], split.shift[0])
    if isinstance(data, LabelledData):
        scaling = data.scaling
        more = {"max_length": data.config.max_length, "sampling_rate": data.found.sampling_rate}
        more["files"] = data.found.files
    return InputConfig(
        scaling=scaling.kind,
        scale=tuple(map(float, scaling.scale)),
        shift=tuple(map(float, scaling.shift)),
        order=() if split.order is None else tuple(map(int, split.order)),
        **more,
    )


def text_of(data: SequenceData) -> TextInputConfig | None:
    """How the data make tokens of a document; None for data that are not documents, and for pairs."""
    if isinstance(data, LabelledTextData):
        encoding = "bytes" if data.tokenizer is None else "tokens"
        return TextInputConfig(encoding=encoding, max_length=data.config.max_length, field=data.config.text_field)
    encodings = {"text": "characters", "text-folder": "bytes"}
    if not isinstance(data, LongRangeData) or data.config.task not in encodings:
        return None
    kind = encodings[data.config.task]
    vocabulary = data.vocabulary if kind == "characters" else ()
    return TextInputConfig(encoding=kind, vocabulary=vocabulary, max_length=data.config.resolved("max_length"))


def few(names: tuple[str, ...]) -> str:
    """The first of them, for a message."""
    return ", ".join(names[:4]) + (f", ... ({len(names)})" if len(names) > 4 else "")


def fields_of(data: SequenceData) -> dict[str, Any]:
    """The fields of a model that fits the data; the pooling only where there may be none."""
    fields: dict[str, Any] = {"d_input": data.d_input, "vocab_size": data.vocab_size}
    fields |= {"n_classes": len(data.classes)} if data.classes else {"d_output": data.d_output}
    return fields | {"pooling": None} if data.each_step else fields
