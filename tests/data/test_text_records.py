"""Corpora of records and of compressed text: the same documents, whatever they lie in."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hostile import BOMB
from places import SHARED
from stored_texts import assert_right, flip
from text_formats import RECORDS, json_lines, some_texts, write_csv, write_jsonl, write_parquet, write_saved, zstd

from statewise.data.hugging_face import open_datasets
from statewise.data.splits import SPLITS
from statewise.data.stored_documents import StoredDocuments
from statewise.data.text import Corpus, TextDataConfig, open_corpus, open_tokenizer
from statewise.errors import ConfigError, DataError

TEXTS = some_texts()


def config(source: Path | str, **fields: object) -> TextDataConfig:
    given = {"text_field": "text", "validation_fraction": 0.2, "test_fraction": 0.2, **fields}
    return TextDataConfig(source=str(source), **given)  # type: ignore[arg-type]


def texts_of(corpus: Corpus) -> list[str]:
    """Of all splits, in the order of their numbers."""
    found = []
    for name in SPLITS:
        split = corpus.split(name)
        ends = np.cumsum(split.document_bytes)
        whole = split.text_bytes()
        found += [whole[end - n : end].decode() for end, n in zip(ends, split.document_bytes)]
    return sorted(found, key=lambda text: int(text.split()[0]))


@pytest.mark.parametrize("kind", RECORDS)
def test_every_format_gives_the_same_documents_in_the_same_splits(kind: str, cache: Path, tmp_path: Path) -> None:
    records = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    corpus = open_corpus(config(RECORDS[kind](tmp_path, records)))
    assert_right(corpus)
    assert texts_of(corpus) == TEXTS
    assert f"{len(TEXTS)} documents, {sum(len(text.encode()) for text in TEXTS):,} bytes" in corpus.describe()
    plain = write_jsonl(tmp_path, records)
    assert open_corpus(config(plain)).fingerprint == corpus.fingerprint


def test_a_field_within_another(cache: Path, tmp_path: Path) -> None:
    records = [{"meta": {"text": text, "n": 3}, "text": None} for text in TEXTS]
    for write in (write_jsonl, write_parquet, write_saved):
        assert texts_of(open_corpus(config(write(tmp_path, records), text_field="meta.text"))) == TEXTS
    (tmp_path / "dots.jsonl").write_bytes(json_lines([{"meta.text": text} for text in TEXTS]))
    assert texts_of(open_corpus(config(tmp_path / "dots.jsonl", text_field="meta.text"))) == TEXTS


def test_a_glob_and_a_byte_order_mark(cache: Path, tmp_path: Path) -> None:
    records = json_lines([{"text": text} for text in TEXTS])
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + records)
    (tmp_path / "b.txt").write_text("beside it")
    assert texts_of(open_corpus(config(tmp_path / "*.jsonl"))) == TEXTS
    (tmp_path / "c.csv").write_bytes(b"\xef\xbb\xbftext\n" + "".join(f'"{i} wörds"\n' for i in range(9)).encode())
    assert texts_of(open_corpus(config(tmp_path / "c.csv"))) == [f"{i} wörds" for i in range(9)]


def test_what_is_empty_is_passed_over_and_told(cache: Path, tmp_path: Path) -> None:
    records = [{"text": text} for text in [*TEXTS, "", "", None]]
    corpus = open_corpus(config(write_jsonl(tmp_path, records)))
    assert texts_of(corpus) == TEXTS
    assert "skipped 2 empty texts, 1 null texts" in corpus.describe()


def test_compressed_text_is_what_it_was(cache: Path, tmp_path: Path) -> None:
    text = (SHARED / "tinyshakespeare.txt").read_bytes() if SHARED.exists() else " ".join(TEXTS).encode() * 50
    (tmp_path / "plain.txt").write_bytes(text)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(text[:-1]) + gzip.compress(text[-1:]))
    (tmp_path / "a.txt.zst").write_bytes(zstd(text))
    plain = open_corpus(config(tmp_path / "plain.txt", text_field=None))
    for name in ("a.txt.gz", "a.txt.zst"):
        corpus = open_corpus(config(tmp_path / name, text_field=None))
        assert_right(corpus)
        assert corpus.fingerprint == plain.fingerprint
    folder = tmp_path / "mixed"
    folder.mkdir()
    for i, one in enumerate(TEXTS):
        data = one.encode()
        (folder / f"{i}.txt{'.gz' * (i % 2)}").write_bytes(gzip.compress(data) if i % 2 else data)
    (folder / "binary.gz").write_bytes(gzip.compress(b"\0"))
    corpus = open_corpus(config(folder, text_field=None))
    assert texts_of(corpus) == TEXTS
    assert "skipped 1 binary" in corpus.describe()


def test_a_text_keeps_its_split_whatever_comes_before_it_and_equal_texts_share_one(cache: Path, tmp_path: Path) -> None:
    def splits(texts: list[str]) -> dict[str, str]:
        corpus = open_corpus(config(write_jsonl(tmp_path, [{"text": text} for text in texts])))
        where: dict[str, str] = {}
        for name in SPLITS:
            for part in corpus.split(name).parts:
                text = part.document.path.read_bytes()[part.document.begin :][: part.n_bytes].decode()
                assert where.setdefault(text, name) == name
        return where

    before = splits(TEXTS)
    after = splits([f"9{i} more" for i in range(30)] + TEXTS[::-1] + TEXTS)
    assert {text: after[text] for text in TEXTS} == before


def test_few_records_are_cut_in_order(cache: Path, tmp_path: Path) -> None:
    texts = [f"{i} " + "words and words\n" * 50 for i in range(5)]
    corpus = open_corpus(config(write_jsonl(tmp_path, [{"text": text} for text in texts])))
    assert_right(corpus)
    assert b"".join(corpus.split(name).text_bytes() for name in SPLITS) == "".join(texts).encode()
    assert "fewer than 20 documents" in corpus.describe()


def test_records_are_unfolded_once_and_again_when_damaged_or_changed(cache: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    path = write_jsonl(tmp_path, [{"text": text} for text in TEXTS])
    first = open_corpus(config(path), progress=lambda done, total: seen.append((done, total)))
    assert isinstance(first.source.documents, StoredDocuments)
    assert (path.stat().st_size, path.stat().st_size) in seen
    seen.clear()
    open_corpus(config(path), progress=lambda done, total: seen.append((done, total)))
    open_corpus(config(path, test_fraction=0.3))  # divided otherwise, from the same store
    assert not seen
    (store,) = (cache.parent / "texts").iterdir()
    for name in ("records.bin", "text.bin"):
        (store / name).write_bytes((store / name).read_bytes()[:-8])
        assert_right(open_corpus(config(path)))
    flip(store / "meta.json")
    assert_right(open_corpus(config(path)))
    path.write_bytes(json_lines([{"text": text + "!"} for text in TEXTS]))
    assert texts_of(open_corpus(config(path))) == [text + "!" for text in TEXTS]


def test_a_learned_tokenizer_learns_from_records(cache: Path, tmp_path: Path) -> None:
    chosen = config(write_jsonl(tmp_path, [{"text": text} for text in TEXTS]), tokenizer="bpe:300")
    corpus = open_corpus(chosen)
    assert corpus.tokenizer.vocab_size == 300
    assert open_tokenizer(chosen).fingerprint == corpus.tokenizer.fingerprint
    split = corpus.split("train")
    assert split.n_bytes == len(split.text_bytes()) > split.n_tokens


def test_text_that_is_not_utf_8_is_told_by_its_own_file(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"caf\xe9 " * 300))
    assert open_corpus(config(tmp_path / "a.txt.gz", text_field=None)).split("train").n_bytes
    with pytest.raises(DataError, match=r"^a\.txt\.gz is not UTF-8 at byte 3"):
        open_corpus(config(tmp_path / "a.txt.gz", text_field=None, tokenizer=tokenizer_file(tmp_path)))


def tokenizer_file(folder: Path) -> str:
    open_corpus(config(write_jsonl(folder, [{"text": text} for text in TEXTS])))
    learned = open_tokenizer(config(folder / "a.jsonl", tokenizer="bpe:300"))
    (folder / "tokenizer.json").write_text(learned.json, "utf-8")  # type: ignore[attr-defined]
    return str(folder / "tokenizer.json")


def test_a_large_file_is_read_as_it_goes(cache: Path, tmp_path: Path) -> None:
    line = json.dumps({"text": "word " * 2000}).encode() + b"\n"
    (tmp_path / "a.jsonl.zst").write_bytes(zstd(b"".join(line.replace(b"word", b"%4d" % i) for i in range(1000))))
    tracemalloc.start()
    corpus = open_corpus(config(tmp_path / "a.jsonl.zst"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert corpus.source.n_bytes == 1000 * 10_000
    assert peak < 8 << 20  # of 10 MB of text, and 20 MB of tokens


def test_a_data_set_of_several_splits_is_read_by_its_training_split(cache: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    one, other = (datasets.Dataset.from_dict({"text": texts}) for texts in (TEXTS, ["0 other"]))
    datasets.DatasetDict(train=one, test=other).save_to_disk(str(tmp_path / "saved"))
    corpus = open_corpus(config(tmp_path / "saved"))
    assert texts_of(corpus) == TEXTS
    assert "split train (not read: test)" in corpus.describe()
    shuffled = one.shuffle(seed=0).select(range(30))  # an indirection that is saved beside the rows
    shuffled.save_to_disk(str(tmp_path / "shuffled"))
    assert set(texts_of(open_corpus(config(tmp_path / "shuffled")))) < set(TEXTS)


def test_a_name_of_the_hub_is_loaded_by_datasets(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    asked = []

    def load(name: str, config: str | None) -> object:
        asked.append((name, config))
        return datasets.DatasetDict(train=datasets.Dataset.from_dict({"text": TEXTS}))

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert texts_of(open_corpus(config("hf:owner/name"))) == TEXTS
    assert texts_of(open_corpus(config("hf:owner/name:raw-v1").with_absolute_paths())) == TEXTS
    assert asked == [("owner/name", None), ("owner/name", "raw-v1")]

    def offline(*args: object) -> None:
        raise ConnectionError("Couldn't reach\n'owner/name' on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    with pytest.raises(DataError) as caught:
        open_datasets("hf:owner/name")
    assert str(caught.value) == (
        "cannot open the data set hf:owner/name: Couldn't reach 'owner/name' on the Hub; it is read from the internet, "
        "or from the cache of datasets"
    )


def test_a_local_folder_by_datasets_own_readers(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    datasets.disable_progress_bars()
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))
    (tmp_path / "repo").mkdir()
    write_jsonl(tmp_path / "repo", [{"text": text} for text in TEXTS])
    monkeypatch.chdir(tmp_path)
    chosen = config("hf:./repo").with_absolute_paths()
    assert os.path.isabs(chosen.source.removeprefix("hf:"))
    assert texts_of(open_corpus(chosen)) == TEXTS


# --- what is refused, in one line --------------------------------------------------------------------------------


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
