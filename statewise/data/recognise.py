"""What data are taken for, by their content and by your options: :func:`recognise`."""

from __future__ import annotations

import glob
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from statewise.data.base import DataConfig
from statewise.data.hugging_face import PREFIX, is_saved
from statewise.data.labelled_config import OWN, SOURCES, LabelledDataConfig
from statewise.data.labelled_text import LabelledTextDataConfig
from statewise.data.own.folders import KINDS
from statewise.data.own.tables import LABEL
from statewise.data.series import SeriesDataConfig
from statewise.data.series_files import SERIES
from statewise.data.sources import CORPORA
from statewise.data.text import TextDataConfig
from statewise.errors import DataError, excerpt, few
from statewise.files.records import RECORDS
from statewise.files.sniffing import in_plural, in_words, kind_within, kinds_among
from statewise.files.table_head import TableHead, table_head
from statewise.files.tables import first_and_last
from statewise.files.walking import is_about, is_hidden, walk

LABELLED, TEXTS, CORPUS, SERIES_KIND = "labelled", "labelled texts", "text", "series"
IN_WORDS = {
    LABELLED: "labelled sequences of numbers",
    TEXTS: "labelled texts",
    CORPUS: "text",
    SERIES_KIND: "series",
}
FLAGS = {  # of the fields of data
    "label_field": "--label-field",
    "row_field": "--row-field",
    "text_field": "--text-field",
    "ignored_fields": "--ignore-field",
    "time": "--time",
    "targets": "--targets",
    "covariates": "--covariates",
    "horizon": "--horizon",
}
TIME_NAMES = ("date", "datetime", "timestamp", "time", "ds", "year", "month", "week", "day")
DATE = re.compile(
    r"\d{4}[-./]\d{1,2}([-./]\d{1,2})?([T ].*)?|\d{1,2}[-./]\d{1,2}[-./]\d{2,4}([T ].*)?|\d{4}-?[Qq][1-4]"
)


@dataclass(frozen=True)
class Recognised:
    """What data are: their config, the kind of it, and a sentence that says it.

    kind:  "labelled" (sequences of numbers with classes or numbers to predict), "labelled texts", "text", "series"
    given: the fields of ``config`` that you gave or that were found, without defaults
    """

    config: DataConfig
    kind: str
    sentence: str
    given: frozenset[str]


def recognise(path: str | Path, *, wanted: str | None = None, **options: Any) -> Recognised:
    """What is at ``path``, by its content; or data by name, such as "stdlib", "ucr:ACSF1" or "co2".

    options:  ``label_field``, ``row_field``, ``text_field``, ``ignored_fields``, ``time``, ``targets``, ``covariates``,
              ``horizon``, as the configs of data have them (``time``: the ``time_field`` of labelled sequences); None:
              not said
    wanted:   the kind that is asked for, as by a preset; decides where a file may be two things

    If subfolders hold pictures or sounds, they are the classes; a folder with texts is a corpus, or labelled texts if
    you ask for these. A few other files are refused by their names when the data are opened. Where texts are among
    much else, they are a corpus only if you ask for one. Arrays of numpy are labelled sequences. A table (also
    Parquet, JSON lines) is labelled by its ``label_field``, labelled texts with a ``text_field`` too, a corpus with
    that alone, and a series by ``time`` or ``targets``, or if its first column has times.

    Cost:    the head of a file, or of 64 files of a folder, is read.
    Errors:  DataError, one line, for data that cannot be learned from; for a table that needs an option, with its
             columns and the option; for an option that is for other data.
    """
    said = {name: value for name, value in options.items() if value not in (None, (), [])}
    name = str(path)
    if isinstance(path, str):
        named = _by_name(path, said)
        if named is not None:
            return named
    if name.startswith(PREFIX) or is_saved(Path(path).expanduser()):
        return _records(name, said, "a data set of Hugging Face")
    place = Path(path).expanduser()
    if not place.exists():
        if glob.has_magic(name):
            return _text(name, said, "text, the files that match")
        known = ", ".join((*CORPORA, *(one for one in SOURCES[:-1] if one not in OWN), "ucr:NAME", *SERIES))
        raise DataError(f"there is nothing at {excerpt(name)}; give a file, a folder, or data by name: {known}")
    if place.is_dir():
        return _folder(name, place, wanted, said)
    kind = kind_within(place)
    if kind in ("npz", "npy"):
        _only(name, said, in_words(kind))
        return _labelled(name, said, "arrays of numpy, a row for each sequence")
    if kind in ("table", "parquet", "json lines"):
        return _table(name, table_head(place, kind), kind, wanted, said)
    if kind == "text":
        return _text(name, said, "text")
    what = in_words(kind)
    remedy = "" if ";" in what else ", which cannot be learned from; give a table, text, arrays or a folder"
    raise DataError(f"{name} is {what}{remedy}")


def _by_name(name: str, said: Mapping[str, Any]) -> Recognised | None:
    if name in CORPORA:
        return _text(name, said, "text")
    if name in SERIES:
        return _series(name, said, "a series")
    if (name in SOURCES and name not in OWN) or name.startswith("ucr:"):
        _only(name, said, "a data set")
        return _found(LabelledDataConfig, LABELLED, {"source": name}, name, "a data set of labelled sequences")
    return None


def _folder(name: str, place: Path, wanted: str | None, said: Mapping[str, Any]) -> Recognised:
    visible = [path for path in walk(place) if not is_hidden(path)]
    first_of = kinds_among([path for path in visible if not is_about(path)] or visible, inside=True)
    kinds = list(first_of)
    if not kinds:
        raise DataError(f"{name} is an empty folder; give one of pictures, sounds or texts")
    what = f"a folder of {in_plural(kinds)}"
    if "text" in kinds and wanted == TEXTS and not {"text_field", "label_field"} & said.keys():
        _only(name, said, "texts with the subfolders as classes")
        return _labelled_texts(name, said, "texts with the subfolders as classes")
    meant = "text" in kinds and (wanted == CORPUS or "text_field" in said)
    if kinds[0] in KINDS and not meant:  # what else is there is refused by its name when the data are opened
        _only(name, said, f"a folder of {KINDS[kinds[0]]}")
        return _labelled(name, said, f"{KINDS[kinds[0]]} with the subfolders as classes")
    if "text" in kinds and "text_field" not in said and (meant or _are_texts(kinds)):
        nested = any(path.is_dir() and not path.name.startswith(".") for path in place.iterdir())
        classes = " (for subfolders as classes: --preset text-classifier)" if nested else ""
        more = classes if kinds == ["text"] else f", of {what}"
        return _text(name, said, f"a corpus, a document for each text{more}")
    if kinds[0] in RECORDS or meant:
        return _records(name, said, what)
    if "text" not in kinds:
        raise DataError(f"{name} is {what}, which cannot be learned from; give one of pictures, sounds or texts")
    other = first_of[next(kind for kind in kinds if kind != "text")]
    raise DataError(
        f"{name} is {what}, as {other}; to learn from the texts alone say --preset language, else move out what is of "
        "another kind"
    )


def _are_texts(kinds: Sequence[str]) -> bool:
    """Whether kinds, the most frequent first, are of a folder of texts, such as source code with settings in JSON and
    a few files that are built; and not of something to learn from with a text beside it."""
    return kinds[0] in ("text", "json", "table", "json lines") and not {*kinds} & {*KINDS, "parquet", "npz", "npy"}


def _records(name: str, said: Mapping[str, Any], what: str) -> Recognised:
    """Texts, with labels or without."""
    if "text_field" not in said:
        raise DataError(f"{name} is {what}; say which field is the text: --text-field FIELD")
    return _labelled_texts(name, said, what) if "label_field" in said else _text(name, said, what)


def _table(name: str, head: TableHead, kind: str, wanted: str | None, said: Mapping[str, Any]) -> Recognised:
    what = {"table": "a table", "parquet": "a Parquet table", "json lines": "JSON lines"}[kind]
    for field in ("label_field", "row_field", "text_field", "ignored_fields", "time", "targets", "covariates"):
        value = said.get(field)
        for column in [value] if isinstance(value, str) else value or ():
            nested = kind == "json lines" and column.split(".")[0] in head.columns
            if not nested:
                head.require(column, FLAGS[field])
    columns = first_and_last(head.columns)
    if wanted == LABELLED or not said.keys() - {"row_field", "ignored_fields", "time"}:
        said = {"label_field": LABEL, **said} if LABEL in head.columns and "text_field" not in said else said
    if "label_field" in said:
        label = said["label_field"]
        if "text_field" in said:
            return _labelled_texts(name, said, f"{what}, texts in {said['text_field']!r}, labels in {label!r}")
        others = head.columns.keys() - {label, *said.get("ignored_fields", ())}
        texts = [column for column in head.columns if column in others and _is_prose(head.columns[column])]
        if texts and len(texts) == len(others):
            raise DataError(
                f"{name}: beside {label!r} there is only text in {few(texts)}; add --text-field {texts[0]} to learn "
                "from it"
            )
        each = (
            f"a row for each step, sequences by {said['row_field']!r}"
            if "row_field" in said
            else "a row for each sequence"
        )
        return _labelled(name, said, f"{what}, {each}, labels in {label!r}")
    if "text_field" in said:
        return _text(name, said, f"{what}, texts in {said['text_field']!r}")
    first = next(iter(head.columns), "")
    if {"time", "targets"} & said.keys() or wanted == SERIES_KIND or (kind != "json lines" and _is_time(head, first)):
        if wanted not in (None, SERIES_KIND):
            raise DataError(
                f"{name} is {what} with times in {first!r}; its columns are {columns}; for sequences with labels say "
                "--label-field COLUMN"
            )
        each = f"series by {said['row_field']!r}" if "row_field" in said else "a series"
        return _series(name, said, f"{what}, {each} with its times in {said.get('time', first)!r}")
    raise DataError(
        f"{name} is {what} with the columns {columns}; say what to learn: --label-field COLUMN for classes or numbers, "
        "--text-field COLUMN for texts, --time COLUMN for a series to forecast"
    )


def _is_time(head: TableHead, column: str) -> bool:
    cells = [cell for cell in head.columns.get(column, []) if cell not in (None, "")]
    if not cells or len(head.columns) < 2:
        return False
    dates = all(isinstance(cell, date) or (isinstance(cell, str) and DATE.fullmatch(cell.strip())) for cell in cells)
    return dates or (column.lower() in TIME_NAMES and len(set(map(str, cells))) == len(cells))


def _is_prose(cells: Sequence[Any]) -> bool:
    """Whether a column has texts of words, and no numbers."""
    texts = [cell for cell in cells if isinstance(cell, str) and cell.strip()]
    return bool(texts) and len(texts) == len(cells) and all(re.search(r"[^\W\d_]{2}", text) for text in texts)


# -- the configs -----------------------------------------------------------------------------------------------------


def _labelled(name: str, said: Mapping[str, Any], what: str) -> Recognised:
    is_table = ("label_field", "ignored_fields") if "label_field" in said else ()
    _only(name, said, what, *is_table, *(("row_field", "time") if "row_field" in said else ()))
    given = {"time_field" if field == "time" else field: value for field, value in said.items()}
    return _found(LabelledDataConfig, LABELLED, {"source": "files", "folder": name, **given}, name, what)


def _labelled_texts(name: str, said: Mapping[str, Any], what: str) -> Recognised:
    _only(name, said, what, "label_field", "text_field")
    return _found(LabelledTextDataConfig, TEXTS, {"source": name, **said}, name, what)


def _text(name: str, said: Mapping[str, Any], what: str) -> Recognised:
    _only(name, said, what, "text_field")
    return _found(TextDataConfig, CORPUS, {"source": name, **said}, name, what)


def _series(name: str, said: Mapping[str, Any], what: str) -> Recognised:
    _only(name, said, what, "time", "targets", "covariates", "horizon", "row_field")
    given = {"series" if field == "row_field" else field: value for field, value in said.items()}
    return _found(SeriesDataConfig, SERIES_KIND, {"source": name, **given}, name, what)


def _found(cls: Any, kind: str, given: dict[str, Any], name: str, what: str) -> Recognised:
    return Recognised(cls(**given), kind, f"{name} is read as {what}", frozenset(given))


def _only(name: str, said: Mapping[str, Any], what: str, *allowed: str) -> None:
    """Errors:  DataError for an option that these data do not have."""
    for field in said:
        if field not in allowed:
            raise DataError(f"{name} is read as {what}, and {FLAGS[field]} is for other data; leave it out")


def fields_for(config: DataConfig, given: str) -> dict[str, str]:
    """The fields of a config that ``--data`` sets: for your own labelled sequences it is ``folder``."""
    if not isinstance(config, LabelledDataConfig) or given in SOURCES or given.startswith("ucr:"):
        return {"source": given}
    is_arrays = config.source == "arrays" and Path(given).suffix == ".npz"
    return {"source": "arrays" if is_arrays else "files", "folder": given}
