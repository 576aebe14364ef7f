"""What a source of text is, and its documents: files of plain text, compressed text, records, data sets."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from statewise.data.base import absolute
from statewise.data.fasta import FastaShelf, is_fasta
from statewise.data.hugging_face import PREFIX, corpus_shelf, is_hugging_face
from statewise.data.progress import Progress
from statewise.data.shelves import WholeShelf, record_shelves, refuse_records
from statewise.data.sources import CORPORA, HEAD_BYTES, Source, find_documents, unpacked
from statewise.data.stored_documents import Shelf, store_documents
from statewise.errors import DataError
from statewise.files.opening import COMPRESSED
from statewise.files.sniffing import in_words, kind_within

NAMED = {
    ".jsonl": "json lines",
    ".ndjson": "json lines",
    ".csv": "table",
    ".tsv": "table",
    ".parquet": "parquet",
    ".pq": "parquet",
}


def find_text(
    source: str, text_field: str | None = None, *, as_text: bool = False, progress: Progress | None = None
) -> Source:
    """The documents of a source, see ``TextDataConfig``. Records and compressed texts are laid in the cache first.

    Errors:  DataError as ``find_documents`` and ``store_documents``; for records without the field that holds the text,
             and for plain text with one.
    """
    if is_hugging_face(source):
        shelf, note = corpus_shelf(source, text_field)
        return _stored(Source(f"{source}{note}", Path(source), ()), [shelf], progress)
    if text_field is not None:
        if source in CORPORA:
            raise DataError(f'"{source}" is plain text without fields; leave out data.text_field (--text-field)')
        found = find_documents(source, take=lambda path, head: True)
        return _stored(found, record_shelves(found.documents, text_field), progress)
    plain = source in CORPORA and source != "e-coli"
    return find_documents(source) if plain else _find_plain(source, as_text, progress)


def holds_records(source: str) -> bool:
    """Whether the first file of a source, or a data set, has its texts in fields.

    Errors:  DataError as ``find_documents``.
    """
    if is_hugging_face(source):
        return True
    if source in CORPORA:
        return False
    first = find_documents(source, take=lambda path, head: True).documents[0].path
    kind = kind_within(first)
    return kind in ("json lines", "parquet") or (kind == "table" and unpacked(first).suffix.lower() in NAMED)


def absolute_source(source: str) -> str:
    """The same source, found from any working directory. Names, such as "stdlib" and those of data sets, stay."""
    if source in CORPORA:
        return source
    if source.startswith(PREFIX):
        name, colon, config = source.removeprefix(PREFIX).partition(":")
        return f"{PREFIX}{absolute(name)}{colon}{config}" if Path(name).expanduser().is_dir() else source
    path = os.path.expanduser(source)
    if os.path.isabs(path):
        return path
    pattern = glob.has_magic(path) and not os.path.lexists(path)
    return str(Path(glob.escape(os.getcwd()) if pattern else os.getcwd(), path))


def _find_plain(source: str, as_text: bool, progress: Progress | None) -> Source:
    packed: set[Path] = set()
    fasta: set[Path] = set()
    parquet: list[Path] = []
    alone = Path(source).expanduser().is_file()

    def take(path: Path, head: bytes) -> bool:
        if head.startswith(tuple(COMPRESSED)):
            packed.add(path.absolute())
            return True
        if head.startswith(b"PAR1"):  # which is binary, and skipped beside text
            parquet.append(path)
        elif not as_text and is_fasta(path, head):
            fasta.add(path.absolute())
        elif not as_text:
            _refuse_records(path, head, alone)
        return False

    try:
        found = find_documents(source, take)
    except DataError as error:
        if not parquet:
            raise
        raise refuse_records(parquet[0], "parquet") from error
    if not packed and not fasta:
        return found
    shelves: list[Shelf] = []
    passed_over = dict(found.passed_over)
    for document in found.documents:
        shelf = WholeShelf(document)
        if document.path in packed:
            head = shelf.head()
            if b"\0" in head:
                if alone:
                    raise DataError(f"{source} holds {in_words(kind_within(document.path))}, compressed; expected text")
                passed_over["binary"] = passed_over.get("binary", 0) + 1
                continue
            if not as_text and is_fasta(document.path, head):
                fasta.add(document.path)
            elif not as_text:
                _refuse_records(document.path, head, alone)
        shelves.append(FastaShelf(document) if document.path in fasta else shelf)
    if not shelves:
        raise DataError(f'"{source}" has no text: skipped {passed_over["binary"]:,} binary')
    return _stored(replace(found, passed_over=passed_over), shelves, progress)


def _refuse_records(path: Path, head: bytes, alone: bool) -> None:
    """Errors:  DataError for records, by the file's name or by what is in it."""
    kind = NAMED.get(unpacked(path).suffix.lower())
    begins = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if kind is None and (begins == b"{" or (alone and begins == b"[")):
        found = kind_within(path)
        if found == "json" and alone:
            raise DataError(
                f"{path} is {in_words(found)}; or to learn the file as it is written, set data.as_text=true"
            )
        if found == "json lines" and (b"\n{" in head or len(head) == HEAD_BYTES):
            kind = found
    if kind is not None:
        raise refuse_records(path, kind)


def _stored(found: Source, shelves: Sequence[Shelf], progress: Progress | None) -> Source:
    documents = store_documents(shelves, progress=progress)
    passed_over = dict(found.passed_over)
    for reason, count in documents.passed_over.items():
        passed_over[f"{reason} texts"] = count
    return replace(found, documents=documents, passed_over=passed_over)
