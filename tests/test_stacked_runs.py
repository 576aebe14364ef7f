"""Runs side by side: folders, exact resume, one that diverges, what cannot be stacked, the command line."""

from __future__ import annotations

import io
import os
import shutil
import signal
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from training import Recorder, curve, small_model, small_run

from statewise import cli
from statewise.checkpoints import resolve
from statewise.errors import CheckpointError, ConfigError, DivergedError, TrainingError
from statewise.mixers.s4d import S4DConfig
from statewise.train import RunConfig, TrainResult, read_metrics, train
from statewise.train.report import summary_table
from statewise.train.run_state import RunState
from statewise.train.stack import Stack, Update
from statewise.train.stack_folder import begin_folder, runs_in, seeds_and_rates
from statewise.train.stacked import StackResult, summary, train_stack

SETTINGS: dict[str, Any] = {"steps": 12, "save_every": 4, "evaluate_every": 3, "threads": 1}


def weights(run: Path, step: int = 12) -> bytes:
    return (run / f"checkpoints/step-{step:08d}/model.safetensors").read_bytes()


def stop_after(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    update, done = Stack.update, [0]

    def counted(stack: Stack) -> Update:
        result = update(stack)
        done[0] += 1
        if done[0] == step:
            os.kill(os.getpid(), signal.SIGTERM)
        return result

    monkeypatch.setattr(Stack, "update", counted)


def test_stopped_and_resumed_every_bit_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2, [1e-3, 3e-3])
    whole = train_stack(runs, tmp_path / "whole")
    assert whole.stacked
    assert whole.exit_code == 0
    with monkeypatch.context() as patch:
        stopped = Recorder()
        stop_after(7, patch)
        cut = train_stack(runs, tmp_path / "cut", reporter=stopped)
    assert cut.exit_code == 128 + signal.SIGTERM
    assert [event["kind"] for event in stopped.events][-1] == "stop"  # and no summary of what is not there
    assert "runs/*/checkpoints/step-00000007" in stopped.events[-1]["message"].replace("/cut/", "/runs/")
    assert {run.step for run in cut.runs.values()} == {7}
    # As if it had been killed while it saved: one has a checkpoint that the others have not
    shutil.rmtree(tmp_path / "cut" / "lr-0.001-seed-0" / "checkpoints" / "step-00000007")
    reporter = Recorder()
    again = train_stack(dict.fromkeys(runs), tmp_path / "cut", resume=True, reporter=reporter)
    assert again.exit_code == 0
    assert sum("goes back" in event.get("message", "") for event in reporter.events) == 3
    for name in runs:
        for which in ("best", "latest"):
            assert resolve(tmp_path / "cut" / name, which).name == resolve(tmp_path / "whole" / name, which).name
        assert curve(tmp_path / "cut" / name) == curve(tmp_path / "whole" / name)
        assert weights(tmp_path / "cut" / name) == weights(tmp_path / "whole" / name)


def test_what_a_killed_save_left_does_not_count_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would be the latest until the stack is there again, and push out the checkpoints that all have."""
    settings: dict[str, Any] = {"steps": 8, "save_every": 4, "keep_last": 1, "keep_best": False}
    runs, folder = seeds_and_rates(small_run(tmp_path, **settings), 2), tmp_path / "runs"
    prune = RunState.prune
    with monkeypatch.context() as patch:
        patch.setattr(RunState, "prune", lambda state: prune(state) if state.progress.step < 8 else None)
        train_stack(runs, folder)  # as if killed before the last checkpoints but one were deleted
    shutil.rmtree(folder / "seed-1" / "checkpoints" / "step-00000008")
    newer = weights(folder / "seed-0", 8)
    shorter = {name: replace(run, train=replace(run.train, steps=6)) for name, run in runs.items()}
    train_stack(shorter, folder, resume=True)
    for name in runs:
        assert resolve(folder / name, "latest").name == resolve(folder / name).name == "step-00000006"
    kept = folder / "seed-0" / "checkpoints" / "abandoned" / "step-00000008" / "model.safetensors"
    assert kept.read_bytes() == newer


def test_each_goes_on_alone_and_the_stack_never_goes_back_behind_that(tmp_path: Path) -> None:
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    train_stack(runs, tmp_path / "runs")
    longer = {name: replace(run, train=replace(run.train, steps=14)) for name, run in runs.items()}
    one = tmp_path / "runs" / "seed-1"
    assert train(longer["seed-1"], one, resume=True).step == 14
    before = {path: path.read_bytes() for path in one.rglob("*") if path.is_file()}
    with pytest.raises(
        CheckpointError, match=r"^seed-1 was gone on with alone, to step 14, .*--resume .*seed-1, or mo"
    ):
        train_stack(longer, tmp_path / "runs", resume=True)
    assert before == {path: path.read_bytes() for path in one.rglob("*") if path.is_file()}
    train(longer["seed-0"], tmp_path / "runs" / "seed-0", resume=True)
    assert train_stack(longer, tmp_path / "runs", resume=True).exit_code == 0  # both are there now


def test_one_diverges_and_the_others_go_on(tmp_path: Path) -> None:
    run = small_run(tmp_path, **SETTINGS)
    reporter = Recorder()
    result = train_stack(seeds_and_rates(run, 1, [1e-3, 1e38, 2e-3]), tmp_path / "bad", reporter=reporter)
    assert list(result.diverged) == ["lr-1e+38"]
    assert {name: r.step for name, r in result.runs.items()} == {"lr-0.001": 12, "lr-0.002": 12}
    with pytest.raises(TrainingError, match=r"^lr-1e\+38 went wrong, the other 2 runs did not; .*embedding.weight"):
        result.require_all()
    assert read_metrics(tmp_path / "bad" / "lr-1e+38" / "metrics.jsonl")[-1]["kind"] == "diverged"
    assert [event["run"] for event in reporter.events if event["kind"] == "diverged"] == ["lr-1e+38"]
    summary = reporter.events[-1]
    assert (summary["kind"], summary["standard_deviation"]) == ("summary", None)
    assert summary["best_lr"] == min((0.001, 0.002), key=lambda lr: summary["validation"][f"lr-{lr}"])
    assert summary["mean"] == min(summary["validation"].values())
    assert "the last checkpoints are" in next(e["message"] for e in reporter.events if e["kind"] == "end")
    train_stack(seeds_and_rates(run, 1, [1e-3, 2e-3]), tmp_path / "good")
    for good, bad in zip(curve(tmp_path / "good" / "lr-0.001"), curve(tmp_path / "bad" / "lr-0.001")):
        assert bad["kind"] == good["kind"]
        assert bad["loss"] == pytest.approx(good["loss"], rel=1e-5)
    again = train_stack(dict.fromkeys([*result.runs, "lr-1e+38"]), tmp_path / "bad", resume=True)
    assert list(again.diverged) == ["lr-1e+38"]


def test_one_after_the_other_each_says_where_it_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the runs cannot be stacked; those that diverged are not trained again."""
    monkeypatch.setattr(Stack, "refusal", lambda stack: "no")
    run = small_run(tmp_path, **SETTINGS)
    for rates, good in (([1e38, 1e-3, 1e37], ["lr-0.001"]), ([1e38, 1e37], [])):
        folder = tmp_path / f"runs-{len(rates)}"
        for resume in (False, True):
            runs = seeds_and_rates(run, 1, rates)
            if good:
                result = train_stack(runs, folder, resume=resume)
                assert (list(result.runs), list(result.diverged)) == (good, ["lr-1e+38", "lr-1e+37"])
            else:
                with pytest.raises(DivergedError, match="step "):
                    train_stack(runs, folder, resume=resume)
            for name in ("lr-1e+38", "lr-1e+37"):
                (last,) = [line for line in read_metrics(folder / name / "metrics.jsonl") if line["kind"] == "diverged"]
                assert name in last["message"]
                assert last["what"] in last["message"]
                assert name not in last["what"]


def documents(folder: Path, **settings: Any) -> RunConfig:
    """Text of many documents, read by convolutions, for which each document is a row: how many is up to the batch."""
    texts = folder / "texts"
    texts.mkdir(exist_ok=True)
    for i in range(120):
        (texts / f"{i}.txt").write_text(f"{i} squared is {i * i}; " * (1 + i % 5))
    base = small_run(folder, model=small_model(layers=(S4DConfig(d_state=4, dropout=0.1),)), **settings)
    return replace(base, data=replace(base.data, source=str(texts)))


def test_what_cannot_be_stacked_is_trained_one_after_the_other(tmp_path: Path) -> None:
    runs, reporter = seeds_and_rates(documents(tmp_path, **{**SETTINGS, "length": 64}), 2), Recorder()
    result = train_stack(runs, tmp_path / "runs", reporter=reporter)
    assert not result.stacked
    assert {r.step for r in result.runs.values()} == {12}
    warning = next(event["message"] for event in reporter.events if event["kind"] == "warning")
    assert warning.startswith("the runs are trained one after the other, since this model cannot be stacked: ")
    assert "\n" not in warning


def test_where_a_later_batch_cannot_be_stacked_its_models_take_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = documents(tmp_path, **{**SETTINGS, "length": 64})
    monkeypatch.setattr(Stack, "refusal", lambda stack: None)  # as if the first batch had had no documents
    runs = seeds_and_rates(run, 2)
    assert train_stack(runs, tmp_path / "runs").stacked
    train(runs["seed-1"], tmp_path / "alone")
    ours, alone = (curve(folder, "train")[-1] for folder in (tmp_path / "runs" / "seed-1", tmp_path / "alone"))
    assert ours["loss"] == pytest.approx(alone["loss"], rel=1e-5)


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
        result = StackResult(runs=ended, diverged=dict.fromkeys(diverged, ""), stacked=True, signal=None)
        record = summary(result, lrs)
        table = io.StringIO()
        Console(file=table, width=100).print(summary_table(record))
        assert f"the best rate, {record['best_lr']:g}" in table.getvalue()
        return record["best_lr"], record["mean"], record["standard_deviation"]

    assert of(True, ["f"]) == (1e-3, 2.0, pytest.approx(2**0.5))
    assert of(False, ["f"]) == (2e-3, 1.25, pytest.approx(1.125**0.5))
    assert of(False, []) == (3e-3, 0.1, None)


def test_bad_input(tmp_path: Path) -> None:
    run = small_run(tmp_path, **SETTINGS)
    with pytest.raises(ConfigError, match="each once"):
        seeds_and_rates(run, 1, [1e-3, 1e-3])
    with pytest.raises(ConfigError, match="first six digits"):
        seeds_and_rates(run, 1, [1e-3, 1.00000001e-3])
    with pytest.raises(ConfigError, match="at least 1"):
        seeds_and_rates(run, 0)
    other = replace(run, train=replace(run.train, steps=3))
    with pytest.raises(ConfigError, match="b and a differ in train"):
        train_stack({"a": run, "b": other}, tmp_path / "runs")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(CheckpointError, match=r"letter\.txt"):
        begin_folder(tmp_path / "full", ["seed-0"])
    (tmp_path / "stack.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        runs_in(tmp_path)


def test_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs"
    tiny = ["train", "--preset", "tiny", "--set", "train.threads=1"]
    assert cli.run([*tiny, "--steps", "3", "--seeds", "2", "--seed", "5", "--out", str(out)]) == 0
    assert sorted(path.name for path in out.iterdir()) == ["seed-5", "seed-6", "stack.json"]
    printed = capsys.readouterr().out
    assert '"kind": "summary"' in printed
    assert '"best_lr": null' in printed
    for command in (["info"], ["evaluate"], ["generate", "--prompt", "a"], ["profile"]):
        assert cli.run([*command, str(out)]) == 2
        assert f"{out} holds several runs, seed-5, seed-6; name one of them: {out}/seed-5" in capsys.readouterr().err
    assert cli.run(["train", "--resume", str(out), "--steps", "5"]) == 0
    assert cli.run(["train", "--resume", str(out / "seed-5"), "--steps", "6"]) == 0
    assert cli.run(["info", str(out / "seed-6")]) == 0
    capsys.readouterr()
    for arguments, message in (
        ([*tiny, "--seeds", "2", "--out", str(out)], "already holds runs"),
        (["train", "--resume", str(out), "--seeds", "2"], "settled when they begin"),
        ([*tiny, "--lrs", "1e-3,x", "--out", str(tmp_path / "b")], "no list of numbers"),
        ([*tiny, "--lrs", "1e-3", "--lr", "1e-3", "--out", str(tmp_path / "b")], "or one by --lr"),
    ):
        assert cli.run(arguments) in (1, 2, 3, 4)
        errors = capsys.readouterr().err
        assert message in errors
        assert errors.count("\n") == 1


class TestGoodEnough:
    """stop_at: a run that is as good as it was asked to become ends, alone or by leaving its stack."""

    def run(self, folder: Path, **train: Any) -> RunConfig:
        return small_run(folder, steps=30, evaluate_every=2, lr=3e-2, seed=1, keep_best=False, **train)

    def test_alone(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, stop_at=7.9, stop_after=2)
        result = train(run, tmp_path / "run")
        looks = curve(tmp_path / "run", "evaluation")
        good = [look["bits_per_byte"] <= 7.9 for look in looks]
        assert result.step == looks[-1]["step"] < 30
        assert good[-2:] == [True, True]
        assert not any(a and b for a, b in pairwise(good[:-1]))
        assert train(run, tmp_path / "run", resume=True).step == result.step

    def test_in_a_stack(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, stop_at=7.9, stop_after=2)
        runs = seeds_and_rates(run, 1, [3e-2, 1e-5])
        fast, slow = runs
        result = train_stack(runs, tmp_path / "stack")
        assert list(result.runs) == [fast, slow]
        alone = train(runs[fast], tmp_path / "alone")
        assert result.runs[fast].step == alone.step < 30
        assert result.runs[slow].step == 30
        assert result.runs[fast].validation == pytest.approx(alone.validation, rel=1e-4)
        assert curve(tmp_path / "stack" / fast)[-1]["kind"] == "reached"
        again = train_stack(runs, tmp_path / "stack", resume=True)
        for name in runs:
            assert replace(again.runs[name], seconds=0.0) == replace(result.runs[name], seconds=0.0)

    def test_those_that_reached_it_stay_when_all_others_diverge(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = self.run(tmp_path, stop_at=7.9, stop_after=2)
        runs = seeds_and_rates(run, 1, [3e-2, 1e-5])
        fast, slow = runs
        update = Stack.update

        def diverge(stack: Stack) -> Any:
            if len(stack.members) > 1:
                return update(stack)
            return [], [(stack.members[0], DivergedError("the loss is nan"))]

        monkeypatch.setattr(Stack, "update", diverge)
        result = train_stack(runs, tmp_path / "stack")
        assert (list(result.runs), result.diverged) == ([fast], {slow: "the loss is nan"})
        assert train_stack(runs, tmp_path / "stack", resume=True).diverged == result.diverged

    def test_the_rest_goes_on_after_a_stop(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Stopped after the first has left: the others go on, to the bits that they would have come to."""
        run = self.run(tmp_path, stop_at=7.9, stop_after=2)
        runs = seeds_and_rates(run, 1, [3e-2, 1e-5, 2e-5])
        whole = train_stack(runs, tmp_path / "whole")
        left = whole.runs[next(iter(runs))].step
        with monkeypatch.context() as patch:
            stop_after(left + 3, patch)
            train_stack(runs, tmp_path / "cut")
        result = train_stack(runs, tmp_path / "cut", resume=True)
        assert {name: one.step for name, one in result.runs.items()} == {n: o.step for n, o in whole.runs.items()}
        for name in runs:
            assert curve(tmp_path / "cut" / name) == curve(tmp_path / "whole" / name)
