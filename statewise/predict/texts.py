"""Texts of files, and texts as the tokens that a classifier of them was trained on."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from statewise.data.hugging_face import STRINGS, DatasetShelf, is_saved, open_datasets
from statewise.data.long_range.vocabulary import CharacterEncoder, byte_tokens
from statewise.data.own.folders import files_within
from statewise.data.tokenizers import Tokenizer
from statewise.errors import DataError, InputError, excerpt, few
from statewise.files.json_lines import documents
from statewise.files.opening import unfolded
from statewise.files.records import RECORDS, Record, fields_of, picked, place_of, read_records
from statewise.files.sniffing import checked_kind, in_words
from statewise.models.text_input import TextInputConfig
from statewise.predict.asked import NamedRows
from statewise.predict.kept import Kept, as_cells, kept_of_values, require_fields, require_no_fields

TEXT = "text"  # the field of records, where nothing else is said
TABLES = (".csv", ".tsv")


def texts_at(path: Path, field: str | None = None, keep: Sequence[str] = ()) -> Sequence[str]:
    """The texts of a file or folder. Other fields of records may be kept beside the answers.

    records     JSON lines, CSV, TSV, Parquet, each as it is or compressed: the ``field`` of each; None: "text", or the
                only one that there is. JSON lines may also be strings
    a folder    each file, at any depth, by name; or each record, if it holds records
    a data set  of Hugging Face, as ``save_to_disk`` writes it: the field of each row, as of records
    a text      each line that is not blank; answers say which "line" it is, from 1

    Errors:  DataError, one line: nothing there, no such field, a text that is not a string, or no text at all.
    """
    if path.is_dir() and not is_saved(path):
        return _of_folder(path, field, keep)
    if not path.exists():
        raise DataError(f"there is no file or folder {path}")
    kind = "data set" if path.is_dir() else _kind(path)
    texts: Sequence[str]
    if kind == "data set":
        texts = _of_data_set(path, field, keep)
    elif kind in RECORDS:
        texts = _records([path], kind, field, keep)
    elif kind in ("text", "empty"):
        require_no_fields(keep, f"{path} has a text on each line and no columns, and the answers name each line")
        texts = texts_of(_whole(path))
    else:
        raise DataError(f"{path} is {in_words(kind)}; expected texts: one a line, JSON lines, CSV or Parquet")
    if not texts:
        raise DataError(f"{path} holds no text; expected at least one")
    return texts


def texts_of(data: bytes) -> NamedRows:
    """A text of each line, and the line's number, from 1, as editors count them; blank ones are skipped."""
    lines = io.StringIO(data.decode("utf-8-sig", "surrogateescape"), newline=None)
    found = [(number, line.rstrip("\n")) for number, line in enumerate(lines, 1) if line.strip()]
    return NamedRows([text for _, text in found], [number for number, _ in found], "line")


def texts_of_frame(frame: Any, field: str | None = None, keep: Sequence[str] = ()) -> list[str]:
    """The ``field`` of each row of a DataFrame, as of records. Errors: DataError, as :func:`texts_at`."""
    known = {str(name): frame.dtypes.iloc[i].kind == "O" for i, name in enumerate(frame.columns)}
    column = frame.iloc[:, list(known).index(_field(known, field, "the DataFrame"))]
    texts = _checked(list(enumerate(column)), lambda i: f"the DataFrame, row {i}")
    if not keep:
        return texts
    require_fields(keep, list(known), "the DataFrame")
    columns = {name: frame.iloc[:, list(known).index(name)].to_numpy() for name in keep}
    kept = Kept({name: as_cells(cells, name, "the DataFrame") for name, cells in columns.items()})
    return NamedRows(texts, None, "row", kept)


def _of_data_set(path: Path, field: str | None, keep: Sequence[str]) -> list[str]:
    splits = open_datasets(str(path))
    if len(splits) > 1:
        raise DataError(f"{path} has the splits {few(splits)}; give the folder of one, as {path / next(iter(splits))}")
    (dataset,) = splits.values()
    known = {name: getattr(feature, "dtype", "") in STRINGS for name, feature in dataset.features.items()}
    name = field if field is not None and field.partition(".")[0] in known else _field(known, field, str(path))
    shelf = DatasetShelf(str(path), dataset, name)
    texts = _checked([(entry.number, entry.text) for entry in shelf.entries(None)], shelf.place)
    require_fields(keep, list(known), str(path))
    kept = kept_of_values([dataset[one][:] for one in keep], keep, str(path))
    return NamedRows(texts, None, "row", kept) if keep else texts


def _of_folder(folder: Path, field: str | None, keep: Sequence[str]) -> Sequence[str]:
    paths = files_within(folder)
    kinds = {_kind(path) for path in paths}
    if kinds & {*RECORDS}:
        if len(kinds) > 1:
            raise DataError(f"{folder} has files of several kinds: {few(map(in_words, sorted(kinds)))}; give one kind")
        return _records(paths, next(iter(kinds)), field, keep)
    require_no_fields(keep, f"the files of {folder} have no columns, and the answers name each file")
    names = [path.relative_to(folder).as_posix() for path in paths]
    return NamedRows([_whole(path).decode("utf-8-sig", "surrogateescape") for path in paths], names, "file")


def _kind(path: Path) -> str:
    kind = checked_kind(path)
    if kind == "table" and not {suffix.lower() for suffix in path.suffixes[-2:]} & {*TABLES}:
        return "text"  # lines that happen to have as many commas each
    return kind


def _whole(path: Path) -> bytes:
    with unfolded(path) as file:
        data = file.read()
    if b"\0" in data[:8192]:
        raise DataError(f"{path} is binary (a NUL byte); expected text, in UTF-8")
    return data


def _records(paths: Sequence[Path], kind: str, field: str | None, keep: Sequence[str]) -> list[str]:
    texts: list[str] = []
    cells: list[tuple[Any, ...]] = []
    for path in paths:
        found = list(_read_records(path, kind, field, keep))
        texts += _checked([(number, value) for number, (value, *_) in found], _placed(path, kind))
        cells += [values[1:] for _, values in found]
    if not keep:
        return texts
    columns = list(zip(*cells)) if cells else [()] * len(keep)
    return NamedRows(texts, None, "row", kept_of_values(columns, keep, str(paths[0])))


def _read_records(path: Path, kind: str, field: str | None, keep: Sequence[str]) -> Iterator[Record]:
    """The text of each record, and the fields to keep. A JSON line may be a text alone."""
    if kind != "json lines":
        yield from read_records(path, kind, [_field(fields_of(path, kind), field, str(path)), *keep])
        return
    for number, value in documents(path):
        alone = isinstance(value, str) and not keep
        yield number, (value,) if alone else picked(value, [field or TEXT, *keep], f"{path}, line {number}")


def _placed(path: Path, kind: str) -> Callable[[int], str]:
    return lambda number: f"{path}, {place_of(kind, number)}"


def _field(known: Mapping[str, bool], field: str | None, where: str) -> str:
    """Where the texts are, among columns and whether each holds text. Errors: DataError if it is not among them."""
    only = [name for name, is_text in known.items() if is_text]
    name = field or (only[0] if len(only) == 1 and TEXT not in known else TEXT)
    if name not in known:
        raise DataError(f"{where} has no column {excerpt(name)}, expected for the texts; it has {few(known)}")
    return name


def _checked(values: Sequence[tuple[int, Any]], place: Callable[[int], str]) -> list[str]:
    """Errors:  DataError with the place, for a value that is not a text."""
    for number, value in values:
        if not isinstance(value, str):
            raise DataError(f"{place(number)}: {excerpt(value)} is not a string; expected a text")
    return [value for _, value in values]


def encode_texts(texts: Sequence[str], config: TextInputConfig, tokenizer: Tokenizer | None = None) -> list[np.ndarray]:
    """(length,) integers each: an end token last; of a ``tokenizer``, the document token first.

    >>> encode_texts(["abc"], TextInputConfig(encoding="bytes", max_length=3))[0].tolist()
    [99, 100, 1]

    Errors:  InputError where the model needs its tokenizer, and it is not given; DataError for what is not Unicode.
    """
    if config.encoding == "tokens":
        if tokenizer is None:
            raise InputError(
                "the model needs its tokenizer to read texts; open it with sw.predictor(RUN), which loads it"
            )
        begin = tokenizer.document_token
        return [np.array([begin, *tokenizer.encode(text)][: config.max_length], np.int64) for text in texts]
    limit = config.max_length - 1
    if config.encoding == "bytes":
        return [byte_tokens(text.encode("utf-8", "surrogateescape")[:limit]) for text in texts]
    encode = CharacterEncoder(config.vocabulary)
    return [encode(text[:limit]) for text in texts]
