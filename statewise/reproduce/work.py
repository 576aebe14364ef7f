"""The folder of a claim: what is done is kept part by part, so that it can be stopped and continued.

reproduction.json    which claim this is, with all of its settings
parts/*.json         what each trial gave, with its machine, its seconds and its CPU seconds; complete as soon as it is
                     there
result.json          everything, at the end      report.md, *.png    the same to read
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from statewise import __version__
from statewise.checkpoints.atomic import HIDDEN_NAME, remove_hidden
from statewise.configuration import Config, to_dict
from statewise.configuration.base import schema
from statewise.errors import CheckpointError, ConfigError
from statewise.reproduce.files import finite, write_json
from statewise.reproduce.hardware import environment, measured
from statewise.reproduce.progress import PartReporter, Watcher
from statewise.reproduce.settings import BEFORE
from statewise.training.report import Reporter
from statewise.training.signals import Stopped
from statewise.training.workers import Job, run_jobs

__all__ = ["Job", "Stopped", "Work", "open_work"]

SETTINGS_FILE = "reproduction.json"
PARTS = "parts"
# Settings that say how the work is done or shown: a folder may be gone on with with others. The times of parts, and
# the last digits of what several threads add up, are those of the session that did them
HOW = frozenset({"workers", "bars"})
WHERE = "folder"  # that the data lie in: on another machine it is another one, but no folder is other data


class Work:
    """An open folder. ``begin`` says how many parts there will be; ``parts`` does them, or finds them done."""

    def __init__(self, folder: Path, name: str, config: Any, watcher: Watcher) -> None:
        self.folder = folder
        self.name = name
        self.config = config
        self.watcher = watcher
        self.environments: list[dict[str, Any]] = []  # of the parts, each once
        self.seconds = 0.0  # of the parts, whenever they were measured
        self.cpu_seconds: float | None = 0.0  # of all cores; of an interrupted part its last session's; None: not known
        self._n_parts = self._n_done = 0

    def begin(self, n_parts: int, *, at_most: bool = False) -> None:
        """at_most: the results decide whether there are this many; see ``leave_out``"""
        self._n_parts, self._n_done = n_parts, 0
        number = f"{'at most ' if at_most else ''}{n_parts} part{'' if n_parts == 1 else 's'}"
        record = {
            "kind": "start",
            "reproduction": self.name,
            "folder": str(self.folder),
            "parts": n_parts,
            "settings": to_dict(self.config),
            "environment": environment(),
            "message": f"reproduce {self.name}: {number}, in {self.folder}",
        }
        self.watcher.event(record)

    def leave_out(self, n_parts: int) -> None:
        """So many parts fewer will come than were begun with."""
        self._n_parts -= n_parts

    def part(self, name: str, compute: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
        """What ``compute()`` gives, JSON data; if an earlier run has it, from its file.

        Errors: CheckpointError for a file that is damaged or cannot be written.
        """
        path = self.folder / PARTS / f"{name}.json"
        if path.exists():
            return self._done(name, _read_part(path), found=True)
        try:
            record = measured(compute)
        finally:
            self.watcher.close()
        return self._done(name, record, found=False)

    def parts(self, jobs: Mapping[str, Job], n_workers: int | None = None) -> dict[str, dict[str, Any]]:
        """The results of several parts by name; those that no earlier run has are done by several processes,
        each with its share of the cores, or with ``n_workers=1`` here, one after the other. Each is kept when it is
        done. None: as the settings say, 1 where they say nothing.

        Errors: as :func:`run_jobs`; ConfigError for fewer than one process.
        """
        n_workers = getattr(self.config, "workers", 1) if n_workers is None else n_workers
        if n_workers < 1:
            raise ConfigError(f"n_workers={n_workers} is too few; use at least 1")
        missing = {name: job for name, job in jobs.items() if n_workers > 1 and not self.is_done(name)}
        results = {name: self._here(name, job) for name, job in jobs.items() if name not in missing}

        def finished(name: str, record: dict[str, Any]) -> None:
            results[name] = self._done(name, record, found=False)

        if missing:
            try:
                run_jobs(
                    {part: Job(measure, (job,)) for part, job in missing.items()}, n_workers, self._heard, finished
                )
            finally:
                self.watcher.close()
        return {name: results[name] for name in jobs}

    def _heard(self, part: str, message: Mapping[str, Any]) -> None:
        if message["kind"] == "progress":
            self.watcher.progress(part, message["fraction"], message["shown"])
        else:
            self.watcher.event_within(part, message["record"], message["line"])

    def _here(self, name: str, job: Job) -> dict[str, Any]:
        return self.part(name, lambda: job.function(*job.arguments, PartReporter(self.watcher, name)))

    def _done(self, name: str, record: dict[str, Any], found: bool) -> dict[str, Any]:
        """Keeps a part that was not found done, counts it, and gives its result."""
        if not found:
            record = {**record, "result": finite(record["result"])}
            write_json(self.folder / PARTS / f"{name}.json", record)
        if record["environment"] not in self.environments:
            self.environments.append(record["environment"])
        self.seconds += record["seconds"]
        known = self.cpu_seconds is not None and "cpu_seconds" in record  # folders of older versions have none
        self.cpu_seconds = self.cpu_seconds + record["cpu_seconds"] if known else None
        self._n_done += 1
        told = {"done": self._n_done, "of": self._n_parts, "seconds": record["seconds"], "found": found}
        self.watcher.event({"kind": "part", "part": name, **told})
        result: dict[str, Any] = record["result"]
        return result

    def is_done(self, name: str) -> bool:
        """Whether an earlier run has done this part."""
        return (self.folder / PARTS / f"{name}.json").exists()


def measure(job: Job, reporter: Reporter) -> dict[str, Any]:
    """A part in another process, with its machine and its seconds."""
    return measured(lambda: job.function(*job.arguments, reporter))


def job_for_each_length(measured: Callable[..., dict[str, Any]], config: Any) -> dict[str, Job]:
    """``measured(config, length, batch)`` at each of the config's lengths, with the batch that goes with it."""
    sizes = zip(config.lengths, config.batches)
    return {f"length-{length}": Job(measured, (config, length, batch)) for length, batch in sizes}


def open_work(folder: Path | str, name: str, config: Any, watcher: Watcher | None = None) -> Work:
    """A new folder, or one that holds the same claim with the same settings, which is continued.

    Those in ``HOW`` may be others, and so may the data's folder; one that the folder does not know, since it is older,
    had what the field's metadata say under ``BEFORE``, or its default.
    If nothing is done yet, as after a refused setting, it begins again with other settings.

    Errors: CheckpointError for a folder that holds something else; ConfigError naming the settings that differ.
    """
    path = Path(folder)
    if path.exists() and not path.is_dir():
        raise CheckpointError(f"{path} is a file; expected a folder for the reproduction")
    file = path / SETTINGS_FILE
    if file.exists():
        before = _read_json(file)
        try:
            _require_same(before, name, config, path)
        except ConfigError:  # other settings, or another claim
            if before.get("reproduction") != name or not _is_unused(path):
                raise
            file.unlink()
    elif path.exists():
        foreign = sorted(entry.name for entry in path.iterdir() if not HIDDEN_NAME.fullmatch(entry.name))
        if foreign:
            raise CheckpointError(
                f"{path} is not empty and holds no reproduction (there is {foreign[0]!r}); give another folder"
            )
    (path / PARTS).mkdir(parents=True, exist_ok=True)
    for place in (path, path / PARTS):
        remove_hidden(place)
    if not file.exists():
        write_json(file, {"reproduction": name, "statewise_version": __version__, "settings": to_dict(config)})
    return Work(path, name, config, Watcher() if watcher is None else watcher)


def _is_unused(path: Path) -> bool:
    """Whether nothing was made in the folder but its settings and an empty folder of parts."""
    entries = {e.name for place in (path, path / PARTS) if place.is_dir() for e in place.iterdir()}
    return all(name in (SETTINGS_FILE, PARTS) or HIDDEN_NAME.fullmatch(name) for name in entries)


def _defaults(config: Config) -> dict[str, Any]:
    """The defaults of the settings that have one: what they were in a folder that does not have them."""
    before = {field.name: field.metadata.get(BEFORE, field.default) for field in fields(config)}
    kinds = schema(type(config))
    return {name: kinds[name].write(value, name) for name, value in before.items() if value is not MISSING}


def _require_same(before: Any, name: str, config: Any, path: Path) -> None:
    if not isinstance(before, dict) or not isinstance(before.get("settings"), dict):
        raise CheckpointError(f"{path / SETTINGS_FILE} was not written by a reproduction; give another folder")
    if before.get("reproduction") != name:
        raise ConfigError(
            f"{path} has the reproduction {before.get('reproduction')!r}, not {name!r}; give another folder"
        )
    old, settings = _defaults(config) | before["settings"], to_dict(config)
    if old.get(WHERE) is not None and settings.get(WHERE) is not None:
        old[WHERE] = settings[WHERE]
    differing = [key for key in sorted((old.keys() | settings.keys()) - HOW) if old.get(key) != settings.get(key)]
    if differing:
        first = differing[0]
        raise ConfigError(
            f"{path} was begun with another {', '.join(differing)} ({first} was {old.get(first)!r}, now "
            f"{settings.get(first)!r}); continue with its settings, or give another folder"
        )


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}; give another folder") from None


def _read_part(path: Path) -> dict[str, Any]:
    record = _read_json(path)
    if not isinstance(record, dict) or not {"environment", "seconds", "result"} <= record.keys():
        raise CheckpointError(f"{path} is damaged; delete it to measure this part again")
    return record
