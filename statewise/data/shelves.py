"""Files of records and files of compressed text, as shelves of texts: which field is the text, and which the label."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from statewise.data.sources import HEAD_BYTES, Document
from statewise.data.stored_documents import Entry
from statewise.errors import DataError, excerpt, few
from statewise.files.opening import unfolded
from statewise.files.records import RECORDS, Told, fields_of, place_of, read_records
from statewise.files.sniffing import checked_kind, in_words

PIECE_BYTES = 4 << 20
LABELS = (str, bool, int, float)


@dataclass(frozen=True)
class _FileShelf:
    document: Document

    @property
    def name(self) -> str:
        return self.document.name

    @property
    def n_bytes(self) -> int:
        return self.document.size


@dataclass(frozen=True)
class RecordShelf(_FileShelf):
    """A file of records. kind: one of ``statewise.files.records.RECORDS``."""

    kind: str
    text_field: str
    label_field: str | None = None

    @property
    def identity(self) -> list[Any]:
        return [*_identity(self.document), self.kind, self.text_field, self.label_field]

    def entries(self, told: Told | None) -> Iterator[Entry]:
        fields = [self.text_field] if self.label_field is None else [self.text_field, self.label_field]
        for number, values in read_records(self.document.path, self.kind, fields, told):
            yield checked_entry(number, values, fields, self.place)

    def place(self, number: int) -> str:
        return f"{self.document.path}, {place_of(self.kind, number)}" if number else str(self.document.path)


@dataclass(frozen=True)
class WholeShelf(_FileShelf):
    """A file of text, compressed or not: one text."""

    label: Any = None

    @property
    def identity(self) -> list[Any]:
        return [*_identity(self.document), self.label]

    def entries(self, told: Told | None) -> Iterator[Entry]:
        yield Entry(0, self._pieces(told), self.label)

    def _pieces(self, told: Told | None) -> Iterator[bytes]:
        with unfolded(self.document.path, told=told) as file:
            if b"\0" in file.peek(HEAD_BYTES)[:HEAD_BYTES]:  # type: ignore[attr-defined]
                raise DataError(f"{self.document.path} is binary (a NUL byte); expected text, in UTF-8")
            while data := file.read(PIECE_BYTES):
                yield data

    def place(self, number: int) -> str:
        return str(self.document.path)

    def head(self) -> bytes:
        """Its first bytes, unfolded."""
        with unfolded(self.document.path) as file:
            return file.read(HEAD_BYTES)


def _identity(document: Document) -> list[Any]:
    return [document.name, str(document.path), document.size, document.mtime_ns]


def checked_entry(number: int, values: Sequence[Any], fields: Sequence[str], place: Any) -> Entry:
    """An entry of the values of its text, and perhaps of its label.

    Errors:  DataError with its place, for a text that is not a string, and for a missing label.
    """
    text, label = values[0], values[1] if len(values) > 1 else None
    if not (text is None or isinstance(text, str)):
        raise DataError(
            f"{place(number)}: the field {excerpt(fields[0])} holds {excerpt(text)}; expected a string, the text"
        )
    if len(values) > 1:
        if label is None or label == "":
            raise DataError(f"{place(number)}: the field {excerpt(fields[1])} is empty; expected a label")
        if not isinstance(label, LABELS):
            raise DataError(
                f"{place(number)}: the field {excerpt(fields[1])} holds {excerpt(label)}; expected a label, a string "
                "or a number"
            )
    return Entry(number, text, label)


def record_shelves(documents: Sequence[Document], text_field: str, label_field: str | None = None) -> list[RecordShelf]:
    """The files of a source, all of one kind.

    Errors:  DataError for a file that holds no records, and for files of several kinds.
    """
    shelves: list[RecordShelf] = []
    for document in documents:
        kind = checked_kind(document.path)
        if kind == "empty" and len(documents) > 1:
            continue
        if kind not in RECORDS:
            raise DataError(f"{document.path} is {in_words(kind)}{_remedy(kind, len(documents) == 1, text_field)}")
        if shelves and shelves[0].kind != kind:
            first, second = shelves[0].document.path, document.path
            raise DataError(
                f"{first} is {in_words(shelves[0].kind)}, and {second} {in_words(kind)}; give one kind, as by "
                f'"*{first.suffix}"'
            )
        shelves.append(RecordShelf(document, kind, text_field, label_field))
    return shelves


def _remedy(kind: str, alone: bool, text_field: str) -> str:
    if not alone:
        return f', which has no field {excerpt(text_field)}; give the files that have it, as by "*.jsonl"'
    if kind == "text":
        return f", which has no field {excerpt(text_field)}; leave out data.text_field (--text-field)"
    return "; expected JSON lines, CSV or Parquet, each as it is or compressed"


def refuse_records(path: Path, kind: str) -> DataError:
    """That records are not to be learned as the text of the file, braces and all, and which field to name."""
    known = _known(path, kind)
    texts = [name for name, is_text in known.items() if is_text]
    example = "text" if "text" in texts or not texts else texts[0]
    has = f"text is in {few(texts)}" if texts else f"its fields are {few(known)}, and none is text"
    as_text = "" if kind == "parquet" else "; to learn the file as it is written, set data.as_text=true"
    return DataError(
        f"{path} is {in_words(kind)}; name the field that holds the text: data.text_field={example} "
        f"(--text-field {example}); {has if known else 'its first record has no field'}{as_text}"
    )


def name_fields(path: Path, kind: str, text_field: str | None, label_field: str | None) -> DataError:
    """That the text and the label of each record have to be named, by those that there are."""
    known = _known(path, kind)
    text = text_field or next((n for n in ("text", *known) if known.get(n) and n != label_field), "text")
    label = label_field or next((n for n in ("label", *known) if n in known and n != text), "label")
    return DataError(
        f"{path} is {in_words(kind)}; name the field of the text and that of its label: data.text_field={text} and "
        f"data.label_field={label} (--text-field {text} --label-field {label}); it has {few(known) or 'no field'}"
    )


def _known(path: Path, kind: str) -> dict[str, bool]:
    try:
        return fields_of(path, kind)
    except DataError:  # damaged: who reads it says how
        return {}
