"""Corpora of records and of compressed text that are wrong: what is refused, in one line."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hostile import BOMB
from test_text_records import TEXTS, config
from text_formats import write_csv, write_jsonl, write_parquet, write_saved, zstd

from statewise.data.text import TextDataConfig, open_corpus
from statewise.errors import ConfigError, DataError


def lines(*rows: str) -> bytes:
    return "".join(row + "\n" for row in rows).encode()


GOOD = [json.dumps({"text": text}) for text in TEXTS]
JSONL: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "binary": (b"\0\1\2" * 100, "is named .jsonl, but is"),
    "plain text": (b"It was a dark night.\nIt rained.\n", "is named .jsonl, but is plain text"),
    "no JSON": (lines(*GOOD, '{"text": '), f"line {len(GOOD) + 1} is not JSON"),
    "a list": (lines(*GOOD, '["text"]'), "is not an object"),
    "a string": (lines(*GOOD, '"text"'), "is not an object"),
    "no field": (lines(*GOOD, '{"body": "a", "id": 1}'), f"line {len(GOOD) + 1} has no field 'text'; it has body, id"),
    "no fields": (lines(*GOOD, "{}"), "has no field 'text'; it is empty"),
    "a number": (lines(*GOOD, '{"text": 5}'), "holds 5; expected a string"),
    "a list in it": (lines(*GOOD, '{"text": ["a"]}'), "holds ['a']; expected a string"),
    "not UTF-8": (lines(*GOOD) + b'{"text": "caf\xe9"}\n', f"line {len(GOOD) + 1} is not JSON"),
    "half a pair": (lines(*GOOD, '{"text": "\\ud83d"}'), "half of a surrogate pair"),
    "all empty": (lines(*['{"text": ""}'] * 30), "no text is left, skipped 30 empty"),
    "twice": (lines(*GOOD, '{"text": "a", "text": "b"}'), "is there twice"),
    "one document": (b'[{"text": "a"}, {"text": "b"}]', "one JSON document"),
    "deep": (lines(*GOOD, "[" * 100_000), "is not JSON"),
}
PACKED: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "cut gz": ("a.jsonl.gz", lambda: gzip.compress(lines(*GOOD * 50))[:-30], "cannot read"),
    "cut zst": ("a.jsonl.zst", lambda: zstd(lines(*GOOD * 50))[:-3], "Truncated compressed stream"),
    "bomb gz": (
        "a.jsonl.gz",
        lambda: gzip.compress(lines(*GOOD) + b" " * BOMB, 1),
        "looks like an attack on the memory",
    ),
    "bomb zst": ("a.jsonl.zst", lambda: zstd(lines(*GOOD) + b" " * BOMB), "looks like an attack on the memory"),
    "no gz": ("a.jsonl.gz", lambda: lines(*GOOD), "is named .gz, but is JSON lines"),
    "no zst": ("a.jsonl.zst", lambda: gzip.compress(lines(*GOOD)), "is named .zst, but is compressed by gzip"),
    "binary in gz": ("a.jsonl.gz", lambda: gzip.compress(b"\0" * 99), "is named .jsonl, but is"),
    "empty gz": ("a.jsonl.gz", lambda: gzip.compress(b""), "is named .jsonl, but is empty"),
    "damaged zst": ("a.jsonl.zst", lambda: zstd(lines(*GOOD))[:40] + b"\xff" * 400, "cannot read"),
    "text in gz": ("a.gz", lambda: gzip.compress(b"It rained.\n" * 9), "is plain text, which has no field 'text'"),
}
CSV: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "binary": (b"\0\1\2" * 100, "is named .csv, but is"),
    "no column": (b"id,body\n1,a\n", "has no column 'text'; its columns are id, body"),
    "no names": (b"text,text\na,b\n", "each column a different name"),
    "unlike rows": (b"id,text\n1,a\n2,b,c\n", "line 3, has 3 cells; the first line names 2 columns"),
    "short row": (b"id,text\n1,a\n2\n", "line 3, has 1 cells"),
    "open quotes": (b'id,text\n1,"a\n2,b\n', "line 3: unexpected end of data"),
    "a quote within": (b'id,text\n1,"a"b\n', "line 2: "),
    "not UTF-8": (b"id,text\n1,caf\xe9\n", "line 2 is not in UTF-8 (byte 5 of it)"),
    "all empty": (b"id,text\n1,\n2,\n", "no text is left, skipped 2 empty"),
    "JSON lines": (lines(*GOOD), "is named .csv, but is JSON lines"),
    "Parquet": (b"PAR1" + bytes(50), "is named .csv, but is Parquet"),
}


def refused(chosen: TextDataConfig) -> str:
    with pytest.raises(DataError) as caught:
        open_corpus(chosen)
    message = str(caught.value)
    assert message.isprintable(), repr(message)
    assert len(message) <= 400
    return message


@pytest.mark.parametrize("name", JSONL)
def test_wrong_json_lines(name: str, cache: Path, tmp_path: Path) -> None:
    data, said = JSONL[name]
    (tmp_path / "a.jsonl").write_bytes(data)
    message = refused(config(tmp_path / "a.jsonl"))
    assert str(tmp_path / "a.jsonl") in message
    assert said in message


@pytest.mark.parametrize("name", PACKED)
def test_wrong_compressed_files(name: str, cache: Path, tmp_path: Path) -> None:
    file, make, said = PACKED[name]
    (tmp_path / file).write_bytes(make())
    assert said in refused(config(tmp_path / file))


@pytest.mark.parametrize("name", CSV)
def test_wrong_tables(name: str, cache: Path, tmp_path: Path) -> None:
    data, said = CSV[name]
    (tmp_path / "a.csv").write_bytes(data)
    assert said in refused(config(tmp_path / "a.csv"))


def test_wrong_parquet(cache: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
    import pyarrow

    def saying(columns: dict[str, object], **options: object) -> str:
        parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet", **options)
        return refused(config(tmp_path / "a.parquet"))

    assert "has no column 'text'; its columns are body, n" in saying({"body": ["a"], "n": [1]})
    assert "row 2: the field 'text' holds 7; expected a string" in saying({"text": [None, 7]})
    assert "holds b'a'; expected a string" in saying({"text": [b"a"]})
    assert "holds ['a']; expected a string" in saying({"text": [["a"]]})
    assert "no text is left, skipped 2 empty, 1 null" in saying({"text": ["", None, ""]})
    assert "no text is left" in saying({"text": pyarrow.array([], pyarrow.string())})
    assert "looks like an attack" in saying({"text": ["a" * (1 << 20)] * 70}, compression="zstd")
    good = write_parquet(tmp_path, [{"text": text} for text in TEXTS])
    data = good.read_bytes()
    for broken in (data[:-10], data[:100] + data[-4:], data[: len(data) // 2], b"PAR1" + data[20:]):
        good.write_bytes(broken)
        assert "cannot read" in refused(config(good)) or "no column" in refused(config(good))
    assert "has no field 'txt'" in refused(config(write_saved(tmp_path, [{"text": "a"}]), text_field="txt"))


def test_records_are_never_learned_as_raw_text(cache: Path, tmp_path: Path) -> None:
    def saying(path: Path | str, **fields: object) -> str:
        return refused(config(path, text_field=None, **fields))

    records = [{"id": i, "body": text, "title": "a"} for i, text in enumerate(TEXTS)]
    named = "name the field that holds the text: data.text_field=body (--text-field body)"
    path = write_jsonl(tmp_path, records)
    assert f"a.jsonl is JSON lines (a document a line); {named}; text is in body, title" in saying(path)
    for name in ("corpus.txt", "corpus", "corpus.json"):  # whatever it is called
        (tmp_path / name).write_bytes(path.read_bytes())
        assert named in saying(tmp_path / name)
        (tmp_path / name).unlink()
    assert named in saying(tmp_path)  # in a folder
    assert named in saying(tmp_path / "*")
    (tmp_path / "b.txt").write_text("plain")  # among others
    assert named in saying(tmp_path)
    (tmp_path / "long.txt").write_bytes(lines(*[json.dumps({"text": "long " * 20_000})] * 3))
    assert "data.text_field=text" in saying(tmp_path / "long.txt")
    for name, data in (("c.jsonl.gz", gzip.compress(path.read_bytes())), ("c.zst", zstd(path.read_bytes()))):
        (tmp_path / name).write_bytes(data)
        assert named in saying(tmp_path / name)
    (tmp_path / "broken.jsonl").write_text("no JSON\n")
    assert "--text-field text" in saying(tmp_path / "broken.jsonl")
    assert "data.text_field=body" in saying(write_csv(tmp_path, [{"body": "a", "title": "b"}] * 3))
    assert "is Parquet; name the field" in saying(write_parquet(tmp_path, records))
    assert "is a data set; name the field" in saying(write_saved(tmp_path, records))
    (tmp_path / "one.json").write_text('[{"text": "a"}, {"text": "b"}]')
    assert "one JSON document; write it as JSON lines" in saying(tmp_path / "one.json")
    raw = open_corpus(config(path, text_field=None, as_text=True))
    assert raw.source.n_bytes == path.stat().st_size  # braces and all, since it was asked for
    with pytest.raises(ConfigError, match="give one of the two"):
        config(path, as_text=True)


def test_a_field_of_plain_text_and_mixed_folders(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("plain text, and more of it\n" * 9)
    assert "is plain text, which has no field 'text'; leave out data.text_field" in refused(config(tmp_path / "a.txt"))
    assert "is plain text" in refused(config("stdlib"))
    write_jsonl(tmp_path, [{"text": text} for text in TEXTS])
    assert "a.txt is plain text, which has no field 'text'; give the files" in refused(config(tmp_path))
    (tmp_path / "a.txt").unlink()
    write_csv(tmp_path, [{"text": text} for text in TEXTS])
    assert "and" in (message := refused(config(tmp_path)))
    assert 'give one kind, as by "*.csv"' in message
    assert "no file or folder" in refused(config(tmp_path / "nothing.jsonl"))


def test_plain_text_that_begins_as_json_is_text(cache: Path, tmp_path: Path) -> None:
    for i in range(25):
        (tmp_path / f"{i}.c").write_text("{ int x; }\n" * (i + 1))
    (tmp_path / "package.json").write_text('{\n  "name": "a",\n  "version": "1"\n}\n')
    (tmp_path / "notes.txt").write_text("a, b, c\nd, e, f\n1, 2, 3\n")
    assert len(open_corpus(replace(config(tmp_path), text_field=None)).source.documents) == 27
