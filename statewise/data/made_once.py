"""Folders of the cache that are made once: written aside, renamed into place, and made again if they are not whole."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from statewise.errors import DataError
from statewise.files.disk import sync, sync_tree

ABANDONED_SECONDS = 3600  # a build that wrote nothing for so long has died
ATTEMPTS = 5

Made = TypeVar("Made")


def cache_folder() -> Path:
    """``$STATEWISE_CACHE``, else ``$XDG_CACHE_HOME/statewise``, else ``~/.cache/statewise``. Safe to delete."""
    if chosen := os.environ.get("STATEWISE_CACHE"):
        return Path(chosen).expanduser().absolute()
    if base := os.environ.get("XDG_CACHE_HOME"):
        return Path(base, "statewise").absolute()
    try:
        return Path.home() / ".cache" / "statewise"
    except RuntimeError as error:
        raise DataError("there is no home folder for the token cache; set STATEWISE_CACHE to a folder") from error


def made_once(
    final: Path,
    *,
    load: Callable[[Path], Made | None],
    build: Callable[[Path], None],
    noun: str,
    remedy: str = "set STATEWISE_CACHE",
) -> Made:
    """What ``load`` gives for the folder ``final``; ``build`` writes it first, in an empty folder, if load gives None.

    The build lies in a hidden folder beside the final one until it is renamed into place. A process that is killed
    leaves the hidden folder, which nobody reads and a later build removes; two at once build twice and one wins. No
    other hidden folders may lie beside it. ``noun`` ("token cache") and ``remedy`` are for the messages.

    Errors:  DataError if it cannot be written, or does not keep what is written to it.
    """
    root = final.parent
    temporary: Path | None = None
    try:
        for _ in range(ATTEMPTS):
            if (made := load(final)) is not None:
                return made
            try:
                if temporary is None:
                    temporary = _make_temporary(root, final.name)
                    build(temporary)
                    sync_tree(temporary)
                if _publish(temporary, final, load):
                    temporary = None
            except OSError as error:
                raise DataError(
                    f"cannot write the {noun} in {root}: {error.strerror or error}; "
                    f"{remedy} to a folder with room that you may write to"
                ) from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
    raise DataError(
        f"the {noun} in {root} does not keep what is written to it: {final.name} was damaged {ATTEMPTS} times "
        f"over; {remedy} to a folder on another disk"
    )


def _make_temporary(root: Path, name: str) -> Path:
    """A new hidden folder beside the final one; those of builds that have died are removed."""
    root.mkdir(parents=True, exist_ok=True)
    for old in root.glob(".*"):
        try:
            latest = max(path.stat().st_mtime for path in [old, *old.iterdir()])
        except OSError:  # its owner has just renamed or removed it
            continue
        if time.time() - latest > ABANDONED_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
    temporary = root / f".{name}.{os.getpid()}.{secrets.token_hex(4)}"
    temporary.mkdir()
    return temporary


def _publish(temporary: Path, final: Path, load: Callable[[Path], Made | None]) -> bool:
    """Rename the finished folder into place; False if another process was first, or if what was there is damaged.

    A damaged folder is moved aside under a hidden name, so that the next attempt finds the place free. Processes that
    have it mapped keep their pages.
    """
    try:
        os.rename(temporary, final)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise
        if load(final) is None:
            aside = temporary.with_name(f"{temporary.name}.damaged")
            try:
                os.rename(final, aside)
            except FileNotFoundError:  # another process has moved it
                return False
            if aside.is_dir():
                shutil.rmtree(aside, ignore_errors=True)
            else:
                aside.unlink(missing_ok=True)
        return False
    sync(final.parent)
    return True
