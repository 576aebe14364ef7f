"""FASTA: sequences of letters, each below a line that begins with ">" and names it. Each sequence is a document."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

from statewise.data.bases import BASES
from statewise.data.shelves import WholeShelf
from statewise.data.sources import Source, unpacked
from statewise.data.stored_documents import Entry, StoredDocuments
from statewise.errors import DataError, excerpt
from statewise.files.opening import unfolded
from statewise.files.records import Told

ENDINGS = (".fasta", ".fas", ".fa", ".fna", ".ffn", ".frn", ".faa")
LETTERS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz*-."
BUFFER = 1 << 20
BOM = b"\xef\xbb\xbf"  # which some editors put before a text


def is_fasta(name: Path, head: bytes) -> bool:
    """Whether a file is FASTA: by its ending, without that of what it is compressed by, and its first letter.

    >>> is_fasta(Path("genome.fna"), b">chromosome"), is_fasta(Path("letter.txt"), b"> a quotation")
    (True, False)
    """
    return unpacked(name).suffix.lower() in ENDINGS and head.removeprefix(BOM).lstrip()[:1] in (b">", b";")


class FastaShelf(WholeShelf):
    """The sequences of a file, in their order: their letters as they are, small and capital, without the line ends.

    Cost:    a pass over the file; memory for a megabyte of it.
    Errors:  DataError for letters before the first ">", and for a line with something else than letters, "*", "-" and
             ".".
    """

    @property
    def identity(self) -> list[object]:
        return [*super().identity, "fasta"]

    def entries(self, told: Told | None) -> Iterator[Entry]:
        number = 0
        with unfolded(self.document.path, told=told) as file:
            lines = _Lines(file, self.document.path)
            while lines.at_header():
                number += 1
                yield Entry(number, lines.sequence())

    def place(self, number: int) -> str:
        return f"{self.document.path}, sequence {number}" if number else str(self.document.path)


class _Lines:
    """The lines of a file, the next of which is known."""

    def __init__(self, file: IO[bytes], path: Path) -> None:
        self._lines = iter(partial(file.readline, BUFFER), b"")  # a sequence may be one line
        self._path, self._number, self._whole = path, 0, True
        self._next = b""
        self._step()

    def _step(self) -> None:
        begins = self._whole
        while True:
            line = next(self._lines, b"")
            if not self._number:
                line = line.removeprefix(BOM)
            self._number += begins
            self._whole = line.endswith(b"\n")
            self._is_header = begins and line.startswith(b">")
            if self._is_header and b"\r" in line.rstrip(b"\r\n"):
                raise DataError(
                    f"{self._path}, line {self._number}: its lines end in \\r alone; write \\n in their place, as with "
                    "tr '\\r' '\\n'"
                )
            if not line or not (begins and line.startswith(b";")):  # which is an old kind of comment
                break
            while not self._whole and line:
                line = next(self._lines, b"")
                self._whole = line.endswith(b"\n")
        self._next = line

    def at_header(self) -> bool:
        """Whether there is another sequence, whose first line is next."""
        while self._next and not self._is_header:
            if self._next.strip():
                raise DataError(
                    f'{self._path}, line {self._number}: letters before the first ">"; expected FASTA, a line such as '
                    '">name" above each sequence. To learn the file as it is written, set data.as_text=true'
                )
            self._step()
        return bool(self._next)

    def sequence(self) -> Iterator[bytes]:
        """The letters below the header that is next, in pieces of about a megabyte."""
        while self._next and not self._whole:  # the rest of a long header
            self._step()
        self._step()
        found: list[bytes] = []
        size = 0
        while self._next and not self._is_header:
            letters = b"".join(self._next.split())
            if rest := letters.translate(None, LETTERS):
                raise DataError(
                    f"{self._path}, line {self._number}: {excerpt(rest[:1].decode('latin-1'))} is not a letter of a "
                    "sequence; repair the file, or set data.as_text=true to learn it as it is written"
                )
            found.append(letters)
            size += len(letters)
            if size >= BUFFER:
                yield b"".join(found)
                found, size = [], 0
            self._step()
        if found:
            yield b"".join(found)


def holds_bases(found: Source) -> bool | None:
    """Whether a source is of FASTA with bases; False: of other letters; None: it is not FASTA.

    Cost:    a look at the beginning of the first sequence.
    """
    documents = found.documents
    if not isinstance(documents, StoredDocuments) or not is_fasta(Path(documents.names[0]), b">"):
        return None
    first = documents[0]
    with open(first.path, "rb") as file:
        file.seek(first.begin)
        return not file.read(min(first.size, BUFFER)).upper().translate(None, BASES.encode())
