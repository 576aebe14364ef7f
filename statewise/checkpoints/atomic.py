"""Folders and files that appear under their name complete, or not at all.

They are written under a hidden name beside the target, synced to the disk, and renamed. Where a folder replaces
another, there are two renames, since no portable call swaps two folders; a process that dies leaves one of these:

    while writing        target as it was    .target.writing-*  (unfinished)
    between the renames  no target           .target.replaced-* (the old one, complete)    .target.writing-*
    after them           target, the new     .target.replaced-* (the old one)

so that at every moment one complete folder is there: :func:`locate` finds it, also in the second case. What a dead
process left is removed by the next write to the same target from the same machine, and by :func:`remove_hidden`.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import platform
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from statewise.errors import CheckpointError
from statewise.files import disk

NO_SPACE = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
HIDDEN_NAME = re.compile(
    r"\.(?P<target>.+)\.(?P<role>writing|replaced|removed)-((?P<machine>[0-9a-f]{8})-)?(?P<process>[0-9]+)-[0-9a-f]{8}"
)
# On a disk that several share, the number of a process says nothing of another machine's
MACHINE = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
# Writers that replace the same folder at once take turns; each turn lets one of them through.
MAX_TURNS = 1000


@contextlib.contextmanager
def write_folder(target: Path, n_bytes: int, may_replace: Callable[[Path], None]) -> Iterator[Path]:
    """Yields a folder to fill; at the end of the ``with`` it takes the name ``target``.

    If there is something at ``target``, ``may_replace(target)`` is called, which raises if it may not be replaced.

    Errors:  CheckpointError if it cannot be written, naming ``n_bytes`` and the free bytes if the disk is full. After
             an error of any kind the hidden folder is gone, and what was there before is as it was.
    """
    folder = hidden_name(target, "writing")
    with _errors_of(target, n_bytes):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            yield folder
            disk.sync_tree(folder)
            _put_in_place(folder, target, may_replace)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    _confirm(target)


def write_file(
    target: Path, n_bytes: int, write: Callable[[Path], None], may_replace: Callable[[Path], None] | None = None
) -> None:
    """``write(path)`` writes a file, which then takes the name ``target`` and replaces a file that has it.

    may_replace: is called before a file would be replaced, as by :func:`write_folder`; None: it may be
    Errors:  as :func:`write_folder`.
    """
    folder = hidden_name(target, "writing")  # a folder, since writers may have temporary files of their own
    with _errors_of(target, n_bytes):
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            folder.mkdir()
            write(folder / target.name)
            disk.sync(folder / target.name)
            if may_replace is None:
                os.replace(folder / target.name, target)
            elif not take_free_name(folder / target.name, target):
                may_replace(target)
                os.replace(folder / target.name, target)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    _confirm(target)


def take_free_name(file: Path, target: Path) -> bool:
    """Gives a file the name ``target`` unless something has it; whether it did."""
    try:
        os.link(file, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if os.path.lexists(target):
            return False
        os.replace(file, target)
        return True
    os.unlink(file)
    return True


def require_place(target: Path) -> None:
    """CheckpointError if :func:`write_file` could not make the file: told before the work whose result it holds."""
    place = next(folder for folder in target.absolute().parents if os.path.exists(folder))  # further ones are made
    if not place.is_dir():
        raise CheckpointError(f"cannot write {target}: {place} is not a folder; give another name")
    if not os.access(place, os.W_OK | os.X_OK):
        raise CheckpointError(f"cannot write {target}: you may not write into {place}; give another name")


def remove_folder(target: Path) -> None:
    """Deletes a folder; it is gone at once, and never half there under its own name."""
    hidden = hidden_name(target, "removed")
    os.rename(target, hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def locate(target: Path) -> Path:
    """Where the folder is: ``target``, or its old version if a writer stopped between its two renames."""
    if target.exists():
        return target
    replaced = [path for path, role, _ in _hidden_beside(Path(os.path.realpath(target))) if role == "replaced"]
    return max(replaced, key=_changed, default=target)


def remove_hidden(parent: Path) -> list[Path]:
    """Deletes what unfinished writes left in ``parent``, and puts back what was about to be replaced.

    For the owner of a folder: no other process may be writing there.
    """
    removed = []
    for path, role, target in _hidden_in(parent):
        if role == "replaced" and not os.path.lexists(target):
            os.rename(path, target)
        else:
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return removed


def require_free(target: Path, may_replace: Callable[[Path], None]) -> None:
    """Nothing if there is nothing at ``target``, or an empty folder; else what ``may_replace(target)`` raises."""
    for _ in range(MAX_TURNS):
        there = locate(target)
        if not os.path.lexists(there) or _is_empty_folder(there):
            return
        before = identity(there)
        try:
            return may_replace(there)
        except (CheckpointError, OSError) as error:
            if identity(locate(target)) != before:
                continue  # a writer moved it while it was looked at
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(f"cannot save {target}: {error.strerror or error}") from error
    raise _too_busy(target)


def identity(path: Path) -> tuple[int, int, int] | None:
    """Equal as long as it is the same folder, untouched; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def hidden_name(target: Path, role: str) -> Path:
    """A name beside ``target`` that nobody else has and that tells whose process it is."""
    return target.with_name(f".{target.name}.{role}-{MACHINE}-{os.getpid()}-{secrets.token_hex(4)}")


@contextlib.contextmanager
def _errors_of(target: Path, n_bytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno not in NO_SPACE:
            raise CheckpointError(f"cannot save {target}: {reason}; nothing was changed") from error
        parent = next(path for path in target.parents if path.exists())
        free = shutil.disk_usage(parent).free
        raise CheckpointError(
            f"cannot save {target}: {reason}; it needs {n_bytes:,} bytes and {free:,} are free there. "
            "Nothing was changed; make room, or save elsewhere"
        ) from error


def _confirm(target: Path) -> None:
    """The last steps, when the target has its name already."""
    try:
        disk.sync(target.parent)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CheckpointError(f"{target} is written, but may not outlive a power failure: {reason}") from error
    _remove_what_the_dead_left(target)


def _put_in_place(folder: Path, target: Path, may_replace: Callable[[Path], None]) -> None:
    for _ in range(MAX_TURNS):
        old = None
        require_free(target, may_replace)
        if os.path.lexists(target) and not _is_empty_folder(target):
            old = hidden_name(target, "replaced")
            try:
                os.rename(target, old)
            except FileNotFoundError:  # another writer has just moved it aside
                continue
        try:
            os.rename(folder, target)  # onto nothing, or onto an empty folder
        except OSError as error:
            taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST)  # another writer was faster: take another turn
            if old is not None and not taken:
                os.rename(old, target)
            elif old is not None:
                shutil.rmtree(old, ignore_errors=True)
            if not taken:
                raise
            continue
        if old is not None:
            shutil.rmtree(old, ignore_errors=True)
        return
    raise _too_busy(target)


def _too_busy(target: Path) -> CheckpointError:
    return CheckpointError(f"cannot save {target}: other processes keep writing it; give each its own folder")


def _is_empty_folder(path: Path) -> bool:
    try:
        return not any(path.iterdir())
    except FileNotFoundError:  # it was there a moment ago, so somebody moved it aside
        return True
    except NotADirectoryError:
        return False


def _hidden_in(parent: Path) -> Iterator[tuple[Path, str, Path]]:
    """(path, role, target) of every hidden name of ours."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in sorted(parent.iterdir()):
            if match := HIDDEN_NAME.fullmatch(path.name):
                yield path, match["role"], parent / match["target"]


def _hidden_beside(target: Path) -> list[tuple[Path, str, int | None]]:
    """(path, role, process) of the hidden names that belong to this target; no number for another machine's."""
    found = []
    for path, role, other in _hidden_in(target.parent):
        if other == target and (match := HIDDEN_NAME.fullmatch(path.name)):
            here = match["machine"] in (None, MACHINE)
            found.append((path, role, int(match["process"]) if here else None))
    return found


def _remove_what_the_dead_left(target: Path) -> None:
    for path, _, process in _hidden_beside(target):
        if process is not None and not _is_alive(process):
            shutil.rmtree(path, ignore_errors=True)


def _is_alive(process: int) -> bool:
    if sys.platform == "win32":  # where signal 0 is not a question but Ctrl-C
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def _changed(path: Path) -> int:
    try:
        return path.stat().st_ctime_ns
    except FileNotFoundError:
        return -1
