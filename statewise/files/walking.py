"""The files of a folder at any depth, links followed, each folder once."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from statewise.errors import DataError

HIDDEN = ("thumbs.db", "ehthumbs.db", "desktop.ini")  # on Windows, beside those that begin with a dot
ABOUT = re.compile(r"(readme|licen[cs]e|copying|notice|citation|authors|changelog)([-_. ].*)?", re.IGNORECASE)
OF_TEXT = ("", ".txt", ".md", ".rst", ".html", ".htm", ".pdf", ".rtf", ".bib", ".cff")


def is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name.lower() in HIDDEN


def is_about(path: Path) -> bool:
    """Whether a file has the name of a text about its folder: "README.md", "LICENSE".

    >>> is_about(Path("LICENSE-MIT")), is_about(Path("license_plate.png")), is_about(Path("readme.csv"))
    (True, False, False)
    """
    return path.suffix.lower() in OF_TEXT and ABOUT.fullmatch(path.name) is not None


def walk(root: Path) -> Iterator[Path]:
    """All files below ``root``; a hidden folder is given as it is, so that it can be counted, and not entered.

    Links to folders are followed, each folder once, so that a loop of links ends.

    Errors:  DataError for a folder that cannot be read.
    """
    entered: set[tuple[int, int]] = set()

    def fail(error: OSError) -> None:
        raise DataError(f"cannot read the folder {error.filename}: {error.strerror}") from error

    for folder, folders, names in os.walk(root, onerror=fail, followlinks=True):
        status = os.stat(folder)
        if (status.st_dev, status.st_ino) in entered:
            folders.clear()
            continue
        entered.add((status.st_dev, status.st_ino))
        folders.sort()  # which of two links to one folder gives it its name must not hang on the file system
        yield from (Path(folder, name) for name in sorted(names))
        yield from (Path(folder, name) for name in folders if name.startswith("."))
        folders[:] = [name for name in folders if not name.startswith(".")]
