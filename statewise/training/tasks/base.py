"""What a task defines, so that training, evaluation and the command line can do the rest."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, Protocol, TypeVar

from torch import Tensor

from statewise.data.base import DataConfig
from statewise.data.splits import ALL
from statewise.errors import ConfigError
from statewise.models.base import Model, ModelConfig

if TYPE_CHECKING:
    from statewise.checkpoints.files import SavedTokenizer
    from statewise.training.config import RunConfig

BatchType = TypeVar("BatchType", bound=tuple[Any, ...])
BatchOut = TypeVar("BatchOut", covariant=True)
ModelType = TypeVar("ModelType", bound=Model)


class BatchSource(Protocol[BatchOut]):
    """``batches[step]`` is a NamedTuple of CPU tensors (or None), a pure function of (seed, step), without end."""

    @property
    def steps_per_epoch(self) -> int:
        """How many batches make one pass over the data."""

    def __getitem__(self, step: int) -> BatchOut: ...


class Table(NamedTuple):
    """A result to print: the first column is left-aligned, the others, mostly numbers, are right-aligned."""

    title: str
    columns: tuple[str, ...]  # their headings; all empty: no heading
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()  # lines below it


def rows_of(record: Mapping[str, Any]) -> str:
    """Which rows a record is of, for a title: "test split", "all rows"."""
    return "all rows" if record["split"] == ALL else f"{record['split']} split"


class Task(abc.ABC, Generic[ModelType, BatchType]):
    """Data, and how well a model does on them. One is opened for each run, and for each evaluation.

    Its ``run.data`` and ``run.model`` are of the classes that it is registered for (``TASKS``, and ``models`` below).
    It begins with ``super().__init__(run)``, opens the data (DataError), and refuses a model that does not fit them
    (ConfigError that names the field of the model and the value it needs). ``self.run.model`` is what is built: a task
    may add what a model needs to answer from raw data, as the names of its classes. It draws nothing from the global
    generators, neither then nor later. All else that a run needs - exact resume, signals, checkpoints, progress, the
    search for the layer that made a NaN - is the loop's.

    A task sets these class attributes, or leaves them:

    models              the configs it can train
    unit                what is counted: "tokens", "sequences". Records hold it as keys: "sequences_per_second"
    noun                what the data are called in messages
    metric              the key of :meth:`evaluate`'s record that says which checkpoint is best
    higher_is_better    whether more of it is better
    evaluate_options    further keyword arguments of :meth:`evaluate` that the command line may give: any of
                        "across_documents", "chunk_length", "n_streams", "window", "stride", "compressors"
    progress_line       of the terminal's bar, filled from a "train" record: keep it short
    evaluation_line     above the bar after an evaluation, filled from its record
    sorts               whether ``train.short_first`` sorts its rows by length
    searches            whether a step is a search of its own (:meth:`search`), instead of the optimiser's
    plot_of             what :meth:`plot` draws, in words; None: nothing
    """

    models: ClassVar[tuple[type[ModelConfig], ...]]
    unit: ClassVar[str] = "sequences"
    noun: ClassVar[str] = "data"
    metric: ClassVar[str]
    higher_is_better: ClassVar[bool]
    evaluate_options: ClassVar[tuple[str, ...]] = ()
    progress_line: ClassVar[str] = "loss {loss:.4f}"
    evaluation_line: ClassVar[str] = "loss {loss:.4f}"
    sorts: ClassVar[bool] = False
    searches: ClassVar[bool] = False
    plot_of: ClassVar[str | None] = None

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        if run.train.short_first and not self.sorts:
            raise ConfigError(
                f"train.short_first=true is for sequences of their own lengths, not for {type(run.data).__name__}; set "
                "train.short_first=false"
            )

    def go_on_from(self, saved: ModelConfig) -> None:
        """A run that continues from a checkpoint reads raw data as its model says. Called before batches."""

    # -- the data ----------------------------------------------------------------------------------------------------

    @classmethod
    def model_fields(cls, data: DataConfig) -> Mapping[str, Any]:
        """The fields of the model that follow from the data, as {"vocab_size": 257}: what a preset's are replaced by.

        Values are JSON. Those that the user gives on the command line are left as they are given.
        """
        return {}

    @property
    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Equal only for the same data in the same splits: what a resumed run is held against."""

    @property
    def divided_by_content(self) -> bool:
        """Whether a row stays in its split when others come or go, so that none that was trained on gets into the
        test."""
        return False

    @property
    def tokenizer(self) -> SavedTokenizer | None:
        """Saved with every checkpoint; None for what is not text."""
        return None

    @abc.abstractmethod
    def describe(self) -> str:
        """What was found and how it is divided: a few lines to print."""

    @abc.abstractmethod
    def sizes(self) -> dict[str, int]:
        """How many units each split has, as {"train": 1000, "validation": 100}; no key, no such split."""

    @property
    @abc.abstractmethod
    def batches(self) -> BatchSource[BatchType]:
        """The training batches, of ``run.train.batch_size`` sequences (the last one of an epoch may have fewer, unless
        ``run.train.drop_last``), from ``run.train.seed``; made when asked for.

        Errors: DataError if the training split has no batch.
        """

    def units_in(self, n_batches: int) -> int:
        """How many units the first so many batches have."""
        train = self.run.train
        if train.drop_last:
            return n_batches * train.batch_size
        epochs, within = divmod(n_batches, self.batches.steps_per_epoch)
        return epochs * self._n_train + min(within * train.batch_size, self._n_train)

    @cached_property
    def _n_train(self) -> int:
        return self.sizes()["train"]

    # -- training ----------------------------------------------------------------------------------------------------

    def initial_state(self, model: ModelType) -> Any:
        """The state that the first batch begins with, if ``train.carry_state`` asks that it be passed on.

        Errors: ConfigError, unless a batch continues where the one before stopped.
        """
        raise ConfigError(
            f"TrainConfig.carry_state=True, but the batches of {type(self.run.data).__name__} are sequences of their "
            "own; set train.carry_state=false"
        )

    @abc.abstractmethod
    def loss(self, model: ModelType, batch: BatchType, state: Any) -> tuple[Tensor, Any]:
        """The mean loss of a batch, a scalar in float32 or wider, and the state after it (None for a state of None).

        Called under autocast if the run asks for it, and perhaps compiled.
        """

    def search(self, model: ModelType, batch: BatchType, number: int) -> tuple[float, float]:
        """Step ``number``, from 0, of a task that ``searches``: new parameters, the loss, and the gradient's norm.

        What it does follows from the parameters, the batch and the number alone, so that a run can be resumed.
        """
        raise NotImplementedError(f"{type(self).__name__} takes the optimiser's steps")

    def n_targets(self, batch: BatchType) -> int:
        """How many targets the loss of a batch is the mean of: what it counts beside the losses of other rows.

        By default the number of rows.
        """
        return next(len(leaf) for leaf in batch if isinstance(leaf, Tensor))

    def piece(self, batch: BatchType, number: int, n_pieces: int) -> BatchType:
        """One of ``n_pieces`` contiguous pieces of the rows of a batch, for ranks that share them, or to be read one
        after the other. Targets of whole rows stay whole.

        Errors: ConfigError if rows are not cut, or do not divide.
        """
        raise ConfigError(
            f"{self.pieces_field}={n_pieces}: the rows of {type(self.run.data).__name__} are not cut in pieces; "
            f"set {self.pieces_field}=1"
        )

    def n_pieces(self, batch: BatchType) -> int:
        """In how many pieces the rows of a batch are read, one after the other: ``train.pieces``, or fewer for a batch
        of short rows."""
        return self.run.train.pieces

    @property
    def pieces_field(self) -> str:
        """What asks for pieces."""
        return "train.pieces" if self.run.train.pieces > 1 else "train.parallel.sequence"

    def from_loss(self, loss: float) -> dict[str, float]:
        """Further numbers for a line of metrics, from the mean loss of its steps; for text bits per byte."""
        return {}

    def validate(self, model: ModelType) -> dict[str, Any]:
        """The evaluation during training: numbers of the validation split, the metric among them.

        Reads ``run.train.reporting.evaluate_items`` of it at most (all if None). By default :meth:`evaluate`, without
        anything but numbers and words; its "seconds" give way to the run's. Called in evaluation mode, without
        gradients, on the model's device.
        """
        record = self.evaluate(model, "validation", max_items=self.run.train.reporting.evaluate_items)
        return {name: value for name, value in record.items() if isinstance(value, (bool, int, float, str))}

    # -- evaluation --------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def evaluate(self, model: ModelType, split: str, *, max_items: int | None = None, **options: Any) -> dict[str, Any]:
        """A model on a split ("train", "validation", "test"; of labelled rows also "all"): JSON data, finite numbers,
        the metric among them.

        It should also have "loss", the number of units under ``unit``, and "seconds" or the like where they are shown.
        max_items: read only the first so many units   options: those of ``evaluate_options`` that were given

        Errors: ConfigError for a split that does not exist; InputError for predictions that are not finite.
        """

    def tables(self, record: Mapping[str, Any]) -> list[Table]:
        """What :meth:`evaluate` gave, and its "checkpoint" and "split", as tables for a terminal.

        By default its numbers, one below the other.
        """
        rows = [
            (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else f"{value:.4f}")
            for name, value in record.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool)
        ]
        return [Table(f"{rows_of(record)}, {record['checkpoint']}", ("", ""), rows)]

    def plot(self, path: Path, *, model: ModelType, split: str, record: Mapping[str, Any]) -> None:
        """Draws what ``plot_of`` says into a file (see ``statewise.plots``); ``record`` is evaluate's."""
        raise ConfigError(f"a {type(model).__name__} has no picture to draw; leave out --plot")
