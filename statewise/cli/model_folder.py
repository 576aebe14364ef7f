"""A trained model with what belongs to it: its tokenizer, if it reads text, and how it is scored."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints import files, locate_source, read_config, resolve
from statewise.checkpoints.convert import Progress, open_published
from statewise.checkpoints.convert.headers import read_headers
from statewise.checkpoints.convert.source import GGUF, PublishedTokenizer, find_source, is_published
from statewise.checkpoints.convert.wrapped import WRAPPED
from statewise.checkpoints.empty import build_empty
from statewise.checkpoints.loading import lacks
from statewise.checkpoints.manifest import TOKENIZER_FILE, TokenizerRecord
from statewise.conventions.published import FILES as PUBLISHED_FILES
from statewise.data.series import SeriesDataConfig
from statewise.data.tokenizers import (
    ByteTokenizer,
    FileTokenizer,
    Tokenizer,
    describe_tokenizer,
    load_tokenizer,
    require_same_tokenizer,
)
from statewise.decoding import check_weights, dequantised, refusal
from statewise.errors import CheckpointError, ConfigError
from statewise.generation.opening import open_tokenizer
from statewise.models.base import Model
from statewise.models.forecaster import Forecaster
from statewise.models.language_model import LanguageModel
from statewise.models.structural import StructuralForecaster
from statewise.plots.style import require_plot
from statewise.training.run_folder import RUN_FILE, read_run
from statewise.training.several_folder import runs_in
from statewise.training.tasks import Table, Task
from statewise.training.tasks.language import evaluate_file, text_tables
from statewise.training.tasks.sequences import few

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class ModelFolder:
    """What the command line needs of a run folder, a checkpoint or a published model; :func:`open_model` makes one.

    folder: as given   checkpoint: the one chosen   given_tokenizer: the one asked for, or None for the checkpoint's own
    format: of a published model, as "mamba_ssm"; "statewise" for ours
    published_tokenizer: the one that a published model comes with, if it does
    """

    folder: Path
    checkpoint: Path
    model: Model
    given_tokenizer: str | None = None
    format: str = "statewise"
    published_tokenizer: PublishedTokenizer | None = None

    @cached_property
    def own_tokenizer(self) -> TokenizerRecord | None:
        """What a checkpoint of ours says of its tokenizer."""
        return None if self.is_published else read_config(self.checkpoint).tokenizer

    @property
    def has_tokenizer(self) -> bool:
        """Whether :attr:`tokenizer` is there: given, saved with the model, or published with it."""
        return not (self.given_tokenizer is self.published_tokenizer is self.own_tokenizer is None)

    @property
    def is_published(self) -> bool:
        return self.format != "statewise"

    @property
    def begins_documents(self) -> bool:
        """Whether it has seen every document begin with the document token: a model of ours, wrapped or not, but none
        that was published by others and says how it is used."""
        if self.is_published:
            return self.format == WRAPPED and not (self.published_tokenizer and self.published_tokenizer.files)
        return not read_config(self.checkpoint).files.keys() & {*PUBLISHED_FILES}

    def require_answers(self) -> None:
        """Errors:  CheckpointError for a checkpoint of 0.1.0 that lacks what its model needs to read raw data."""
        missing = None if self.is_published else lacks(read_config(self.checkpoint))
        if missing is not None:
            raise CheckpointError(f"{self.checkpoint} was written by Statewise 0.1.0, {missing}")

    @property
    def reads_text(self) -> bool:
        return isinstance(self.model, LanguageModel)

    @property
    def forecasts(self) -> bool:
        return isinstance(self.model, (Forecaster, StructuralForecaster))

    def own_series(self) -> str:
        """The table that the run was trained on. Errors: ConfigError for a checkpoint without its run."""
        data = read_run(self.folder).data if (self.folder / RUN_FILE).is_file() else None
        if not isinstance(data, SeriesDataConfig):
            raise ConfigError(
                f"{self.folder} is a checkpoint without its run, so it does not say where its series are; give DATA"
            )
        return data.source

    @property
    def language_model(self) -> LanguageModel:
        """Errors: ConfigError if it is another kind of model."""
        if not isinstance(self.model, LanguageModel):
            raise ConfigError(
                f"{self.checkpoint} holds a {type(self.model).__name__}, which cannot write text; give a language model"
            )
        return self.model

    def with_weights(self, weights: str) -> ModelFolder:
        """The same model with its matrices in another precision, as in a Decoder.

        Errors:  ConfigError if it is not a language model; InputError for an unknown precision, and for a model
                 without a step in C, which cannot decode with such weights.
        """
        check_weights(self.language_model, weights)
        return replace(self, model=dequantised(self.language_model, weights))

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """Errors: CheckpointError if the checkpoint was saved without one; DataError for one that does not match."""
        own = self.own_tokenizer
        if own is None and self.given_tokenizer is None:
            if self.published_tokenizer is not None:
                theirs = self.published_tokenizer
                return FileTokenizer(theirs.json, name=str(theirs.file), files=theirs.files)
            # of a model with too few ids for bytes it was another
            fits = not isinstance(self.model, LanguageModel) or self.model.config.vocab_size >= ByteTokenizer.vocab_size
            raise CheckpointError(
                f"{self.checkpoint} {'comes' if self.is_published else 'was saved'} without its tokenizer; say which "
                f"it is: {'--tokenizer bytes, or ' if fits else ''}--tokenizer PATH of a tokenizer.json"
            )
        given = self.given_tokenizer
        tokenizer = open_tokenizer(self.checkpoint) if given is None else load_tokenizer(given)
        if own is not None:
            require_same_tokenizer(tokenizer, own.fingerprint, f"the checkpoint {self.checkpoint}")
        return tokenizer

    def prompts(self, texts: Sequence[str | bytes]) -> Sequence[str | bytes] | list[list[int]] | None:
        """Texts to continue, as ``generate`` takes them; None for an empty one. A published model may not say how it is
        used. If its tokenizer begins texts with a token of its own, its prompts become ids that begin with it."""
        tokenizer = self.tokenizer
        if self.begins_documents or tokenizer.conventions is not None or not tokenizer.prefix:
            return texts or None
        rows = [tokenizer.encode_bytes(text) if isinstance(text, bytes) else tokenizer.encode(text) for text in texts]
        return [[*tokenizer.prefix, *map(int, row)] for row in rows or [[]]]

    def evaluate(
        self, task: Task[Any, Any], split: str, *, note: str | None = None, plot: Path | None = None, **options: Any
    ) -> tuple[dict[str, Any], list[Table]]:
        """The record of an evaluation by the task's :meth:`~Task.evaluate`, and its tables, with a ``note`` in both.

        Errors:  ConfigError for an option or a plot that the task does not have; else as the task's.
        """
        kind = type(self.model).__name__
        for name in options:
            if name not in ("max_items", *task.evaluate_options):
                flag = "--" + name.removeprefix("n_").replace("_", "-")  # --streams for n_streams
                raise ConfigError(f"{flag} is not for a {kind} on {task.noun}; leave it out")
        if plot is not None:
            if task.plot_of is None:
                raise ConfigError(f"--plot: a {kind} on {task.noun} has no picture to draw; leave it out")
            require_plot(plot)
        with torch.no_grad():
            record = {"checkpoint": str(self.checkpoint), "split": split, **task.evaluate(self.model, split, **options)}
            if plot is not None:
                task.plot(plot, model=self.model, split=split, record=record)
        tables = task.tables(record)
        if note is not None:
            record["note"] = note
            tables[0] = tables[0]._replace(notes=(*tables[0].notes, note))
        return record, tables

    def evaluate_file(
        self, text: bytes, name: str, *, plot: Path | None = None, **options: Any
    ) -> tuple[dict[str, Any], list[Table]]:
        """As :meth:`evaluate`, for a text that is not a split of a corpus."""
        if not self.reads_text:
            raise ConfigError(
                f"--text-file is not for a {type(self.model).__name__}, which does not read text; leave it out"
            )
        if plot is not None:
            raise ConfigError("--plot: an evaluation on a text has no picture to draw; leave it out")
        result = evaluate_file(self.language_model, self.tokenizer, text, name=name, **options)
        record = {"checkpoint": str(self.checkpoint), **result}
        return record, text_tables(record)

    @property
    def tokenizer_spec(self) -> str:
        """What :func:`load_tokenizer` takes.

        Errors:  CheckpointError for a published tokenizer that is in no tokenizer.json.
        """
        own = self.own_tokenizer
        if self.given_tokenizer is not None:
            return self.given_tokenizer
        if self.published_tokenizer is not None:
            folder = self.checkpoint if self.checkpoint.is_dir() else self.checkpoint.parent
            if (folder / TOKENIZER_FILE).is_file():
                return str(folder / TOKENIZER_FILE)
            raise CheckpointError(
                f"{self.checkpoint} has its tokenizer, but not as a tokenizer.json, which a corpus is read with; make "
                "one: statewise convert, and evaluate what it writes"
            )
        return "bytes" if own is None or own.kind == "bytes" else str(self.checkpoint / TOKENIZER_FILE)


def open_model(
    folder: str | os.PathLike[str],
    *,
    which: str = "best",
    device: str = "auto",
    tokenizer: str | None = None,
    dtype: torch.dtype | None = None,
    keep_quantised: bool = False,
    progress: Progress | None = None,
) -> ModelFolder:
    """Loads the best or latest checkpoint of a run folder, the checkpoint that the folder is, or a published model.

    A published model is a folder, a file, or a name of the hub, as :func:`statewise.load` takes them, with ``dtype``.

    keep_quantised: as for :func:`statewise.load`, where the device is the CPU and the model has a step in C: without it
              each token would unpack all matrices
    progress: called for each tensor of a published model that is read, with how many there are
    Errors:  ConfigError for an unknown choice; CheckpointError if there is nothing to load, it is damaged, or the
             folder holds several runs, of which one has to be named.
    """
    if which not in ("best", "latest"):
        raise ConfigError(f"--checkpoint {which!r} is unknown; use best or latest")
    if device not in DEVICES:
        raise ConfigError(f"--device {device!r} is unknown; use one of {', '.join(DEVICES)}")
    cuda = torch.cuda.is_available()
    if device == "cuda" and not cuda:
        raise ConfigError("--device cuda, but PyTorch finds no CUDA device here; use auto or cpu")
    chosen = "cuda" if cuda and device != "cpu" else "cpu"
    folder = locate_source(folder)
    if is_published(folder):
        keeps = keep_quantised and chosen == "cpu" and _has_step(folder)
        published = open_published(folder, keep_quantised=keeps)
        model = published.build(device=chosen, dtype=dtype, progress=progress)
        return ModelFolder(folder, folder, model, tokenizer, published.format, published.source.tokenizer)
    names = None if (folder / RUN_FILE).exists() else runs_in(folder)
    if names is not None:
        raise CheckpointError(
            f"{folder} holds several runs, {few(tuple(names))}; name one of them: {folder / names[0]}"
        )
    checkpoint = resolve(folder, "latest" if which == "latest" else "best")
    return ModelFolder(folder, checkpoint, files.load(checkpoint, device=chosen, dtype=dtype), tokenizer)


def _has_step(folder: Path) -> bool:
    """Whether the model of a GGUF file has a step in C; only its header is read."""
    if find_source(folder).weights.suffix != GGUF:
        return False
    config = read_headers(folder).config
    model = None if config is None else build_empty(config)
    return isinstance(model, LanguageModel) and refusal(model) is None


def open_draft(folder: Path, of: ModelFolder, *, device: str) -> LanguageModel:
    """The language model in a folder that is to draft for another.

    Errors:  ConfigError if it reads other tokens.
    """
    opened = open_model(folder, device=device)
    if opened.has_tokenizer and opened.tokenizer.fingerprint != of.tokenizer.fingerprint:
        theirs, ours = describe_tokenizer(opened.tokenizer), describe_tokenizer(of.tokenizer)
        raise ConfigError(
            f"{folder} reads {theirs} and {of.folder} {ours}, which differ; draft with a model that was trained with "
            "the same tokenizer"
        )
    return opened.language_model
