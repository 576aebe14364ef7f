"""Labelled texts, wherever they lie: as shelves, with the part of each, 0 for training, 1 validation, 2 the test."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from statewise.data.hugging_face import DatasetShelf, is_hugging_face, open_datasets, require_field
from statewise.data.own.folders import SPLIT_NAMES, TEXTS, find_classes
from statewise.data.own.known import NOTHING, Known
from statewise.data.shelves import WholeShelf, name_fields, record_shelves
from statewise.data.sources import Document, as_document, find_documents
from statewise.data.splits import SPLITS
from statewise.data.stored_documents import Shelf
from statewise.errors import DataError, few
from statewise.files.records import RECORDS
from statewise.files.sniffing import checked_kind, in_words

WORDS = {"json lines": "JSON lines", "table": "a table", "parquet": "Parquet"}


class LabelledShelves(NamedTuple):
    """parts: of each shelf; all 0 where the source is not divided.  classes: the names of the folders; () where the
    labels say them.  what: in words.
    """

    shelves: Sequence[Shelf]
    parts: Sequence[int]
    classes: tuple[str, ...]
    what: str


def find_labelled(
    source: str, text_field: str | None, label_field: str | None, known: Known = NOTHING
) -> LabelledShelves:
    """The texts and labels of a source, see ``LabelledTextDataConfig``.

    known: what a trained model says; folders are of its classes

    Errors:  DataError, one line: nothing there, records without their two fields, files that are not texts, folders
             that are not classes.
    """
    if is_hugging_face(source):
        return _datasets(source, text_field, label_field)
    folder = Path(source).expanduser()
    if folder.is_dir() and text_field is None and label_field is None:
        return _folder(source, folder, known)
    found = find_documents(source, take=lambda path, head: True)
    first = found.documents[0]
    kind = checked_kind(first.path)
    if kind in RECORDS and (text_field is None or label_field is None):
        raise name_fields(first.path, kind, text_field, label_field)
    if kind not in RECORDS and len(found.documents) == 1:
        raise DataError(
            f"{source} is {in_words(kind)}; labelled texts are a folder whose subfolders are classes, or records with "
            "a text and a label each: JSON lines, CSV or Parquet"
        )
    if text_field is None:
        raise DataError(f"{source} is a folder of texts, whose classes are its subfolders; leave data.label_field out")
    shelves = record_shelves(found.documents, text_field, label_field)
    parts = _parts_by_name(found.documents)
    if len(shelves) < len(found.documents):
        kept = {shelf.document.path for shelf in shelves}
        parts = [part for part, document in zip(parts, found.documents) if document.path in kept]
    return LabelledShelves(shelves, parts, (), f"{WORDS[shelves[0].kind]}, labels in {label_field!r}")


def _folder(source: str, folder: Path, known: Known) -> LabelledShelves:
    documents = find_documents(source, take=lambda path, head: True).documents
    for document in documents:
        if "/" not in document.name and (kind := checked_kind(document.path)) in RECORDS:
            raise name_fields(document.path, kind, None, None)
    found = find_classes(folder, TEXTS, known)
    shelves, parts = [], []
    for split, files in found.splits.items():
        for path, number in files:
            member = as_document(path, path.relative_to(folder).as_posix())
            if member is None:
                raise DataError(f"{path} is not a regular file; move it out of the folder")
            shelves.append(WholeShelf(member, found.classes[number]))
            parts.append(SPLITS.index(split))
    passed = f", {found.passed_over}" if found.passed_over else ""
    return LabelledShelves(shelves, parts, found.classes, f"texts in {len(found.classes):,} folders{passed}")


def _datasets(source: str, text_field: str | None, label_field: str | None) -> LabelledShelves:
    splits = open_datasets(source)
    if "train" not in splits:
        raise DataError(f'{source} has the splits {few(splits)}; expected "train" among them')
    require_field(source, splits["train"], text_field, "text")
    require_field(source, splits["train"], label_field, "label")
    assert text_field is not None
    known = [name for name in splits if name in SPLIT_NAMES]
    left = [name for name in splits if name not in SPLIT_NAMES]
    shelves = [
        DatasetShelf(f"{source}/{name}" if len(known) > 1 else source, splits[name], text_field, label_field)
        for name in known
    ]
    parts = [SPLITS.index(SPLIT_NAMES[name]) for name in known]
    note = f"; not read: {few(left)}" if left else ""
    return LabelledShelves(shelves, parts, (), f"a data set, labels in {label_field!r}{note}")


def _parts_by_name(documents: Sequence[Document]) -> list[int]:
    """The splits of files by their names, as train.csv and test.csv, train-00000-of-00002.parquet, train/0.jsonl."""
    if not _divided_by_name(documents):
        return [0] * len(documents)
    return [SPLITS.index(SPLIT_NAMES[_first_word(document)]) for document in documents]


def _divided_by_name(documents: Sequence[Document]) -> bool:
    words = [SPLIT_NAMES.get(_first_word(document)) for document in documents]
    return None not in words and "train" in words and len(set(words)) > 1


def _first_word(document: Document) -> str:
    return re.split(r"[-_./]", document.name.lower())[0]
