"""The token store: what is read is what was written, whatever happened to the run that wrote it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_data_tokenizers import TEXT, byte_level

from statewise.data.made_once import ABANDONED_SECONDS, cache_folder
from statewise.data.sources import find_documents
from statewise.data.splits import SPLITS, Part
from statewise.data.text import Corpus, TextDataConfig, open_corpus
from statewise.data.token_store import _piece_end, read_part
from statewise.data.tokenizers import FileTokenizer
from statewise.errors import DataError


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test's own."""
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tokens"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Thirty small documents, some ill-formed."""
    root = tmp_path / "texts"
    root.mkdir()
    for i in range(30):
        (root / f"{i:02}.txt").write_bytes(f"document {i}\n".encode() * (i + 1) + b"\xe9\n")
    return root


def config_of(folder: Path) -> TextDataConfig:
    return TextDataConfig(source=str(folder), validation_fraction=0.2, test_fraction=0.2)


def assert_right(corpus: Corpus) -> None:
    """The definition: each document after its document token, split after split, as bytes."""
    for name in SPLITS:
        split = corpus.split(name)
        texts = [part.document.path.read_bytes()[part.begin : part.end] for part in corpus.parts[name]]
        expected = [token for text in texts for token in [256, *text]]
        assert split.tokens.dtype == np.uint16
        assert np.array_equal(split.tokens, np.array(expected))
        assert split.document_bytes.tolist() == [len(text) for text in texts]
        assert np.diff(split.document_offsets).tolist() == [len(text) + 1 for text in texts]
        assert (split.tokens[split.document_offsets[:-1]] == 256).all()
        assert split.n_tokens == len(expected)
        assert split.text_bytes() == b"".join(texts)
        assert split.n_bytes == len(split.text_bytes())


def refused(config: TextDataConfig) -> str:
    with pytest.raises(DataError) as caught:
        open_corpus(config)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


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


# A process without torch and without threads, which forks children that die at a given event of their own build.
CHILDREN = """
import os, random, signal, sys, time
from statewise.data.text import TextDataConfig, open_corpus

source, root, what, n = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
config = TextDataConfig(source=source, validation_fraction=0.2, test_fraction=0.2)

def die_at(event):
    left = [event]
    def count(*_):
        left[0] -= 1
        if left[0] < 0:
            os.kill(os.getpid(), signal.SIGKILL)
    fsync = os.fsync
    os.fsync = lambda descriptor: (count(), fsync(descriptor), count())
    sys.addaudithook(
        lambda name, args: count() if name in ("open", "os.rename", "os.mkdir") and root in str(args) else None
    )
    open_corpus(config, progress=count)

def build_together(start):
    while time.time() < start:
        pass
    open_corpus(config)

generator = random.Random(0)
start = time.time() + 0.05
children = []
for i in range(n):
    os.environ["STATEWISE_CACHE"] = os.path.join(root, "0" if what == "together" else str(i))
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            if what == "events":
                die_at(i)
            elif what == "moments":
                open_corpus(config)
            else:
                build_together(start)
            status = 0
        finally:
            os._exit(status)
    if what == "together":
        children.append(pid)
    elif what == "moments" and i > 0:
        time.sleep(generator.uniform(0, seconds))
        os.kill(pid, signal.SIGKILL)
        print(os.waitpid(pid, 0)[1])
    else:
        begin = time.perf_counter()
        print(os.waitpid(pid, 0)[1])
        seconds = time.perf_counter() - begin
for pid in children:
    print(os.waitpid(pid, 0)[1])
"""


def run_children(source: str, root: Path, what: str, n: int) -> list[int]:
    """The exit status of each child, as waitpid gives it."""
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN, source, str(root), what, str(n)], check=True, capture_output=True, text=True
    )
    return [int(line) for line in done.stdout.split()]


def test_a_build_killed_at_any_event_leaves_nothing_that_is_read(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kill -9 before and after every open, rename, fsync and document of the build, one after the other."""
    n = 80
    statuses = run_children(str(folder), tmp_path / "caches", "events", n)
    n_killed = statuses.count(signal.SIGKILL)
    assert statuses == [signal.SIGKILL] * n_killed + [0] * (n - n_killed)
    assert 45 < n_killed < n  # 30 documents, and the rest
    left_over = published = 0
    for i in range(n):
        tokens = tmp_path / "caches" / str(i) / "tokens"
        monkeypatch.setenv("STATEWISE_CACHE", str(tokens.parent))
        hidden = [path for path in tokens.glob("*") if path.name.startswith(".")]
        left_over += len(hidden)
        published += len(list(tokens.glob("*"))) - len(hidden)
        assert_right(open_corpus(config_of(folder)))
    assert left_over > 40
    assert published > 0


def test_a_build_killed_at_random_moments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard library's text, killed by the clock; the first is not killed, but timed."""
    n = 10
    config = TextDataConfig(validation_fraction=0.2, test_fraction=0.2)
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "reference"))
    expected = open_corpus(config)
    statuses = run_children("stdlib", tmp_path / "caches", "moments", n)
    assert set(statuses) <= {0, signal.SIGKILL}
    assert signal.SIGKILL in statuses
    for i in range(n):
        monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "caches" / str(i)))
        corpus = open_corpus(config)
        assert corpus.fingerprint == expected.fingerprint
        assert np.array_equal(corpus.store.tokens, expected.store.tokens)


def test_processes_that_build_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "caches" / "0"))
    tokens = tmp_path / "caches" / "0" / "tokens"
    assert run_children(str(folder), tmp_path / "caches", "together", 4) == [0] * 4
    (store,) = tokens.iterdir()
    flip(store / "tokens.bin")  # and all find the same damaged store
    assert run_children(str(folder), tmp_path / "caches", "together", 4) == [0] * 4
    assert list(tokens.iterdir()) == [store]
    assert_right(open_corpus(config_of(folder)))


def test_abandoned_builds_are_removed_and_running_ones_are_not(cache: Path, folder: Path) -> None:
    for name, age in ((".abandoned", ABANDONED_SECONDS + 60), (".running", ABANDONED_SECONDS - 600)):
        (cache / name).mkdir(parents=True)
        (cache / name / "tokens.bin").write_bytes(b"\0" * 10)
        for path in (cache / name / "tokens.bin", cache / name):
            os.utime(path, (time.time() - age, time.time() - age))
    open_corpus(config_of(folder))
    assert [path.name for path in cache.glob(".*")] == [".running"]


def test_a_full_disk_and_a_folder_that_cannot_be_written(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = (
        "import resource, sys\n"
        "from statewise.data.text import TextDataConfig, open_corpus\n"
        "from statewise.errors import DataError\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
        "try:\n    open_corpus(TextDataConfig())\n"
        "except DataError as error:\n    print(error)\n"
    )
    environment = {**os.environ, "STATEWISE_CACHE": str(tmp_path / "full")}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert "cannot write the token cache in" in done.stdout
    assert "File too large; set STATEWISE_CACHE to a folder with room" in done.stdout
    assert list((tmp_path / "full" / "tokens").iterdir()) == []
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STATEWISE_CACHE", str(tmp_path / "file" / "cache"))
    assert "Not a directory; set STATEWISE_CACHE" in refused(config_of(folder))


def test_an_interrupted_build_cleans_up(cache: Path, folder: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        open_corpus(config_of(folder), progress=interrupt)
    assert list(cache.iterdir()) == []


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
