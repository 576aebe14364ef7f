"""What data are taken for, and what is said where that is not clear."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from statewise.data import LabelledDataConfig
from statewise.data.recognise import CORPUS, LABELLED, SERIES_KIND, TEXTS, fields_for, recognise
from statewise.data.series import SeriesDataConfig
from statewise.data.text import TextDataConfig
from statewise.errors import DataError

TABLE = "a,b,kind\n1,2,x\n3,4,y\n5,6,x\n"
DATED = "when,sold,kind\n2024-01-01,1,a\n2024-01-02,2,b\n2024-01-03,4,a\n"
NOTED = "id,note,stars\n7,very good indeed,1\n8,not so good,0\n9,very bad indeed,1\n"
REVIEWS = "review,stars\nvery good indeed,1\nnot so good,0\nvery bad indeed,1\n"


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("table.csv").write_text(TABLE)
    Path("labelled.csv").write_text(TABLE.replace("kind", "label"))
    Path("dated.csv").write_text(DATED)
    Path("years.csv").write_text("YEAR,spots\n1700,5\n1701,11\n1702,16\n")
    Path("reviews.csv").write_text(REVIEWS)
    Path("noted.csv").write_text(NOTED)
    Path("lines.jsonl").write_text("".join(json.dumps({"meta": {"text": "a b"}, "kind": i}) + "\n" for i in range(3)))
    Path("book.txt").write_text("a text\nof two lines\n")
    np.savez("own.npz", x=np.ones((4, 5)), y=np.arange(4) % 2)
    for folder in ("books/one", "books/two"):
        Path(folder).mkdir(parents=True)
        Path(folder, "a.txt").write_text("a text")


@pytest.mark.parametrize(
    ("source", "options", "kind", "fields"),
    [
        ("table.csv", {"label_field": "kind"}, LABELLED, {"source": "files", "folder": "table.csv"}),
        ("labelled.csv", {}, LABELLED, {"label_field": "label"}),
        ("dated.csv", {"label_field": "kind", "row_field": "when"}, LABELLED, {"row_field": "when"}),
        ("dated.csv", {"label_field": "kind", "row_field": "sold", "time": "when"}, LABELLED, {"time_field": "when"}),
        ("table.csv", {"label_field": "kind", "ignored_fields": ("a",)}, LABELLED, {"ignored_fields": ("a",)}),
        ("labelled.csv", {"ignored_fields": ("a",)}, LABELLED, {"label_field": "label", "ignored_fields": ("a",)}),
        ("own.npz", {}, LABELLED, {"folder": "own.npz"}),
        ("dated.csv", {}, SERIES_KIND, {"source": "dated.csv"}),
        ("years.csv", {}, SERIES_KIND, {"source": "years.csv"}),
        ("dated.csv", {"time": "when", "targets": ["sold"], "horizon": 3}, SERIES_KIND, {"targets": ("sold",)}),
        ("dated.csv", {"time": "when", "targets": ("sold",), "row_field": "kind"}, SERIES_KIND, {"series": "kind"}),
        ("reviews.csv", {"text_field": "review", "label_field": "stars"}, TEXTS, {"source": "reviews.csv"}),
        ("reviews.csv", {"text_field": "review"}, CORPUS, {"text_field": "review"}),
        ("lines.jsonl", {"text_field": "meta.text"}, CORPUS, {"text_field": "meta.text"}),
        ("book.txt", {}, CORPUS, {"source": "book.txt"}),
        ("books", {}, CORPUS, {"source": "books"}),
        ("books", {"wanted": TEXTS}, TEXTS, {"source": "books"}),
        ("*.txt", {}, CORPUS, {"source": "*.txt"}),
        ("hf:owner/name", {"text_field": "text"}, CORPUS, {"source": "hf:owner/name"}),
        ("stdlib", {}, CORPUS, {"source": "stdlib"}),
        ("digits", {}, LABELLED, {"source": "digits"}),
        ("ucr:ACSF1", {}, LABELLED, {"source": "ucr:ACSF1"}),
        ("co2", {"horizon": 26}, SERIES_KIND, {"source": "co2", "horizon": 26}),
    ],
)
def test_is_taken_for(source: str, options: dict[str, Any], kind: str, fields: dict[str, Any]) -> None:
    found = recognise(source, **options)
    assert found.kind == kind
    assert {name: getattr(found.config, name) for name in fields} == fields
    assert fields.keys() <= found.given
    assert found.sentence.startswith(f"{source} is read as ")


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("gone.csv", {}, "there is nothing at 'gone.csv'; give a file, a folder, or data by name: stdlib"),
        ("table.csv", {}, "table.csv is a table with the columns a, b, kind; say what to learn: --label-field COLUMN"),
        (
            "table.csv",
            {"label_field": "sort"},
            "--label-field sort: table.csv has no such column; its columns are a",
        ),
        ("table.csv", {"time": "day"}, "--time day: table.csv has no such column"),
        ("reviews.csv", {"label_field": "stars"}, "only text in review; add --text-field review"),
        (
            "table.csv",
            {"label_field": "kind", "ignored_fields": ("who",)},
            "--ignore-field who: table.csv has no such",
        ),
        ("noted.csv", {"label_field": "stars", "ignored_fields": ("id",)}, "only text in note; add --text-field note"),
        ("dated.csv", {"ignored_fields": ("kind",)}, "a series.*, and --ignore-field is for other data; leave it out"),
        ("own.npz", {"ignored_fields": ("who",)}, "arrays of numpy.*--ignore-field is for other data"),
        ("books", {"ignored_fields": ("who",)}, "a corpus.*--ignore-field is for other data"),
        ("dated.csv", {"wanted": LABELLED}, "times in 'when'; its columns are when, sold, kind.*--label-field COLUMN"),
        ("lines.jsonl", {}, "JSON lines with the columns meta, kind"),
        ("book.txt", {"label_field": "kind"}, "read as text, and --label-field is for other data"),
        ("own.npz", {"text_field": "text"}, "arrays of numpy.*--text-field is for other data"),
        ("digits", {"horizon": 3}, "--horizon is for other data"),
        ("table.csv", {"label_field": "kind", "horizon": 3}, "--horizon is for other data"),
        ("hf:owner/name", {}, "say which field is the text"),
    ],
)
def test_what_is_not_clear_is_one_line(source: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        recognise(source, **options)
    assert "\n" not in str(caught.value)


PNG, WAV = b"\x89PNG\r\n\x1a\n" + bytes(9), b"RIFF\x24\0\0\0WAVEfmt " + bytes(9)
PARQUET, NPY, BINARY = b"PAR1" + bytes(9), b"\x93NUMPY" + bytes(9), bytes(range(99))
TEXT, ROWS = b"some words\nof a text\n", b"a,b\n1,2\n3,4\n"
PHOTOS = {"cat/1.png": PNG, "cat/2.png": PNG, "dog/1.png": PNG}
SHEETS = {"1.md": TEXT, "2.md": TEXT, "3.md": TEXT}


@pytest.mark.parametrize(
    ("held", "options", "kind"),
    [
        (PHOTOS, {}, LABELLED),
        (PHOTOS | {"README.txt": TEXT, "LICENSE": TEXT, "cat/README.md": TEXT, "Thumbs.db": BINARY}, {}, LABELLED),
        (PHOTOS | {"notes.txt": TEXT}, {}, LABELLED),  # refused by its name when it is opened
        (PHOTOS | {"labels.csv": ROWS, "x.pdf": b"%PDF-1.4"}, {}, LABELLED),
        (PHOTOS | {"cat/1.txt": TEXT, "cat/2.txt": TEXT, "dog/1.txt": TEXT}, {}, LABELLED),  # captions
        (PHOTOS | {"dog/2.png": b"not a png\n"}, {}, LABELLED),
        (PHOTOS | {"dog/1.wav": WAV}, {"wanted": LABELLED}, LABELLED),
        (PHOTOS | {"notes.txt": TEXT}, {"wanted": CORPUS}, CORPUS),
        (PHOTOS, {"wanted": CORPUS}, LABELLED),  # which the preset refuses
        (SHEETS, {}, CORPUS),
        (SHEETS | {"README.md": TEXT}, {}, CORPUS),
        ({"README.md": TEXT}, {}, CORPUS),
        (SHEETS | {"made.o": BINARY, "set.json": b'{\n  "a": 1\n}\n'}, {}, CORPUS),
        (SHEETS | {"logo.png": PNG}, {"wanted": CORPUS}, CORPUS),
        (SHEETS | {"a.npy": NPY}, {"wanted": CORPUS}, CORPUS),
        ({"good/1.txt": TEXT, "bad/1.txt": TEXT, "bad/x.png": PNG}, {"wanted": TEXTS}, TEXTS),
        ({"a.parquet": PARQUET, "README.md": TEXT}, {"text_field": "text"}, CORPUS),
        ({"a.parquet": PARQUET, "notes.md": TEXT}, {"text_field": "text", "label_field": "kind"}, TEXTS),
    ],
)
def test_a_folder_is_taken_for(held: dict[str, bytes], options: dict[str, Any], kind: str) -> None:
    assert recognise(write("folder", held), **options).kind == kind


@pytest.mark.parametrize(
    ("held", "options", "message"),
    [
        (
            SHEETS | {"logo.png": PNG},
            {},
            "a folder of texts and pictures, as .*logo.png; to learn from the texts alone",
        ),
        (SHEETS | {"logo.png": PNG}, {"wanted": LABELLED}, "a folder of texts and pictures, as .*logo.png"),
        (
            SHEETS | {"a.npy": NPY},
            {},
            "texts and .npy files, as .*a.npy; to learn from the texts alone say --preset lan",
        ),
        ({"a.dcm": BINARY, "b.dcm": BINARY, "notes.txt": TEXT}, {}, "binary files and texts, as .*a.dcm; to learn"),
        ({"a.parquet": PARQUET, "README.md": TEXT}, {}, "a folder of Parquet files; say which field is the text"),
        (
            {"a.parquet": PARQUET, "b.parquet": PARQUET, "notes.md": TEXT},
            {},
            "Parquet files and texts; say which field",
        ),
        ({"a.npz": NPY, "README.md": TEXT}, {}, "a folder of .npy files, which cannot be learned from"),
        (PHOTOS | {"notes.txt": TEXT}, {"label_field": "kind"}, "a folder of pictures, and --label-field is for other"),
        ({".DS_Store": BINARY}, {}, "folder is an empty folder"),
    ],
)
def test_a_folder_of_which_not_enough_is_said(held: dict[str, bytes], options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        recognise(write("folder", held), **options)
    assert "\n" not in str(caught.value)


def write(folder: str, files: dict[str, bytes]) -> str:
    for name, content in files.items():
        (path := Path(folder, name)).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.pdf", b"%PDF-1.4 and so on"),
        ("a.zip", b"PK\x05\x06" + bytes(18)),
        ("a.xls", b"\xd0\xcf\x11\xe0" + bytes(600)),
        ("a.sqlite", b"SQLite format 3\0" + bytes(100)),
        ("a.png", b"\x89PNG\r\n\x1a\n" + bytes(20)),
        ("a.wav", b"RIFF\x24\0\0\0WAVEfmt " + bytes(20)),
        ("a.bin", bytes(range(256))),
        ("a.json", b'{\n  "a": 1\n}\n'),
        ("a.txt", b""),
        ("a.utf16", "text".encode("utf-16")),
    ],
)
def test_ten_wrong_files(name: str, content: bytes) -> None:
    Path(name).write_bytes(content)
    with pytest.raises(DataError, match=f"{name} is .*; ") as caught:
        recognise(name)
    assert "\n" not in str(caught.value)


def test_where_other_data_of_the_same_kind_lie() -> None:
    files = LabelledDataConfig(source="files", folder="a.csv", label_field="kind")
    assert fields_for(files, "b.csv") == {"source": "files", "folder": "b.csv"}
    assert fields_for(files, "digits") == {"source": "digits"}
    assert fields_for(LabelledDataConfig(source="arrays", folder="a.npz"), "b.npz")["source"] == "arrays"
    assert fields_for(TextDataConfig(), "books") == {"source": "books"}
    assert fields_for(SeriesDataConfig(), "b.csv") == {"source": "b.csv"}
