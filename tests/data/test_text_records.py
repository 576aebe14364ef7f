"""Corpora of records and of compressed text: the same documents, whatever they lie in."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from places import SHARED
from stored_texts import assert_right, flip
from text_formats import RECORDS, json_lines, some_texts, write_jsonl, write_parquet, write_saved, zstd

from statewise.data.hugging_face import open_datasets
from statewise.data.splits import SPLITS
from statewise.data.stored_documents import StoredDocuments
from statewise.data.text import Corpus, TextDataConfig, open_corpus, open_tokenizer
from statewise.errors import DataError

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
