"""A run's folder: one process at a time, run.json, and the checkpoints that are kept.

    run.json                      the configuration; paths within the folder begin with {run} (places.py)
    data/, initial/               what the run was given in memory, if it was (given.py)
    metrics.jsonl                 see metrics.py
    checkpoints/step-00000500/    complete as soon as it has its name

Hidden names are unfinished writes, except for ``.lock``: empty, or under torchrun the name of the launch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from statewise import __version__
from statewise.checkpoints import clean_unfinished, list_checkpoints
from statewise.checkpoints.atomic import HIDDEN_NAME
from statewise.checkpoints.files import read_trainer_data
from statewise.checkpoints.folders import CHECKPOINTS, RUN_FILE
from statewise.checkpoints.manifest import TRAINER_DATA, read_manifest
from statewise.configuration import from_dict, to_dict
from statewise.data.base import absolute
from statewise.data.synthetic_languages.config import from_one_class
from statewise.data.text import TextDataConfig
from statewise.errors import CheckpointError, ConfigError
from statewise.models.language_model import LanguageModelConfig
from statewise.models.registry import with_default_type
from statewise.training.config import CHANGEABLE_ON_RESUME, RunConfig
from statewise.training.metrics import keep_aside, write_bytes
from statewise.training.places import read_within, written_within
from statewise.training.tasks import run_types

METRICS_FILE = "metrics.jsonl"
LOCK_FILE = ".lock"
RUN = "run"  # in a checkpoint's trainer/state.json: the configuration that it was trained with, as run.json has it
SHOWN = 80  # characters of a value in a message


def read_run(folder: Path | str) -> RunConfig:
    """The configuration of a run folder.

    Errors: CheckpointError where there is no run or its file is damaged; ConfigError for what it says.
    """
    path = Path(folder) / RUN_FILE
    try:
        data = json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"{folder} holds no run (no {RUN_FILE}); give the folder of a run") from None
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None
    return run_from_dict(data, where=str(path), folder=path.parent)


def run_from_dict(data: Any, *, where: str = "run", folder: Path | None = None) -> RunConfig:
    """A RunConfig from JSON data: what run.json holds, or a file for ``--config``. Strict, but for the version.

    folder: that of the file, in which paths lie that begin with {run}

    A model or data without a "type" are a language model and a text, as they always were before there were others.
    """
    if folder is not None:
        data = read_within(data, folder)
    if isinstance(data, Mapping):
        data = {key: value for key, value in data.items() if key != "statewise_version"}
        for name, default in (("model", LanguageModelConfig), ("data", TextDataConfig)):
            if name in data:
                data[name] = with_default_type(from_one_class(data[name]), default)
    return from_dict(RunConfig, data, types=run_types(), where=where)


class RunFolder:
    """An open run folder; :func:`open_run` makes one.

    changed: what a resumed run changes, by field: (as the last checkpoint was trained, as it is now)
    """

    def __init__(
        self,
        path: Path,
        config: RunConfig,
        lock: tuple[int, int] | None = None,
        *,
        begins_anew: bool = False,
        changed: Mapping[str, tuple[Any, Any]] | None = None,
    ) -> None:
        self.path = path
        self.config = config
        self.changed = dict(changed or {})
        self.begins_anew = begins_anew  # with another configuration than its run.json, which has no checkpoint
        self._lock = lock  # the device and number of the file that is locked; None: nothing will be written
        self.metrics_path = path / METRICS_FILE

    def checkpoint_path(self, step: int) -> Path:
        return self.path / CHECKPOINTS / f"step-{step:08d}"

    def latest(self) -> Path | None:
        """None of a run that has not begun: run.json is written once nothing in it has been refused."""
        found = list_checkpoints(self.path) if (self.path / RUN_FILE).exists() else None
        return found[-1].path if found else None

    def require_own(self) -> None:
        """Before something is written: a folder that was moved or removed meanwhile would be created again at its old
        place, beside its checkpoints, or within another process's run.

        Errors: CheckpointError if the folder that is at this path is not the one that was opened.
        """
        if self._lock is not None and _identity(self.path / LOCK_FILE) != self._lock:
            raise CheckpointError(
                f"the folder {self.path} was moved, removed or replaced while the run was training in it; nothing more "
                "is written. Resume the run from where its folder is now"
            )

    def as_written(self) -> dict[str, Any]:
        """The configuration as JSON data, which the folder may be moved with."""
        data: dict[str, Any] = written_within(to_dict(self.config), self.path)
        return data

    def write_config(self) -> None:
        """What a failed attempt with another configuration left is kept as run.json.failed and metrics.jsonl.failed."""
        if self.begins_anew:
            for earlier in (self.path / RUN_FILE, self.metrics_path):
                if earlier.exists():
                    keep_aside(earlier, "failed")
        data = {"statewise_version": __version__, **self.as_written()}
        text = (json.dumps(data, indent=2, allow_nan=False) + "\n").encode()
        write_bytes(self.path / RUN_FILE, text)


@contextmanager
def open_run(
    folder: Path | str, config: RunConfig | None, *, resume: bool, holds: Collection[str] = ()
) -> Iterator[RunFolder]:
    """Owns a run folder within a ``with``: creates it, or with ``resume`` opens it and holds ``config`` against it.

    Without a config a resumed run takes its own. What its last checkpoint was trained with decides what may differ: a
    run.json that was edited is held against it like any other config. A folder in which a run was killed before it
    wrote its run.json can be begun again, with or without ``resume``. A run that has no checkpoint yet has nothing
    that a configuration could contradict: resumed with another one, it begins again.

    holds: what a new run's folder may hold already, by name

    Errors: CheckpointError for a folder that is not empty and not a run's, that holds a run already (without
            ``resume``), that holds none (with it), that another process is training in, or that cannot be
            written; ConfigError naming the fields in which the configurations differ and may not.
    """
    path = Path(folder)
    inspect_folder(path, resume, holds)  # before anything of ours is written into a folder that is not ours
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / LOCK_FILE, "ab")  # noqa: SIM115 (held to the end of the run, closed below)
    except OSError as error:
        raise CheckpointError(f"cannot write into {path}: {error.strerror}") from error
    with lock:
        _lock(lock, path)
        before = (
            read_run(path) if inspect_folder(path, resume, holds) else None
        )  # the folder may have changed before it was locked
        if config is None:
            config = before
        if config is None:
            raise CheckpointError(f"the run at {path} was stopped before it had begun; start it again")
        config, begins_anew = _from_anywhere(config), False
        changed: dict[str, tuple[Any, Any]] = {}
        if before is not None:
            before, found = _from_anywhere(before), list_checkpoints(path)
            begins_anew = not found and before != config
            if found:
                changed = _changes(found[-1].path, before, config, path)
        held = os.fstat(lock.fileno())
        run = RunFolder(path, config, (held.st_dev, held.st_ino), begins_anew=begins_anew, changed=changed)
        clean_unfinished(path)
        yield run


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _from_anywhere(config: RunConfig) -> RunConfig:
    """With absolute paths: a run is resumed and evaluated from other working directories than it was begun in."""
    train = config.train
    if train.initial is not None:
        train = replace(train, initial=absolute(train.initial))
    return replace(config, data=config.data.with_absolute_paths(), train=train)


def inspect_folder(path: Path, resume: bool, holds: Collection[str] = ()) -> bool:
    """Whether the folder holds a run; an error if what was asked for does not go with what is there."""
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file; expected a folder for the run")
    if resume and not path.exists():
        raise CheckpointError(f"there is no run at {path} to resume; give the folder of a run")
    names = {entry.name for entry in path.iterdir()} if path.exists() else set()
    foreign = sorted(name for name in names - {LOCK_FILE, *holds} if not HIDDEN_NAME.fullmatch(name))
    if foreign and RUN_FILE not in names:
        raise CheckpointError(f"{path} is not empty and holds no run (it holds {foreign[0]!r}); give another folder")
    if RUN_FILE in names and not resume:
        raise CheckpointError(f"{path} already holds a run; resume it (--resume), or give another folder")
    return RUN_FILE in names


def _trained_with(checkpoint: Path, run: Path) -> RunConfig | None:
    """The configuration that a checkpoint says it was trained with; None of those written before they said so."""
    data = read_trainer_data(checkpoint, read_manifest(checkpoint))
    where = f"{checkpoint / TRAINER_DATA}: {RUN}"
    return run_from_dict(data[RUN], where=where, folder=run) if RUN in data else None


def _changes(checkpoint: Path, before: RunConfig, now: RunConfig, path: Path) -> dict[str, tuple[Any, Any]]:
    """The fields in which a run goes on otherwise than its last checkpoint was trained.

    before:  what run.json says, which somebody may have edited since
    Errors:  ConfigError naming those that decide the loss curve, and where they were changed.
    """
    trained = _trained_with(checkpoint, path) or before  # an old checkpoint does not say; its run.json is believed
    differing = differences(trained, now)
    forbidden = [key for key in differing if key not in CHANGEABLE_ON_RESUME]
    if not forbidden:
        return differing
    first = forbidden[0]
    names = ", ".join(forbidden[:3]) + (f" and {len(forbidden) - 3} more" if len(forbidden) > 3 else "")
    was, now_is = map(_shown, differing[first])
    if first not in differences(before, now):
        raise ConfigError(
            f"{path / RUN_FILE} was edited: {names} ({first} is {now_is} there, and {was} in what "
            f"{checkpoint.name} was trained with); put it back, or begin a new run with it (--config) elsewhere (--out)"
        )
    raise ConfigError(
        f"the run at {path} was begun with another {names} "
        f"({first} was {was}, now {now_is}); resume it as it was, or begin a new run"
    )


def differences(before: RunConfig, now: RunConfig) -> dict[str, tuple[Any, Any]]:
    """What each has of the fields in which they differ, by their dotted names."""
    old, new = (by_path(to_dict(_from_anywhere(config))) for config in (before, now))
    both = {key: (old.get(key), new.get(key)) for key in sorted(old.keys() | new.keys())}
    return {key: (was, is_now) for key, (was, is_now) in both.items() if was != is_now}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < SHOWN else f"{text[: SHOWN - 3]}..."


def by_path(data: Any, prefix: str = "") -> dict[str, Any]:
    """Nested data as dotted names: {"train.seed": 1, "model.layers.0.d_state": 64, "train.reporting.log": []}."""
    if isinstance(data, Mapping):
        items = list(data.items())
    elif isinstance(data, (list, tuple)) and any(isinstance(one, (Mapping, list, tuple)) for one in data):
        items = list(enumerate(data))
    else:
        return {prefix: data}
    return {k: v for key, value in items for k, v in by_path(value, f"{prefix}.{key}" if prefix else str(key)).items()}


def _lock(file: IO[bytes], path: Path) -> None:
    """An advisory lock, which the system lets go of when the process ends, however it ends."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise CheckpointError(f"another process is training in {path}; wait for it, or give another folder") from None
    except OSError as error:
        raise CheckpointError(f"cannot lock {path / LOCK_FILE}: {error.strerror}; give a folder elsewhere") from error
