"""What a trained model is scored on: a split of its run's own data, or other data, which are read as it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from statewise.cli.model_folder import ModelFolder
from statewise.data.base import DataConfig
from statewise.data.labelled_config import OWN, LabelledDataConfig
from statewise.data.labelled_text import LabelledTextDataConfig
from statewise.data.memory_tasks import TASKS as MEMORY_TASKS
from statewise.data.memory_tasks import MemoryDataConfig
from statewise.data.recognise import FLAGS, fields_for
from statewise.data.series import SeriesDataConfig
from statewise.data.splits import ALL
from statewise.data.text import TextDataConfig
from statewise.data.text_sources import holds_records
from statewise.errors import ConfigError, DataError
from statewise.files.sniffing import checked_kind, in_words
from statewise.training.config import BudgetConfig, RunConfig, TrainConfig
from statewise.training.run_folder import RUN_FILE, read_run
from statewise.training.same_data import open_trained, place_of
from statewise.training.tasks import Task, open_task

# Of fields of a DataConfig
DATA_FLAGS = {"source": "--data", "folder": "--data-dir", "tokenizer": "--tokenizer", "time_field": "--time", **FLAGS}
SEEN = "these are the run's own data, so the model was trained on some of the rows"


class Scored(NamedTuple):
    """A task, its split to be scored, and a note on that, if there is one."""

    task: Task[Any, Any]
    split: str
    note: str | None = None


def open_scored(
    opened: ModelFolder,
    source: str | None = None,
    folder: str | None = None,
    *,
    split: str | None = None,
    text_field: str | None = None,
    label_field: str | None = None,
) -> Scored:
    """What ``statewise evaluate`` scores.

    The run's own data: a split, "test" if you name none. Your own labelled files: all of them ("all"), unless they are
    divided themselves, as a folder with train, validation and test. Other data - text corpora, series, data sets by
    name: a split, divided as the run divides its own.

    source, folder: of the data, for --data and --data-dir; None: the run's own
    text_field, label_field: where the text and the label are in the records of ``source``; None: where they are in
                    the run's own, if it holds records

    Errors:  ConfigError if nothing says which data, or they cannot be chosen so; DataError for the data themselves, for
             columns or classes that the model does not know, and for data of the run's own that have changed.
    """
    run = _run(opened, source)
    if source is None and folder is None:
        tokenizer = {"tokenizer": _tokenizer(opened, run.data)}
        require_data_fields(run.data, tokenizer)
        data = replace(run.data, **_given(**tokenizer))
        return Scored(open_trained(replace(run, data=data), opened.folder, opened.checkpoint), split or "test")
    data = _other_data(opened, run, source, folder, text_field, label_field)
    if _is_own(data) or (isinstance(data, LabelledDataConfig) and source is not None):
        opened.require_answers()
    if not _is_own(data):
        return Scored(_open_other(run, data, source), split or "test")
    task = open_task(replace(run, data=data))
    names, place = [*task.sizes()], str(folder or source)
    if names == ["train"]:
        if split not in (None, ALL):
            raise ConfigError(f"--split {split}: {place} is not divided, so all of it is scored; leave --split out")
        return Scored(task, ALL, SEEN if _is_same_place(run.data, data) else None)
    chosen = split or "test"
    if chosen not in (*names, ALL):
        raise ConfigError(f"{place} has no {chosen} split; choose by --split: {', '.join([*names, ALL])}")
    return Scored(task, chosen)


def _run(opened: ModelFolder, source: str | None) -> RunConfig:
    """The run, its model as the checkpoint has it, so that it says how data are read."""
    if (opened.folder / RUN_FILE).is_file():
        return replace(read_run(opened.folder), model=opened.model.config)
    if opened.reads_text and source is not None:
        train = TrainConfig(budget=BudgetConfig(steps=1))
        return RunConfig(model=opened.model.config, data=TextDataConfig(), train=train)
    if opened.reads_text:
        missing = "which text to evaluate it on; give --data, --text-file or the run folder"
    elif source is not None:
        missing = (
            "how its data are read and what its outputs mean, so --data cannot be scored; give the run folder, or "
            "compare what `statewise predict` answers"
        )
    else:
        missing = "which data to evaluate it on; give the run folder"
    raise ConfigError(f"{opened.folder} is a checkpoint without its run, and does not say {missing}")


def _tokenizer(opened: ModelFolder, data: DataConfig) -> str | None:
    """The one that the model was trained with, for data that are read in tokens; else what was given."""
    if isinstance(data, TextDataConfig):  # a language model may have learned tokens that are no text
        opened.tokenizer  # noqa: B018 (one that does not match is refused before anything is tokenised)
    return opened.tokenizer_spec if hasattr(data, "tokenizer") else opened.given_tokenizer


def _given(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}


def _is_own(data: DataConfig) -> bool:
    """Whether they are your own labelled files."""
    return isinstance(data, LabelledTextDataConfig) or (isinstance(data, LabelledDataConfig) and data.source in OWN)


def _is_same_place(data: DataConfig, other: DataConfig) -> bool:
    return place_of(data.with_absolute_paths()) == place_of(other.with_absolute_paths())


def _other_data(
    opened: ModelFolder,
    run: RunConfig,
    source: str | None,
    folder: str | None,
    text_field: str | None,
    label_field: str | None,
) -> DataConfig:
    """Other data than the run's, with what the run's config says of such."""
    data = run.data
    fields = {"source": source, "folder": folder, "text_field": text_field, "label_field": label_field}
    if source is not None and folder is None:
        fields |= fields_for(data, source)
    fields["tokenizer"] = _tokenizer(opened, data)
    require_data_fields(data, fields)
    changes = _given(**fields)
    if isinstance(data, LabelledDataConfig):
        return _other_labelled(data, run.model, changes)
    if isinstance(data, LabelledTextDataConfig):  # nothing is held out of what is not divided itself
        changes |= {"validation_fraction": 0.0, "test_fraction": 0.0}
    if isinstance(data, TextDataConfig) and source is not None and text_field is None and not holds_records(source):
        data = replace(data, text_field=None)
    return replace(data, **changes)


def _other_labelled(data: LabelledDataConfig, model: Any, changes: dict[str, Any]) -> LabelledDataConfig:
    """A data set by name, or your own files: the model says how to read them, except where their labels are."""
    source = changes.get("source", data.source)
    if source not in OWN:
        return replace(data, **changes) if data.source not in OWN else LabelledDataConfig(**changes)
    if "folder" not in changes:
        raise ConfigError(f"--data {source} names no file; give its path")
    place = Path(changes["folder"]).expanduser()
    other = LabelledDataConfig(
        source=source,
        folder=str(place),
        label_field=changes.get("label_field", data.label_field),
        max_length=data.max_length,
        validation_fraction=0.0,
        test_fraction=0.0,
        seed=data.seed,
    )
    if place.suffix == ".npy":
        if not _is_same_place(data, other):
            raise DataError(f"{place} holds rows without labels; give an .npz, numpy.savez(path, x=..., y=...)")
        return replace(other, labels=data.labels)
    is_array = place.suffix == ".npz" or source == "arrays"
    if not is_array and place.exists() and getattr(model.input, "files", None) is None:
        what = "a folder" if place.is_dir() else in_words(checked_kind(place))
        raise DataError(f"{place} is {what}, but this model was trained on arrays; give an .npz with x and y")
    return other


def _open_other(run: RunConfig, data: DataConfig, source: str | None) -> Task[Any, Any]:
    try:
        return open_task(replace(run, data=data))
    except (ConfigError, DataError) as error:
        if data == run.data or not (kept := _columns(data)):
            raise
        raise type(error)(
            f"--data {source}: the run's own columns were kept ({kept}), and evaluate cannot change them; give "
            f"series with these columns: {error}"
        ) from error


def _columns(data: DataConfig) -> str:
    """The settings of a series that name columns of its file, as "data.covariates=['promo']"."""
    if not isinstance(data, SeriesDataConfig):
        return ""
    names = ("time", "series", "targets", "covariates", "past_covariates")
    given = {name: getattr(data, name) for name in names if getattr(data, name)}
    return ", ".join(
        f"data.{name}={list(value) if isinstance(value, tuple) else value!r}" for name, value in given.items()
    )


def require_data_fields(data: DataConfig, given: Mapping[str, Any]) -> None:
    """ConfigError naming the first flag that is ``given`` (not None) and that these data have no field for."""
    source = given.get("source")
    if isinstance(data, MemoryDataConfig) and source is not None:
        raise ConfigError(
            f"--data {source} is not for the tasks of memory, which are drawn and not read; leave it out, or choose "
            f"another by --preset {', '.join(MEMORY_TASKS)}"
        )
    if source in MEMORY_TASKS and not Path(source).exists():
        raise ConfigError(f"--data {source} cannot be read: the tasks of memory are drawn; use --preset {source}")
    for name, value in given.items():
        if value is not None and not hasattr(data, name):
            raise ConfigError(f"{DATA_FLAGS[name]} is not for {type(data).__name__}, which has no {name}; leave it out")
