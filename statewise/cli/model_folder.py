"""A trained model with what belongs to it: its tokenizer, if it reads text, and its task."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints import files, locate_source, read_config, resolve
from statewise.checkpoints.convert import Progress, open_published
from statewise.checkpoints.convert.source import PublishedTokenizer, is_published
from statewise.checkpoints.convert.wrapped import WRAPPED
from statewise.checkpoints.loading import lacks
from statewise.checkpoints.manifest import TOKENIZER_FILE, TokenizerRecord
from statewise.conventions.published import FILES as PUBLISHED_FILES
from statewise.data.base import DataConfig
from statewise.data.memory_tasks import TASKS as MEMORY_TASKS
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.series import SeriesDataConfig
from statewise.data.text import TextDataConfig
from statewise.data.tokenizers import (
    ByteTokenizer,
    FileTokenizer,
    Tokenizer,
    load_tokenizer,
    require_same_tokenizer,
)
from statewise.decoding import dequantised, refusal
from statewise.errors import CheckpointError, ConfigError, DataError, InputError
from statewise.generation.opening import open_tokenizer
from statewise.models.base import Model
from statewise.models.language_model import LanguageModel
from statewise.train.config import BudgetConfig, RunConfig, TrainConfig
from statewise.train.plotting import require_plot
from statewise.train.run_folder import RUN_FILE, read_run
from statewise.train.several_folder import runs_in
from statewise.train.tasks import Table, Task, open_task
from statewise.train.tasks.classification import ClassificationTask
from statewise.train.tasks.language import evaluate_file, text_tables
from statewise.train.tasks.sequences import few

DEVICES = ("auto", "cpu", "cuda")
DATA_FLAGS = {"source": "--data", "folder": "--data-dir", "tokenizer": "--tokenizer"}  # of fields of a DataConfig


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
    def language_model(self) -> LanguageModel:
        """Errors: ConfigError if it is another kind of model."""
        if not isinstance(self.model, LanguageModel):
            raise ConfigError(
                f"{self.checkpoint} holds a {type(self.model).__name__}, which writes no text; give a language model"
            )
        return self.model

    def with_weights(self, weights: str) -> ModelFolder:
        """The same with its matrices in another precision, as a Decoder has them.

        Errors:  ConfigError if it is no language model; InputError for an unknown precision, and for a model that has
                 no step in C: its loss would be that of a decoding that there is not.
        """
        reason = refusal(self.language_model)
        if reason is not None:
            raise InputError(f"weights={weights!r} needs a model with a step in C: {reason}; leave weights out")
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
        """Texts to go on from, as ``generate`` takes them; None for an empty one. Those of a published model that says
        nothing of its use, and whose tokenizer begins texts with a token of its own, are ids, which begin so."""
        tokenizer = self.tokenizer
        if self.begins_documents or tokenizer.conventions is not None or not tokenizer.prefix:
            return texts or None
        rows = [tokenizer.encode_bytes(text) if isinstance(text, bytes) else tokenizer.encode(text) for text in texts]
        return [[*tokenizer.prefix, *map(int, row)] for row in rows or [[]]]

    def task(self, source: str | None = None, folder: str | None = None) -> Task[Any, Any]:
        """The task of the run, on its data or on others divided in the same way: text in this model's tokens.

        source, folder: of the data, for --data and --data-dir; None: the run's own

        Errors:  ConfigError if nothing says which data, or they cannot be chosen so, or have other classes than the
                 run's own (where those are still there to be compared); DataError for the data themselves.
        """
        if (self.folder / RUN_FILE).is_file():
            run = read_run(self.folder)
        elif self.reads_text and source is not None:
            train = TrainConfig(budget=BudgetConfig(steps=1))
            run = RunConfig(model=self.model.config, data=TextDataConfig(), train=train)
        else:
            choice = (
                "which text to evaluate it; give --data or --text-file, or" if self.reads_text else "which data; give"
            )
            raise ConfigError(f"{self.folder} is a checkpoint alone and does not say on {choice} the run folder")
        changes = {"source": source, "folder": folder, "tokenizer": self.given_tokenizer}
        if isinstance(run.data, TextDataConfig):  # a language model may have learned tokens that are no text
            self.tokenizer  # noqa: B018 (one that does not match is refused before anything is tokenised)
            changes["tokenizer"] = self._tokenizer_spec
        require_data_fields(run.data, changes)
        data = replace(run.data, **{name: value for name, value in changes.items() if value is not None})
        run = replace(run, model=self.model.config)
        try:
            task = open_task(replace(run, data=data))
        except (ConfigError, DataError) as error:
            if data == run.data or not (kept := _columns(data)):
                raise
            raise type(error)(
                f"--data {source}: the run's own columns were kept ({kept}), and evaluate cannot change them; give "
                f"series with these columns: {error}"
            ) from error
        named = getattr(self.model.config, "classes", ())  # the task has compared them
        if data != run.data and isinstance(task, ClassificationTask) and not named:
            _require_same_classes(task, run, source or folder)
        return task

    def evaluate(
        self, task: Task[Any, Any], split: str, *, plot: Path | None = None, **options: Any
    ) -> tuple[dict[str, Any], list[Table]]:
        """The record of an evaluation by the task's :meth:`~Task.evaluate`, and its tables.

        Errors:  ConfigError for an option or a plot that the task does not have; else as the task's.
        """
        kind = type(self.model).__name__
        for name in options:
            if name not in ("max_items", *task.evaluate_options):
                flag = "--" + name.removeprefix("n_").replace("_", "-")  # --streams for n_streams
                raise ConfigError(f"{flag} is not for a {kind} on {task.noun}; leave it out")
        if plot is not None:
            if task.plot_of is None:
                raise ConfigError(f"--plot: there is no picture of how a {kind} does on {task.noun}; leave it out")
            require_plot(plot)
        with torch.no_grad():
            record = {"checkpoint": str(self.checkpoint), "split": split, **task.evaluate(self.model, split, **options)}
            if plot is not None:
                task.plot(plot, model=self.model, split=split, record=record)
        return record, task.tables(record)

    def evaluate_file(
        self, text: bytes, name: str, *, plot: Path | None = None, **options: Any
    ) -> tuple[dict[str, Any], list[Table]]:
        """As :meth:`evaluate`, of a text that is no split of a corpus."""
        if not self.reads_text:
            raise ConfigError(
                f"--text-file is not for a {type(self.model).__name__}, which reads no text; leave it out"
            )
        if plot is not None:
            raise ConfigError("--plot: there is no picture of how a model does on a text; leave it out")
        result = evaluate_file(self.language_model, self.tokenizer, text, name=name, **options)
        record = {"checkpoint": str(self.checkpoint), **result}
        return record, text_tables(record)

    @property
    def _tokenizer_spec(self) -> str:
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


def _columns(data: DataConfig) -> str:
    """The settings of a series that name columns of its file, as "data.covariates=['promo']"."""
    if not isinstance(data, SeriesDataConfig):
        return ""
    names = ("time", "series", "targets", "covariates", "past_covariates")
    given = {name: getattr(data, name) for name in names if getattr(data, name)}
    return ", ".join(
        f"data.{name}={list(value) if isinstance(value, tuple) else value!r}" for name, value in given.items()
    )


def _require_same_classes(task: ClassificationTask, run: RunConfig, given: str | None) -> None:
    """ConfigError if the run's own data have other classes, or in another order."""
    try:
        own = open_task(run)
    except DataError:  # they are no longer here; how many there are was compared with the model
        return
    assert isinstance(own, ClassificationTask)
    if own.data.classes != task.data.classes:
        here, there = (few(data.classes) for data in (task.data, own.data))
        raise ConfigError(f"{given} has the classes {here}, but the run was trained on {there}; give data with these")


def require_data_fields(data: DataConfig, given: Mapping[str, Any]) -> None:
    """ConfigError naming the first flag that is ``given`` (not None) and that these data have no field for."""
    source = given.get("source")
    if isinstance(data, MemoryDataConfig) and source is not None:
        raise ConfigError(
            f"--data {source} is not for the tasks of memory, which are drawn and not read; leave it out, or choose "
            f"another by --preset {', '.join(MEMORY_TASKS)}"
        )
    if source in MEMORY_TASKS and not Path(source).exists():
        raise ConfigError(f"--data {source} is no source: the tasks of memory are drawn; use --preset {source}")
    for name, value in given.items():
        if value is not None and not hasattr(data, name):
            raise ConfigError(f"{DATA_FLAGS[name]} is not for {type(data).__name__}, which has no {name}; leave it out")


def open_model(
    folder: str | os.PathLike[str],
    *,
    which: str = "best",
    device: str = "auto",
    tokenizer: str | None = None,
    dtype: torch.dtype | None = None,
    progress: Progress | None = None,
) -> ModelFolder:
    """Loads the best or latest checkpoint of a run folder, the checkpoint that the folder is, or a published model.

    A published model is a folder, a file, or a name of the hub, as :func:`statewise.load` takes them, with ``dtype``.

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
        published = open_published(folder)
        model = published.build(device=chosen, dtype=dtype, progress=progress)
        return ModelFolder(folder, folder, model, tokenizer, published.format, published.source.tokenizer)
    names = None if (folder / RUN_FILE).exists() else runs_in(folder)
    if names is not None:
        raise CheckpointError(
            f"{folder} holds several runs, {few(tuple(names))}; name one of them: {folder / names[0]}"
        )
    checkpoint = resolve(folder, "latest" if which == "latest" else "best")
    return ModelFolder(folder, checkpoint, files.load(checkpoint, device=chosen, dtype=dtype), tokenizer)
