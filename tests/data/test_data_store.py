"""The token store: what is read is what was written, whatever happened to the run that wrote it."""

from __future__ import annotations

import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stored_texts import assert_right, config_of, flip, refused
from test_data_tokenizers import TEXT, byte_level

from statewise.data.made_once import cache_folder
from statewise.data.sources import find_documents
from statewise.data.splits import SPLITS, Part
from statewise.data.text import TextDataConfig, open_corpus
from statewise.data.token_store import _piece_end, read_part
from statewise.data.tokenizers import FileTokenizer
from statewise.errors import DataError


def test_tokens_are_made_once(cache: Path, folder: Path) -> None:
    seen: list[tuple[int, int]] = []
    first = open_corpus(config_of(folder), progress=lambda done, total: seen.append((done, total)))
    assert_right(first)
    total = first.source.n_bytes
    assert seen[-1] == (total, total)
    assert seen == sorted(seen)
    assert isinstance(first.split("train").tokens, np.memmap)
    (store,) = cache.iterdir()
    assert sorted(path.name for path in store.iterdir()) == ["documents.bin", "meta.json", "tokens.bin"]
    written = (store / "tokens.bin").stat().st_mtime_ns
    seen.clear()
    again = open_corpus(config_of(folder), progress=lambda done, total: seen.append((done, total)))
    assert_right(again)
    assert not seen
    assert (store / "tokens.bin").stat().st_mtime_ns == written
    assert again.fingerprint == first.fingerprint


def test_other_text_other_divisions_and_other_tokenizers_are_other_stores(
    cache: Path, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level(), "utf-8")
    for path in folder.iterdir():
        path.write_bytes(path.read_bytes().replace(b"\xe9", b""))
    config = config_of(folder)
    fingerprints = {open_corpus(config).fingerprint}
    fingerprints.add(
        open_corpus(TextDataConfig(source=str(folder), validation_fraction=0.4, test_fraction=0.2)).fingerprint
    )
    fingerprints.add(
        open_corpus(
            TextDataConfig(
                source=str(folder),
                tokenizer=str(tmp_path / "tokenizer.json"),
                validation_fraction=0.2,
                test_fraction=0.2,
            )
        ).fingerprint
    )
    changed = folder / "07.txt"
    before = changed.stat()
    changed.write_bytes(changed.read_bytes().replace(b"7", b"8"))  # the size stays the same
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    corpus = open_corpus(config)
    assert_right(corpus)
    fingerprints.add(corpus.fingerprint)
    assert len(fingerprints) == len(list(cache.iterdir())) == 4
    os.utime(changed)  # touched, but not changed: made again, and found to be the same
    assert open_corpus(config).fingerprint == corpus.fingerprint


def other_checksum(path: Path) -> None:
    meta = json.loads((path / "meta.json").read_text())
    meta["files"]["tokens.bin"]["blake2b"] = "0" * 64
    (path / "meta.json").write_text(json.dumps(meta))


def replace_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("?")


DAMAGE: dict[str, Callable[[Path], object]] = {
    "tokens cut short": lambda store: os.truncate(store / "tokens.bin", 1001),
    "tokens emptied": lambda store: os.truncate(store / "tokens.bin", 0),
    "tokens missing": lambda store: (store / "tokens.bin").unlink(),
    "a bit of the tokens": lambda store: flip(store / "tokens.bin"),
    "a bit of the documents": lambda store: flip(store / "documents.bin"),
    "documents cut short": lambda store: os.truncate(store / "documents.bin", 16),
    "no meta data": lambda store: (store / "meta.json").unlink(),
    "half of the meta data": lambda store: os.truncate(store / "meta.json", 100),
    "other meta data": lambda store: (store / "meta.json").write_text("[1]"),
    "another checksum": other_checksum,
    "an empty folder": lambda store: [path.unlink() for path in store.iterdir()],
    "a file in its place": replace_by_file,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_made_again(damage: str, cache: Path, folder: Path) -> None:
    fingerprint = open_corpus(config_of(folder)).fingerprint
    (store,) = cache.iterdir()
    DAMAGE[damage](store)
    seen: list[int] = []
    corpus = open_corpus(config_of(folder), progress=lambda done, total: seen.append(done))
    assert seen
    assert_right(corpus)
    assert corpus.fingerprint == fingerprint
    assert list(cache.iterdir()) == [store]  # nothing is left beside it


def test_a_good_store_is_read_where_nothing_can_be_written(
    cache: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_corpus(config_of(folder))

    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", fail)
    monkeypatch.setattr(os, "rename", fail)
    assert_right(open_corpus(config_of(folder)))


def test_a_document_that_changes_or_goes_is_refused(cache: Path, folder: Path) -> None:
    last = sorted(folder.iterdir())[-1]

    def change(done: int, total: int) -> None:
        with last.open("ab") as file:
            file.write(b"more")

    with pytest.raises(DataError, match=r"29.txt changed while it was being read"):
        open_corpus(config_of(folder), progress=change)
    corpus = open_corpus(config_of(folder))
    (name,) = [name for name in SPLITS if any(part.document.path == last for part in corpus.parts[name])]
    last.unlink()
    with pytest.raises(DataError, match=r"cannot read .*29.txt: No such file"):
        corpus.split(name).text_bytes()
    assert corpus.split(name).n_tokens  # the tokens are still there


def test_text_that_is_not_utf8_needs_the_byte_tokenizer(cache: Path, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text(byte_level(), "utf-8")
    config = TextDataConfig(source=str(folder / "29.txt"), tokenizer=str(tmp_path / "tokenizer.json"))
    position = (folder / "29.txt").read_bytes().index(b"\xe9")
    assert f'29.txt is not UTF-8 at byte {position}; convert or remove it, or use the "bytes"' in refused(config)
    assert list(cache.iterdir()) == []


def test_pieces_of_a_long_document_are_tokenised_as_the_whole(tmp_path: Path) -> None:
    tokenizer = FileTokenizer(byte_level())
    text = (TEXT + "\n\n\n  x\ny\r\n\r\n z\n") * 30
    (tmp_path / "long.txt").write_bytes(text.encode())
    (document,) = find_documents(str(tmp_path / "long.txt")).documents
    pieces = list(read_part(Part(document, 0, document.size), piece_bytes=1500))
    assert len(pieces) > 5
    assert b"".join(pieces) == text.encode()
    assert [int(token) for piece in pieces for token in tokenizer.encode_bytes(piece)] == tokenizer.encode(text)
    begin, end = len(TEXT.encode()), 3 * len(TEXT.encode()) + 7
    assert b"".join(read_part(Part(document, begin, end), piece_bytes=100)) == text.encode()[begin:end]


@given(st.text(min_size=2).filter(lambda text: len(text.encode()) > 1), st.integers(0, 3))
def test_a_piece_ends_at_a_character(text: str, cut: int) -> None:
    data = text.encode()
    data = data[: max(5, len(data) - cut)]
    end = _piece_end(data)
    assert 0 < end <= len(data)
    if len(data) > 4:
        data[:end].decode()


def test_memory_does_not_grow_with_the_document(cache: Path, tmp_path: Path) -> None:
    line = b"all work and no play makes jack a dull boy\n"
    (tmp_path / "large.txt").write_bytes(line * (32_000_000 // len(line)))
    config = TextDataConfig(source=str(tmp_path / "large.txt"))
    tracemalloc.start()
    try:
        corpus = open_corpus(config)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert corpus.split("train").n_bytes > 28_000_000
    assert peak < 25_000_000  # the tokens alone are 64 million bytes


def test_where_the_cache_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("STATEWISE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "statewise"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "statewise"
