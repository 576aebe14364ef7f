"""What a file is, by its content."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hostile import refused

from statewise.files.sniffing import kind_of, kind_within, separator_of


def png() -> bytes:
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    out = io.BytesIO()
    image.new("L", (4, 4)).save(out, "PNG")
    return out.getvalue()


def wav() -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(200))
    return out.getvalue()


def saved(save: Callable[..., None], *arrays: np.ndarray, **named: np.ndarray) -> bytes:
    out = io.BytesIO()
    save(out, *arrays, **named)
    return out.getvalue()


def parquet() -> bytes:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    import pyarrow
    import pyarrow.parquet

    out = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table({"a": [1, 2]}), out)
    return out.getvalue()


def excel() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("xl/workbook.xml", "<a/>")
    return out.getvalue()


PROSE = "It was late, and cold.\nHe waited; nobody came.\nThen, at last, a knock.\n"
CONTENT: dict[str, tuple[Callable[[], bytes], str]] = {
    "lines of objects": (lambda: b'{"text": "a"}\n\n{"text": "b"}\n', "json lines"),
    "one object": (lambda: b'{"text": "a"}\n', "json lines"),
    "a long object": (lambda: b'{"text": "' + b"a" * 100_000 + b'"}\n{"text": "b"}\n', "json lines"),
    "lines of strings": (lambda: b'"a"\n"b"\n', "json lines"),
    "lines of lists": (lambda: b"[1, 2]\n[3]\n", "json lines"),
    "an object over lines": (lambda: b'{\n "a": 1\n}\n', "json"),
    "a list of objects": (lambda: b'[{"a": 1}, {"a": 2}]', "json"),
    "a list of objects over lines": (lambda: b'[\n{"a": 1},\n{"a": 2}]', "json"),
    "commas": (lambda: b"a,b\n1,2\n3,4\n", "table"),
    "semicolons and decimal commas": (lambda: b"a;b\n1,5;2\n3,1;4\n", "table"),
    "tabs": (lambda: b"de\ten\nja\tyes\nnein\tno\n", "table"),
    "quoted lines": (lambda: b'a,b\n"x\ny",2\n"z",4\n', "table"),
    "texts and labels": (lambda: b"label,text\nspam,buy now\nham,see you\n", "table"),
    "numbers": (lambda: b"1\n2.5\n-3e4\n", "table"),
    "numbers with blanks": (lambda: b"left right\n1 2\n3 4\n", "table"),
    "prose": (lambda: PROSE.encode(), "text"),
    "verses": (lambda: b"Shall I, he said\nOr not, she said\nOr so, they said\n", "text"),
    "a program": (lambda: b"import os\n\ndef f(a, b):\n    return [a, b]\n", "text"),
    "brackets": (lambda: b"{ this is text }\n[so is this]\n", "text"),
    "a byte order mark": (lambda: b"\xef\xbb\xbfa,b\n1,2\n3,4\n", "table"),
    "UTF-16": (lambda: "a,b\n1,2\n".encode("utf-16"), "utf-16"),
    "PNG": (png, "picture"),
    "JPEG": (lambda: b"\xff\xd8\xff\xe0" + bytes(20), "picture"),
    "WAV": (wav, "sound"),
    "FLAC": (lambda: b"fLaC" + bytes(40), "sound"),
    "npy": (lambda: saved(np.save, np.arange(3)), "npy"),
    "npz": (lambda: saved(np.savez, x=np.arange(3)), "npz"),
    "Parquet": (parquet, "parquet"),
    "Excel": (excel, "excel"),
    "gzip": (lambda: gzip.compress(b"a,b\n1,2\n"), "gzip"),
    "bz2": (lambda: bz2.compress(b"a"), "bz2"),
    "xz": (lambda: lzma.compress(b"a"), "xz"),
    "zip": (lambda: saved(lambda file: zipfile.ZipFile(file, "w").close()), "zip"),
    "nothing": (lambda: b"", "empty"),
    "blank lines": (lambda: b"\n \n", "empty"),
    "bytes": (lambda: bytes(range(256)), "binary"),
}


@pytest.mark.parametrize("what", CONTENT)
def test_content_tells_and_not_the_name(tmp_path: Path, what: str) -> None:
    make, kind = CONTENT[what]
    for name in ("file", "file.jpeg", "file.jsonl"):
        (tmp_path / name).write_bytes(make())
        assert kind_of(tmp_path / name) == kind


def test_few_lines_are_a_table_by_name(tmp_path: Path) -> None:
    for name, kind in (("a.csv", "table"), ("a.txt", "text")):
        (tmp_path / name).write_text("label,text\n")
        assert kind_of(tmp_path / name) == kind
    (tmp_path / "b.csv").write_text('{"a": 1}\n{"a": 2}\n')
    assert kind_of(tmp_path / "b.csv") == "json lines"


def test_within_what_is_compressed(tmp_path: Path) -> None:
    lines = b'{"text": "a"}\n{"text": "b"}\n'
    for name, data in (("a.gz", gzip.compress(lines)), ("a.bz2", bz2.compress(lines)), ("a.xz", lzma.compress(lines))):
        (tmp_path / name).write_bytes(data)
        assert kind_within(tmp_path / name) == "json lines"
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    (tmp_path / "a.csv.zst").write_bytes(zstandard.compress(b"a,b\n") * 2)  # two frames are one file
    assert kind_of(tmp_path / "a.csv.zst") == "zstd"
    assert kind_within(tmp_path / "a.csv.zst") == "table"
    (tmp_path / "broken.zst").write_bytes(zstandard.compress(b"a,b\n" * 10_000)[:-8])
    (tmp_path / "broken.gz").write_bytes(gzip.compress(b"a,b\n")[:12])
    assert "cannot read" in refused(lambda: kind_within(tmp_path / "broken.gz"))


def test_folders(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    (folder / "cat").mkdir(parents=True)
    assert kind_of(folder) == "empty folder"
    for i in range(100):
        (folder / "cat" / f"{i}.txt").write_text(PROSE)
    (folder / "cat" / ".hidden").write_bytes(b"\0")
    (folder / ".git").mkdir()
    (folder / ".git" / "index").write_bytes(b"\0")
    (folder / "empty").write_bytes(b"")
    assert kind_of(folder) == "folder of texts"
    (folder / "cat" / "0.png").write_bytes(png())
    assert kind_of(folder) == "folder of texts and pictures"
    (folder / "a.csv").write_text("a,b\n1,2\n")
    assert kind_of(folder) == "folder of texts, pictures and tables"


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    assert "cannot read" in refused(lambda: kind_of(tmp_path / "nothing"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "not a regular file" in refused(lambda: kind_of(tmp_path / "pipe"))


def test_separators() -> None:
    assert separator_of(["a;b", "1,5;2,5", "3;4"]) == ";"
    assert separator_of(["a\tb, c", "1\t2, 3", "1\t2"]) == "\t"
    assert separator_of(["a b", "c d", "e f"]) is None
    assert separator_of(["a,b"], few=True) == ","
