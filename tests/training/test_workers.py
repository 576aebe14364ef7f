"""Parts in several processes: results as here, stopped and gone on with, and nothing lost by one that fails."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import training_runs
import worker_jobs
from forked_programs import program

from statewise.errors import ConfigError, DataError
from statewise.reproduce.progress import JsonWatcher, TerminalWatcher, Watcher, make_watcher
from statewise.reproduce.work import Job, Stopped, Work, open_work
from statewise.training import workers
from statewise.training.workers import WorkerError, threads_each


class Heard(Watcher):
    def __init__(self) -> None:
        self.done: list[tuple[str, bool]] = []
        self.within: list[tuple[str, str]] = []
        self.shown: list[tuple[str, float]] = []

    def event(self, record: Any) -> None:
        if record["kind"] == "part":
            self.done.append((record["part"], record["found"]))

    def event_within(self, part: str, record: Any, line: str | None) -> None:
        self.within.append((part, record["kind"]))

    def progress(self, part: str, fraction: float, shown: str = "") -> None:
        self.shown.append((part, fraction))


def opened(folder: Path, watcher: Watcher | None = None) -> Work:
    return open_work(folder, "hippo", training_runs.small_model(), watcher)


def gone(folder: Path) -> bool:
    """Whether the processes that waited have ended."""
    for file in folder.glob("waits-*"):
        try:
            os.kill(int(file.name.split("-")[1]), 0)
            return False
        except ProcessLookupError:
            pass
    return True


def test_jobs_are_done_side_by_side_and_once(tmp_path: Path) -> None:
    heard = Heard()
    jobs = {f"part-{i}": Job(worker_jobs.where, (i / 3,)) for i in range(3)}
    work = opened(tmp_path / "run", heard)
    work.part("part-0", lambda: {"x": "found"})
    results = work.parts({**jobs, "part-3": Job(worker_jobs.where, (float("nan"),))}, n_workers=2)
    assert list(results) == ["part-0", "part-1", "part-2", "part-3"]
    assert [result["x"] for result in results.values()] == ["found", 1 / 3, 2 / 3, None]
    there = [results[name] for name in ("part-1", "part-2", "part-3")]
    assert os.getpid() not in {result["pid"] for result in there}
    assert {result["threads"] for result in there} == {threads_each(2)}
    assert {result["omp"] for result in there} == {str(threads_each(2))}
    assert {part for part, fraction in heard.shown if fraction == 0.5} >= {"part-1", "part-2"}
    again = Heard()
    assert opened(tmp_path / "run", again).parts(jobs, n_workers=2) == {name: results[name] for name in jobs}
    assert again.done == [(name, True) for name in jobs]
    record = json.loads((tmp_path / "run" / "parts" / "part-1.json").read_text())
    assert record["environment"]["threads"] == threads_each(2)
    assert record["seconds"] >= 0 <= record["cpu_seconds"]


def test_one_worker_is_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    results = opened(tmp_path / "run").parts({"a": Job(worker_jobs.where, (1,))})
    assert results["a"]["pid"] == os.getpid()


def test_its_progress_is_told_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a part that trains nothing, as the questions of ``induction-heads``: training's bar needs a step's record."""
    stream = StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    opened(tmp_path / "run", make_watcher(stream)).parts({"a": Job(worker_jobs.where, (1,))})
    assert "a:" in stream.getvalue()


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="top of a module"):
        Job(lambda reporter: {})
    with pytest.raises(ConfigError, match="top of a module"):
        Job(partial(worker_jobs.where, 1))
    with pytest.raises(ConfigError, match="n_workers=0"):
        opened(tmp_path / "run").parts({}, n_workers=0)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("refuse", DataError, "^the file is empty; give another$"),
        ("fail", WorkerError, r"second failed: ZeroDivisionError: nothing to divide by \(worker_jobs.py, line \d+\)"),
        ("die", WorkerError, "second ended before it was done: killed by SIGKILL"),
    ],
)
def test_one_that_fails_stops_the_others_and_loses_nothing(
    tmp_path: Path, what: str, error: type[Exception], message: str
) -> None:
    jobs = {
        "first": Job(worker_jobs.where, (1,)),
        "waiting": Job(worker_jobs.wait, (str(tmp_path),)),
        "second": Job(worker_jobs.when_it_waits, (str(tmp_path), what)),
        "never": Job(worker_jobs.where, (1,)),
    }
    work = opened(tmp_path / "run")
    with pytest.raises(error, match=message):
        work.parts(jobs, n_workers=2)
    assert gone(tmp_path)
    assert [path.stem for path in (tmp_path / "run" / "parts").iterdir()] == ["first"]


@pytest.mark.usefixtures("forked_workers")
def test_a_signal_stops_all(tmp_path: Path) -> None:
    jobs = {
        "waiting": Job(worker_jobs.wait, (str(tmp_path),)),
        "second": Job(worker_jobs.when_it_waits, (str(tmp_path), str(os.getpid()))),
    }
    with pytest.raises(Stopped) as stopped:
        opened(tmp_path / "run").parts(jobs, n_workers=2)
    assert stopped.value.signal == signal.SIGTERM
    assert gone(tmp_path)


@pytest.mark.usefixtures("forked_workers")
def test_one_that_does_not_stop_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_SECONDS_TO_STOP", 0.3)
    jobs = {
        "stubborn": Job(worker_jobs.wait_on, (str(tmp_path),)),
        "second": Job(worker_jobs.when_it_waits, (str(tmp_path), "fail")),
    }
    with pytest.raises(WorkerError, match="second failed"):
        opened(tmp_path / "run").parts(jobs, n_workers=2)
    assert gone(tmp_path)


def test_nothing_done_is_begun_anew_with_other_settings(tmp_path: Path) -> None:
    """As after a setting that was refused; not once there is anything."""
    folder = tmp_path / "run"
    opened(folder)
    other = training_runs.small_model(vocab_size=9)
    with pytest.raises(ConfigError, match="not 'delay'"):
        open_work(folder, "delay", other)
    open_work(folder, "hippo", other).part("a", lambda: {"x": 1})
    assert json.loads((folder / "reproduction.json").read_text())["settings"]["vocab_size"] == 9
    with pytest.raises(ConfigError, match="begun with another"):
        opened(folder)
    (folder / "parts" / "a.json").rename(tmp_path / "a.json")
    (folder / "run-a").mkdir()
    with pytest.raises(ConfigError, match="begun with another"):
        opened(folder)


def test_nobody_outlives_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "import sys, worker_jobs; from test_workers import opened; from pathlib import Path\n"
        "from statewise.reproduce.work import Job\n"
        "f = sys.argv[1]; opened(Path(f, 'run')).parts({c: Job(worker_jobs.wait, (f,)) for c in 'ab'}, 2)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    parent = program(["-c", code, str(tmp_path)], env=environment)  # whose own processes are new ones
    try:
        until(lambda: len(list(tmp_path.glob("waits-*"))) == 2)
    finally:
        parent.kill()
        parent.wait()
    until(lambda: gone(tmp_path))


def until(holds: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


class TestTraining:
    class Interrupting(Heard):
        """Stops everything once both runs have begun."""

        asked = False

        def event_within(self, part: str, record: Any, line: str | None) -> None:
            super().event_within(part, record, line)
            if not self.asked and {part for part, kind in self.within if kind == "train"} == {"a", "b"}:
                self.asked = True  # twice would kill
                os.kill(os.getpid(), signal.SIGINT)

    def jobs(self, folder: Path, steps: int) -> dict[str, Job]:
        config = training_runs.small_run(folder, steps=steps, threads=1)
        return {name: Job(worker_jobs.trained, (config, str(folder / f"train-{name}"))) for name in "ab"}

    @pytest.mark.usefixtures("forked_workers")
    def test_stopped_and_gone_on_with(self, tmp_path: Path) -> None:
        with pytest.raises(Stopped):
            opened(tmp_path / "run", self.Interrupting()).parts(self.jobs(tmp_path, 100_000), n_workers=2)
        steps = {}
        for name in "ab":
            checkpoints = sorted((tmp_path / f"train-{name}" / "checkpoints").glob("step-*"))
            steps[name] = int(checkpoints[-1].name.split("-")[1])
        assert min(steps.values()) >= 1
        heard = Heard()
        total = max(steps.values()) + 3
        results = opened(tmp_path / "run", heard).parts(self.jobs(tmp_path, total), n_workers=2)
        assert [result["step"] for result in results.values()] == [total, total]
        for name in "ab":
            lines = training_runs.curve(tmp_path / f"train-{name}", "train")
            assert [line["step"] for line in lines] == list(range(1, total + 1))


def test_what_is_shown() -> None:
    stream = StringIO()
    watcher = JsonWatcher(stream)
    watcher.progress("a", 0.5, "loss 1")
    watcher.event_within("a", {"kind": "train", "step": 3}, None)
    assert [json.loads(line) for line in stream.getvalue().splitlines()] == [{"kind": "train", "part": "a", "step": 3}]
    from rich.console import Console

    console = Console(file=StringIO(), force_terminal=True, width=80)
    terminal = TerminalWatcher(console, StringIO())
    terminal.progress("a", 0.25, "loss 1.5")
    terminal.progress("b", 0.75, "loss 2.5")
    terminal.bar.refresh()
    terminal.event_within("a", {"kind": "train"}, "not shown")
    terminal.event_within("b", {"kind": "warning"}, "mind the gap")
    assert set(terminal.rows) == {"a", "b"}
    terminal.event({"kind": "part", "part": "a", "done": 1, "of": 2, "seconds": 1.0, "found": False})
    assert set(terminal.rows) == {"b"}
    terminal.event({"kind": "part", "part": "b", "done": 2, "of": 2, "seconds": 1.0, "found": False})
    assert terminal.bar is None
    text = console.file.getvalue()  # type: ignore[attr-defined]
    for wanted in ("loss 1.5", "75%", "b: mind the gap", "1 of 2  a: 1.0 s", "2 of 2  b"):
        assert wanted in text
    assert "not shown" not in text
