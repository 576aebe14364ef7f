"""States on disk: files that are whole or not there, so that they outlive a server that is killed.

    FOLDER/WEIGHTS/saved/NAME.safetensors          states that clients named
    FOLDER/WEIGHTS/prefixes/LENGTH-KEY.safetensors  those of prompts and conversations, the longest unused deleted first

WEIGHTS is the beginning of the digest of the model's weights, and how they are decoded: each model has its own states.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import threading
from pathlib import Path
from typing import IO

import numpy as np

from statewise.checkpoints.atomic import hidden_name, remove_hidden, write_file
from statewise.checkpoints.states import weights_digest
from statewise.checkpoints.tensor_files import read_metadata
from statewise.errors import CheckpointError, ConfigError, StatewiseError
from statewise.generation import Reading
from statewise.generation.reading_file import load_noted, save_reading
from statewise.models.language_model import LanguageModel
from statewise.serve.worker import Worker

IDS = "ids"  # the note with the tokens
FILE = re.compile(r"(?P<length>[0-9]{1,10})-(?P<key>[0-9a-f]{32})\.safetensors")
MOST_WAITING = 16  # states to be written; more are not kept on disk
log = logging.getLogger("statewise.serve")


class StateFolder:
    """The states of one model in a folder, for one server at a time.

    n_bytes:    of the states without a name
    precision:  of the decoder's weights: those of int8 read other states than those of float32
    Errors:     ConfigError if another server uses the folder, or it cannot be made.
    """

    def __init__(self, folder: Path, model: LanguageModel, *, n_bytes: int, precision: str = "float32") -> None:
        self.model, self.limit = model, n_bytes
        self.weights = weights_digest(model)
        self.path = folder / f"{self.weights[:16]}-{precision}"
        self._prefixes, self._saved = self.path / "prefixes", self.path / "saved"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700, exist_ok=True)  # what people wrote is in there
            for inner in (self._prefixes, self._saved):
                inner.mkdir(exist_ok=True)
            self._lock_file = _locked(self.path / ".lock")
            for inner in (self._prefixes, self._saved):
                remove_hidden(inner)  # what a server that was killed had begun
        except OSError as error:
            raise ConfigError(f"--state-folder {folder}: {error.strerror or error}; give another folder") from error
        self._lock = threading.Lock()
        self._sizes: dict[str, tuple[int, int]] = {}  # key: (tokens, bytes), the longest unused first
        for path in sorted(self._prefixes.iterdir(), key=lambda path: path.stat().st_mtime_ns):
            if found := FILE.fullmatch(path.name):
                self._sizes[found["key"]] = (int(found["length"]), path.stat().st_size)
        self._writer = Worker("states")

    @property
    def n_bytes(self) -> int:
        return sum(size for _, size in list(self._sizes.values()))

    def close(self) -> None:
        """Writes what waits, and lets others have the folder."""
        self._writer.close()
        self._lock_file.close()

    # -- by tokens ----------------------------------------------------------------------------------------------------

    def lengths(self) -> dict[str, int]:
        """How many tokens each state is after, by its key."""
        with self._lock:
            return {key: length for key, (length, _) in self._sizes.items()}

    def write_soon(self, key: str, ids: np.ndarray, reading: Reading) -> None:
        """In a thread of its own. While many wait, it is not written: it can be read again."""
        if key not in self._sizes and self._writer.n_waiting < MOST_WAITING:
            self._writer.call(lambda: self._write(key, ids, reading))

    def read(self, key: str, ids: np.ndarray) -> Reading | None:
        """None if the file is gone or damaged; it is deleted then."""
        with self._lock:
            if key not in self._sizes:
                return None
            self._sizes[key] = self._sizes.pop(key)  # the last to be deleted
        path = self._file(key, len(ids))
        try:
            reading, found = self._load(path)
            if not np.array_equal(found, ids):
                raise CheckpointError(f"{path} has other tokens than its name says")
        except CheckpointError as error:
            log.warning("state not used: %s", error)
            self.forget(key)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return reading

    def _write(self, key: str, ids: np.ndarray, reading: Reading) -> None:
        path = self._file(key, len(ids))
        try:
            self._store(path, ids, reading)
            size = path.stat().st_size
        except (StatewiseError, OSError) as error:
            log.warning("state not kept on disk: %s", error)
            return
        with self._lock:
            self._sizes[key] = (len(ids), size)
            old = list(self._sizes)
        while self.n_bytes > self.limit and old:
            self.forget(old.pop(0))

    def forget(self, key: str) -> None:
        """Deletes the state, if it is there."""
        with self._lock:
            length, _ = self._sizes.pop(key, (None, 0))
        if length is not None:
            with contextlib.suppress(OSError):
                os.unlink(self._file(key, length))

    def _file(self, key: str, length: int) -> Path:
        return self._prefixes / f"{length}-{key}.safetensors"

    # -- by name ------------------------------------------------------------------------------------------------------

    def saved(self) -> dict[str, tuple[np.ndarray, float]]:
        """The tokens of each saved state, and when it was saved. Files of others are left alone."""
        found = {}
        for path in sorted(self._saved.glob("*.safetensors")):
            try:
                found[path.stem] = (_ids(read_metadata(path)["note." + IDS]), path.stat().st_mtime)
            except (OSError, ValueError, KeyError, StatewiseError) as error:
                log.warning("%s is not a state of this server: %s", path, error)
        return found

    def save(self, name: str, ids: np.ndarray, reading: Reading) -> None:
        self._store(self._named(name), ids, reading)

    def has(self, name: str) -> bool:
        """Whether there is a file of this name, whatever it holds."""
        return os.path.lexists(self._named(name))

    def load(self, name: str) -> Reading:
        """Errors: CheckpointError if the file is damaged."""
        return self._load(self._named(name))[0]

    def link(self, name: str, other: str) -> None:
        """The same file under another name, or a copy where the disk has no links."""
        source, target = self._named(name), self._named(other)

        def write(aside: Path) -> None:
            try:
                os.link(source, aside)
            except OSError:
                aside.write_bytes(source.read_bytes())

        write_file(target, source.stat().st_size, write)

    def delete(self, name: str) -> None:
        path = self._named(name)
        hidden = hidden_name(path, "removed")
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, hidden)
            os.unlink(hidden)

    def _named(self, name: str) -> Path:
        return self._saved / f"{name}.safetensors"

    # -- files --------------------------------------------------------------------------------------------------------

    def _store(self, path: Path, ids: np.ndarray, reading: Reading) -> None:
        notes = {IDS: json.dumps(ids.tolist(), separators=(",", ":"))}
        save_reading(reading, path, model=self.model, notes=notes, weights=self.weights)

    def _load(self, path: Path) -> tuple[Reading, np.ndarray]:
        reading, notes = load_noted(path, model=self.model, weights=self.weights)
        if IDS not in notes or len(reading.logits) != 1:
            raise CheckpointError(f"{path} is not a state of this server")
        try:
            return reading, _ids(notes[IDS])
        except ValueError as error:
            raise CheckpointError(f"{path} is damaged: {error}") from error


def _ids(text: str) -> np.ndarray:
    found = json.loads(text)
    if not isinstance(found, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in found):
        raise ValueError("it does not say which tokens were read")
    return np.array(found, np.int32)


def _locked(path: Path) -> IO[bytes]:
    """An advisory lock, which the system lets go of when the process ends, however it ends."""
    file = open(path, "ab")  # noqa: SIM115 (held as long as the server)
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except ImportError:  # Windows: nothing tells two servers apart there
        pass
    except OSError as error:
        file.close()
        raise ConfigError(f"another server uses the states in {path.parent}; give each a --state-folder") from error
    return file
