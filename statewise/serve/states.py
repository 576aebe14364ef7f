"""States that are kept: by the tokens that were read, to read no prompt twice, and by the names that clients give."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import blake2b

import numpy as np
from torch import Tensor
from torch.utils._pytree import tree_leaves

from statewise.errors import CheckpointError
from statewise.generation import Reading
from statewise.serve.disk import StateFolder
from statewise.serve.errors import RequestError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
log = logging.getLogger("statewise.serve")
MOST_PROMPTS = 256  # whose tokens are remembered, to find what several begin with


@dataclass(frozen=True)
class Kept:
    """What a model knows after these tokens.

    ids:     (n,) int32
    reading: None where it is on disk alone
    created: seconds since 1970
    """

    ids: np.ndarray
    reading: Reading | None
    created: float = field(default_factory=time.time)

    @cached_property
    def key(self) -> str:
        return key_of(self.ids)

    @property
    def n_bytes(self) -> int:
        return self.ids.nbytes + (0 if self.reading is None else bytes_of(self.reading))


def bytes_of(reading: Reading) -> int:
    """Memory of its tensors."""
    leaves: list[Tensor] = tree_leaves(reading)
    return sum(leaf.numel() * leaf.element_size() for leaf in leaves)


def key_of(ids: np.ndarray) -> str:
    """The name of a row of tokens.

    >>> key_of(np.array([1, 2])) == key_of(np.array([1, 2], np.int32)) != key_of(np.array([1, 3]))
    True
    """
    return blake2b(ids.astype("<i4").tobytes(), digest_size=16).hexdigest()


def prefix_keys(ids: np.ndarray, lengths: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The names of the row's beginnings of these rising lengths, in one pass."""
    digest, done = blake2b(digest_size=16), 0
    data = ids.astype("<i4")
    for length in lengths:
        digest.update(data[done:length].tobytes())
        done = length
        yield length, digest.copy().hexdigest()


class States:
    """States by their tokens, in memory up to ``n_bytes``, the longest unused ones dropped first; on disk too, if there
    is a folder. And states by name, which stay until somebody deletes them: in the folder, or without one in memory.

    Several threads may use it.
    """

    def __init__(self, n_bytes: int, *, most_saved: int, folder: StateFolder | None = None) -> None:
        self.limit, self.most_saved, self.folder = n_bytes, most_saved, folder
        self.n_bytes = 0
        self.hits = self.misses = self.dropped = 0
        self._recent: OrderedDict[str, Kept] = OrderedDict()
        self._saved: dict[str, Kept] = {}
        self._prompts: OrderedDict[str, np.ndarray] = OrderedDict()
        self._lock = threading.RLock()
        self._naming = threading.RLock()  # one name is given after the other, as a disk takes its time
        if folder is not None:
            self._saved = {name: Kept(ids, None, created) for name, (ids, created) in folder.saved().items()}

    def __len__(self) -> int:
        return len(self._recent)

    # -- by tokens ----------------------------------------------------------------------------------------------------

    def keep(self, ids: np.ndarray, reading: Reading, *, on_disk: bool = True) -> None:
        """In memory at once, on disk soon. A state of more than half of the memory is not kept there."""
        ids = ids.astype(np.int32)
        kept = Kept(ids, reading)
        key = kept.key
        with self._lock:
            self._drop(key)
            if 2 * kept.n_bytes <= self.limit:
                self._recent[key] = kept
                self.n_bytes += kept.n_bytes
            while self.n_bytes > self.limit:
                self._drop(next(iter(self._recent)))
                self.dropped += 1
        if on_disk and self.folder is not None:
            self.folder.write_soon(key, ids, reading)

    def longest(self, ids: np.ndarray) -> tuple[int, Reading | None]:
        """How many of these tokens have been read before, at the most, and the Reading after them."""
        with self._lock:
            on_disk = {} if self.folder is None else self.folder.lengths()
            named = {kept.key: name for name, kept in self._saved.items() if len(kept.ids) <= len(ids)}
            there = {key: len(kept.ids) for key, kept in self._recent.items()}
            there |= on_disk | {key: len(self._saved[name].ids) for key, name in named.items()}
            lengths = sorted({n for n in there.values() if 0 < n <= len(ids)})
            found = [(n, key) for n, key in prefix_keys(ids, lengths) if there.get(key) == n]
        for n, key in reversed(found):
            reading = self._of_key(key, named.get(key), ids[:n])
            if reading is not None:
                self.hits += 1
                return n, reading
        self.misses += 1
        return 0, None

    def shared(self, ids: np.ndarray, *, least: int) -> int | None:
        """Where this prompt parts from the one among the last prompts that it agrees with longest: the state there is
        worth keeping, as others may begin so too. None if they part within ``least`` tokens, or not at all."""
        with self._lock:
            others = list(self._prompts.values())
            self._prompts[key_of(ids)] = ids
            while len(self._prompts) > MOST_PROMPTS or sum(map(len, self._prompts.values())) > 1 << 22:
                self._prompts.popitem(last=False)
        best = max((agreeing(ids, other) for other in others), default=0)
        return best if least <= best < len(ids) else None

    def _of_key(self, key: str, name: str | None, ids: np.ndarray) -> Reading | None:
        with self._lock:
            if key in self._recent:
                self._recent.move_to_end(key)
                return self._recent[key].reading
            if name in self._saved and self._saved[name].reading is not None:
                return self._saved[name].reading
        assert self.folder is not None
        reading = self.folder.read(key, ids) if name is None else self._load(name)
        if reading is not None:
            self.keep(ids, reading, on_disk=False)
        return reading

    def _drop(self, key: str) -> None:
        if key in self._recent:
            self.n_bytes -= self._recent.pop(key).n_bytes

    # -- by name ------------------------------------------------------------------------------------------------------

    def names(self) -> dict[str, Kept]:
        with self._lock:
            return dict(self._saved)

    def reserve(self, name: str, field: str = "id") -> None:
        """field: which holds the name     Errors: RequestError if this name cannot be given, or is taken."""
        if not NAME.fullmatch(name):
            raise RequestError(
                f"{name[:80]!r} is not a name for a state; use 1 to 64 letters, digits, '.', '-' and '_'", param=field
            )
        with self._lock:
            if name in self._saved:
                raise RequestError(
                    f"there is a state {name!r} already; delete it, or give another name", status=409, param=field
                )
            if self.folder is not None and self.folder.has(name):
                raise RequestError(
                    f"a file has the name of a state {name!r}, and it is not one; give another",
                    status=409,
                    param=field,
                )
            if len(self._saved) >= self.most_saved:
                raise RequestError(f"{self.most_saved} states are saved, which is the limit; delete some", status=409)

    def save(self, name: str, ids: np.ndarray, reading: Reading, field: str = "id") -> Kept:
        """When it returns, the state is on the disk, if there is a folder.

        Errors:  RequestError as :meth:`reserve`; 507 if the disk does not take it; without a folder if saved states
                 would need more memory than the others may.
        """
        kept = Kept(ids.astype(np.int32), reading)
        with self._naming:
            self.reserve(name, field)
            held = sum(other.n_bytes for other in self.names().values() if other.reading is not None)
            if self.folder is None and held + kept.n_bytes > self.limit:
                raise RequestError(
                    f"saved states may take {self.limit:,} bytes of memory; delete some, or start the server with "
                    "--state-folder",
                    status=409,
                )
            if self.folder is not None:
                with _told_in_the_log():
                    self.folder.save(name, kept.ids, reading)
                self.keep(kept.ids, reading, on_disk=False)
                kept = replace(kept, reading=None)
            with self._lock:
                self._saved[name] = kept
        return kept

    def saved(self, name: str) -> tuple[np.ndarray, Reading]:
        """Errors: RequestError if there is none of that name, or its file is damaged."""
        kept = self.about(name)
        reading = self._of_key(kept.key, name, kept.ids) if kept.reading is None else kept.reading
        if reading is None:
            raise RequestError(f"the file of the state {name!r} is damaged or gone; delete it", status=409)
        return kept.ids, reading

    def about(self, name: str) -> Kept:
        with self._lock:
            if name not in self._saved:
                raise RequestError(f"there is no state {name[:80]!r}; GET /v1/states lists them", status=404)
            return self._saved[name]

    def branch(self, name: str, other: str) -> Kept:
        """The same state under another name: the two are continued apart, since a state never changes."""
        with self._naming:
            kept = replace(self.about(name), created=time.time())
            self.reserve(other)
            if self.folder is not None:
                with _told_in_the_log():
                    self.folder.link(name, other)
            with self._lock:
                self._saved[other] = kept
        return kept

    def delete(self, name: str) -> None:
        """The name, and with the last name of it the state."""
        with self._naming:
            key = self.about(name).key
            if self.folder is not None:
                self.folder.delete(name)
            with self._lock:
                self._saved.pop(name, None)
                last = all(kept.key != key for kept in self._saved.values())
                if last:
                    self._drop(key)
        if last and self.folder is not None:
            self.folder.forget(key)

    def _load(self, name: str) -> Reading | None:
        assert self.folder is not None
        try:
            return self.folder.load(name)
        except CheckpointError as error:
            log.warning("the saved state %s is not used: %s", name, error)
            return None


def why_not_saved(states: States, name: str, ids: np.ndarray, reading: Reading) -> RequestError | None:
    """Saves it; what :meth:`States.save` refused, if it did."""
    try:
        states.save(name, ids, reading, field="save_state")
    except RequestError as error:
        return error
    except Exception:
        log.exception("state not saved")
        return RequestError("the state could not be saved; the server's log has the reason", status=500)
    return None


@contextmanager
def _told_in_the_log() -> Iterator[None]:
    """What a disk refuses is not the client's fault, and the paths of the server are none of its business."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        log.warning("state not saved: %s", error)
        raise RequestError(
            "the server's disk did not take the state; the server's log has the reason", status=507, code="disk_failed"
        ) from error


def agreeing(one: np.ndarray, other: np.ndarray) -> int:
    """How many tokens two rows have in common at their beginning."""
    n = min(len(one), len(other))
    differ = np.flatnonzero(one[:n] != other[:n])
    return int(differ[0]) if len(differ) else n
