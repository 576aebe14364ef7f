"""A token store whose build was killed, met another or found a full disk."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from stored_texts import assert_right, config_of, flip, refused

from statewise.data.made_once import ABANDONED_SECONDS
from statewise.data.text import TextDataConfig, open_corpus

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
