"""Several runs: folders, processes, exact resume, one that diverges, folders of 0.1.0, the command line."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from training_runs import Recorder, curve, small_run, weights, with_train

from statewise import cli
from statewise.checkpoints import resolve
from statewise.errors import CheckpointError, ConfigError, DivergedError, TrainingError
from statewise.training import RunConfig, TerminalReporter, TrainResult, read_metrics, several, train_run
from statewise.training.report import summary_table
from statewise.training.several import SeveralResult, summary, train_several
from statewise.training.several_folder import begin_folder, read_one_of, seeds_and_rates
from statewise.training.workers import threads_each

SETTINGS: dict[str, Any] = {"steps": 12, "save_every": 4, "evaluate_every": 3, "threads": 1}


def same(ours: Path, theirs: Path, step: int = 12) -> None:
    for which in ("best", "latest"):
        assert resolve(ours, which).name == resolve(theirs, which).name
    assert curve(ours) == curve(theirs)
    assert weights(ours, step) == weights(theirs, step)


class StopOnce(Recorder):
    """Asks for the end once something holds."""

    def __init__(self, holds: Callable[[StopOnce], bool]) -> None:
        super().__init__()
        self.holds, self.asked = holds, False

    def event(self, record: Any) -> None:
        super().event(record)
        if not self.asked and self.holds(self):
            self.asked = True  # twice would kill
            os.kill(os.getpid(), signal.SIGTERM)


def have_trained(*names: str) -> Callable[[StopOnce], bool]:
    return lambda heard: {event["run"] for event in heard.events if event["kind"] == "train"} >= {*names}


@pytest.mark.usefixtures("forked_workers")
def test_in_processes_each_is_as_alone(tmp_path: Path) -> None:
    """Bit for bit; as many threads each as it would have had."""
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    heard = Recorder()
    result = train_several(runs, tmp_path / "runs", workers=2, reporter=heard)
    assert (result.exit_code, result.diverged, {*result.cpu_seconds}) == (0, {}, {*runs})
    assert heard.closed
    for name, run in runs.items():
        alone = train_run(run, tmp_path / "alone" / name)
        same(tmp_path / "runs" / name, tmp_path / "alone" / name)
        changed = {"folder": alone.folder, "checkpoint": alone.checkpoint, "seconds": alone.seconds}
        assert replace(result.runs[name], **changed) == alone
        kinds = [event["kind"] for event in heard.events if event.get("run") == name]
        assert (kinds[0], kinds[-1]) == ("start", "end")
        assert kinds.count("train") == 12
    last = heard.events[-1]
    assert (last["kind"], last["best_lr"], list(last["validation"])) == ("summary", None, list(runs))
    assert last["standard_deviation"] > 0


@pytest.mark.usefixtures("forked_workers")
def test_one_that_had_not_begun_is_begun_by_a_resume(tmp_path: Path) -> None:
    """Two at once of three runs: the third is begun from what the folder says of it."""
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 1, [1e-3, 3e-3, 5e-3])
    names = list(runs)
    endless = {name: with_train(run, steps=100_000) for name, run in runs.items()}
    begin_folder(tmp_path / "cut", endless)
    heard = StopOnce(have_trained(*names[:2]))
    cut = train_several(endless, tmp_path / "cut", workers=2, reporter=heard)
    assert cut.exit_code == 128 + signal.SIGTERM
    assert [event["kind"] for event in heard.events][-1] == "stop"  # one of all, and no summary of what is not there
    assert heard.events[-1]["message"].endswith(f"to continue: statewise train --resume {tmp_path / 'cut'}")
    assert sum(event["kind"] == "stop" for event in heard.events) == 1
    steps = {name: run.step for name, run in cut.runs.items()}
    assert list(steps) == names[:2]
    assert not (tmp_path / "cut" / names[2]).exists()
    assert read_one_of(tmp_path / "cut", names[2]) == endless[names[2]]
    for name, step in steps.items():
        assert resolve(tmp_path / "cut" / name, "latest").name == f"step-{step:08d}"
    total = max(steps.values()) + 3
    further = {name: with_train(run, steps=total) for name, run in endless.items()}
    assert train_several(further, tmp_path / "cut", resume=True, workers=2).exit_code == 0
    for name in names:
        assert [line["step"] for line in curve(tmp_path / "cut" / name, "train")] == list(range(1, total + 1))


@pytest.mark.usefixtures("forked_workers")
def test_stopped_and_resumed_every_bit_is_the_same(tmp_path: Path) -> None:
    """In one process and in two, beside the runs that nobody stops."""
    settings = {**SETTINGS, "steps": 60, "save_every": 20, "evaluate_every": 20}
    runs = seeds_and_rates(small_run(tmp_path, **settings), 2)
    train_several(runs, tmp_path / "whole", workers=1)
    for workers in (1, 2):
        folder = tmp_path / f"cut-{workers}"
        stop = StopOnce(lambda heard: heard.events[-1]["kind"] == "train")  # on a busy machine the other has not begun
        cut = train_several(runs, folder, workers=workers, reporter=stop)
        assert cut.signal == signal.SIGTERM
        assert train_several(runs, folder, resume=True, workers=workers).exit_code == 0
        for name in runs:
            same(folder / name, tmp_path / "whole" / name, 60)


def test_a_stop_during_the_last_save_of_a_run_stops_the_runs_after_it(tmp_path: Path) -> None:
    """That run is done; without runs after it nothing was stopped."""
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    first, last = runs

    def has_saved_all(name: str) -> Callable[[StopOnce], bool]:
        return lambda heard: (
            heard.events[-1].get("run") == name and "step-00000012" in str(heard.events[-1].get("path"))
        )

    cut = train_several(runs, tmp_path / "runs", workers=1, reporter=StopOnce(has_saved_all(first)))
    assert ([*cut.runs], cut.signal) == ([first], signal.SIGTERM)
    whole = train_several(runs, tmp_path / "runs", resume=True, workers=1, reporter=StopOnce(has_saved_all(last)))
    assert ([*whole.runs], whole.signal) == ([first, last], None)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found by /proc")
def test_a_signal_to_all_processes_saves_all(tmp_path: Path) -> None:
    """As a scheduler sends it: the parent then asks its processes once more, which would end them at once."""
    runs = seeds_and_rates(small_run(tmp_path, steps=100_000, threads=1), 2)

    def told(heard: StopOnce) -> bool:
        if not have_trained(*runs)(heard):
            return False
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            if b"statewise.training.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGTERM)
        return True

    cut = train_several(runs, tmp_path / "runs", workers=2, reporter=StopOnce(told))
    assert cut.exit_code == 128 + signal.SIGTERM
    for name, run in cut.runs.items():
        assert resolve(tmp_path / "runs" / name, "latest") == run.checkpoint
    assert list(cut.runs) == list(runs)


@pytest.mark.usefixtures("forked_workers")
def test_one_diverges_and_the_others_go_on(tmp_path: Path) -> None:
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 1, [1e-3, 1e38, 2e-3])
    heard = Recorder()
    result = train_several(runs, tmp_path / "bad", workers=2, reporter=heard)
    assert list(result.diverged) == ["lr-1e+38"]
    assert {name: r.step for name, r in result.runs.items()} == {"lr-0.001": 12, "lr-0.002": 12}
    with pytest.raises(TrainingError, match=r"^lr-1e\+38 went wrong, 2 of 3 runs did not; .*lr-1e\+38: "):
        result.require_all()
    (last,) = [m for m in read_metrics(tmp_path / "bad" / "lr-1e+38" / "metrics.jsonl") if m["kind"] == "diverged"]
    (told,) = [event for event in heard.events if event["kind"] == "diverged"]
    assert told == {**last, "run": "lr-1e+38"}
    assert "not finite" in last["what"]
    record = heard.events[-1]
    assert (record["kind"], record["standard_deviation"]) == ("summary", None)
    assert record["best_lr"] == min((0.001, 0.002), key=lambda lr: record["validation"][f"lr-{lr}"])
    assert record["mean"] == min(record["validation"].values())
    begun = time.time()
    again = train_several(dict.fromkeys(runs), tmp_path / "bad", resume=True, workers=1)
    assert again.diverged == result.diverged
    assert (tmp_path / "bad" / "lr-1e+38" / "metrics.jsonl").stat().st_mtime < begun  # it was left as it is


def test_all_diverge(tmp_path: Path) -> None:
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 1, [1e38, 1e37])
    for resume in (False, True):
        with pytest.raises(DivergedError, match="step "):
            train_several(runs, tmp_path / "runs", resume=resume, workers=1)


def test_each_goes_on_alone(tmp_path: Path) -> None:
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    train_several(runs, tmp_path / "runs", workers=1)
    longer = {name: with_train(run, steps=14) for name, run in runs.items()}
    assert train_run(longer["seed-1"], tmp_path / "runs" / "seed-1", resume=True).step == 14
    result = train_several(longer, tmp_path / "runs", resume=True, workers=1)
    assert {run.step for run in result.runs.values()} == {14}


def test_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = small_run(tmp_path)
    runs = seeds_and_rates(run, 3)
    monkeypatch.setattr(several, "n_cores", lambda: 8)
    assert several._workers(runs, None) == 3
    assert several._workers(runs, 2) == 2
    assert several._workers({name: with_train(r, threads=4) for name, r in runs.items()}, None) == 2
    assert several._workers(seeds_and_rates(run, 20), None) == 8
    with pytest.raises(ConfigError, match="workers=0 is too few"):
        several._workers(runs, 0)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert several._workers(runs, None) == 1
    assert several._workers(runs, 2) == 2
    assert threads_each(10**6) == 1


def test_of_several_rates_the_best_is_named(tmp_path: Path) -> None:
    """By the mean over its seeds, whichever way the metric goes, and not one of which a seed diverged."""
    scores = {"a": 1.0, "b": 3.0, "c": 0.5, "d": 2.0, "e": 0.1}
    lrs = {"a": 1e-3, "b": 1e-3, "c": 2e-3, "d": 2e-3, "e": 3e-3, "f": 3e-3}

    def of(higher_is_better: bool, diverged: list[str]) -> tuple[float, float, float]:
        run = TrainResult(
            folder=tmp_path,
            checkpoint=None,
            step=1,
            seconds=1.0,
            metric="score",
            higher_is_better=higher_is_better,
            validation=None,
            signal=None,
        )
        ended = {name: replace(run, validation=score) for name, score in scores.items()}
        result = SeveralResult(runs=ended, diverged=dict.fromkeys(diverged, ""), cpu_seconds={}, signal=None)
        record = summary(result, lrs)
        table = io.StringIO()
        Console(file=table, width=100).print(summary_table(record))
        assert f"the best rate, {record['best_lr']:g}" in table.getvalue()
        return record["best_lr"], record["mean"], record["standard_deviation"]

    assert of(True, ["f"]) == (1e-3, 2.0, pytest.approx(2**0.5))
    assert of(False, ["f"]) == (2e-3, 1.25, pytest.approx(1.125**0.5))
    assert of(False, []) == (3e-3, 0.1, None)


@pytest.mark.usefixtures("forked_workers")
def test_a_row_for_each_on_a_terminal(tmp_path: Path) -> None:
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    reporter = TerminalReporter(console)
    shown: set[tuple[str, ...]] = set()
    progress = reporter.progress

    def kept(fraction: float, record: Any) -> None:
        progress(fraction, record)
        shown.add(tuple(sorted(reporter.rows)))

    reporter.progress = kept  # type: ignore[method-assign]
    train_several(runs, tmp_path / "runs", workers=2, reporter=reporter)
    assert shown
    assert shown <= {("seed-0",), ("seed-1",), ("seed-0", "seed-1")}
    assert not reporter.rows
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("weight decay") == 1  # one table of groups
    for wanted in ("seed-0, step 3: validation", "seed-1, step 3: validation", "seed-1 step", "standard deviation"):
        assert wanted in text


@pytest.mark.usefixtures("forked_workers")
def test_a_run_that_is_refused_in_its_process(tmp_path: Path) -> None:
    """Its own error, after the others have ended."""
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    train_run(runs["seed-1"], tmp_path / "runs" / "seed-1")
    with pytest.raises(CheckpointError, match="seed-1 already holds a run"):
        train_several(runs, tmp_path / "runs", workers=2)


@pytest.mark.usefixtures("forked_workers")
def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    tiny = ["train", "--preset", "tiny", "--set", "train.threads=1"]
    assert cli.run([*tiny, "--steps", "3", "--seeds", "2", "--seed", "5", "--workers", "2", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["seed-5", "seed-6", "stack.json"]
    printed = capsys.readouterr().out
    assert '"kind": "summary"' in printed
    assert '"best_lr": null' in printed
    for command in (["info"], ["evaluate"], ["generate", "--prompt", "a"], ["profile"]):
        assert cli.run([*command, str(out)]) == 2
        assert f"{out} holds several runs, seed-5, seed-6; name one of them: {out}/seed-5" in capsys.readouterr().err
    assert cli.run(["train", "--resume", str(out), "--steps", "5", "--workers", "1"]) == 0
    assert cli.run(["train", "--resume", str(out / "seed-5"), "--steps", "6"]) == 0
    assert cli.run(["info", str(out / "seed-6")]) == 0
    capsys.readouterr()
    for arguments, message in (
        ([*tiny, "--seeds", "2", "--out", str(out)], "already holds runs"),
        (["train", "--resume", str(out), "--seeds", "2"], "cannot change when you resume it"),
        ([*tiny, "--lrs", "1e-3,x", "--out", str(tmp_path / "b")], "not a list of numbers"),
        ([*tiny, "--lrs", "1e-3", "--lr", "1e-3", "--out", str(tmp_path / "b")], "--lr is for one learning rate"),
        ([*tiny, "--workers", "2", "--out", str(tmp_path / "b")], "--workers is for several runs"),
    ):
        assert cli.run(arguments) in (1, 2, 3, 4)
        errors = capsys.readouterr().err
        assert message in errors
        assert errors.count("\n") == 1


class TestGoodEnough:
    """stop_at: a run that is as good as it was asked to become ends, alone or among others."""

    def run(self, folder: Path, **train: Any) -> RunConfig:
        return small_run(folder, steps=30, evaluate_every=2, lr=3e-2, seed=1, keep_best=False, **train)

    def test_alone(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, stop_at=7.9, stop_after=2)
        result = train_run(run, tmp_path / "run")
        looks = curve(tmp_path / "run", "evaluation")
        good = [look["bits_per_byte"] <= 7.9 for look in looks]
        assert result.step == looks[-1]["step"] < 30
        assert good[-2:] == [True, True]
        assert not any(a and b for a, b in pairwise(good[:-1]))
        assert train_run(run, tmp_path / "run", resume=True).step == result.step

    def test_among_others(self, tmp_path: Path) -> None:
        runs = seeds_and_rates(self.run(tmp_path, stop_at=7.9, stop_after=2), 1, [3e-2, 1e-5])
        fast, slow = runs
        result = train_several(runs, tmp_path / "runs", workers=1)
        assert result.runs[fast].step < result.runs[slow].step == 30
        again = train_several(runs, tmp_path / "runs", resume=True, workers=1)
        for name in runs:
            assert replace(again.runs[name], seconds=0.0) == replace(result.runs[name], seconds=0.0)
