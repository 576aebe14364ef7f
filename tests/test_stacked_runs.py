"""Runs side by side: folders, exact resume, one that diverges, what cannot be stacked, the command line."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from training import Recorder, curve, small_model, small_run

from statewise import cli
from statewise.errors import CheckpointError, ConfigError, TrainingError
from statewise.mixers.s4d import S4DConfig
from statewise.train import RunConfig, read_metrics, train
from statewise.train.stack import Stack, Update
from statewise.train.stack_folder import begin_folder, runs_in, seeds_and_rates
from statewise.train.stacked import train_stack

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
        stop_after(7, patch)
        cut = train_stack(runs, tmp_path / "cut")
    assert cut.exit_code == 128 + signal.SIGTERM
    assert {run.step for run in cut.runs.values()} == {7}
    # As if it had been killed while it saved: one has a checkpoint that the others have not
    shutil.rmtree(tmp_path / "cut" / "lr-0.001-seed-0" / "checkpoints" / "step-00000007")
    reporter = Recorder()
    again = train_stack(dict.fromkeys(runs), tmp_path / "cut", resume=True, reporter=reporter)
    assert again.exit_code == 0
    assert sum("goes back" in event.get("message", "") for event in reporter.events) == 3
    for name in runs:
        assert curve(tmp_path / "cut" / name) == curve(tmp_path / "whole" / name)
        assert weights(tmp_path / "cut" / name) == weights(tmp_path / "whole" / name)


def test_each_goes_on_alone(tmp_path: Path) -> None:
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    train_stack(runs, tmp_path / "runs")
    longer = replace(runs["seed-1"], train=replace(runs["seed-1"].train, steps=14))
    assert train(longer, tmp_path / "runs" / "seed-1", resume=True).step == 14


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
    train_stack(seeds_and_rates(run, 1, [1e-3, 2e-3]), tmp_path / "good")
    for good, bad in zip(curve(tmp_path / "good" / "lr-0.001"), curve(tmp_path / "bad" / "lr-0.001")):
        assert bad["kind"] == good["kind"]
        assert bad["loss"] == pytest.approx(good["loss"], rel=1e-5)
    again = train_stack(dict.fromkeys([*result.runs, "lr-1e+38"]), tmp_path / "bad", resume=True)
    assert list(again.diverged) == ["lr-1e+38"]


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
    assert '"kind": "summary"' in capsys.readouterr().out
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
