"""A folder of several runs: what it says of each, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from training_runs import Recorder, small_run, weights, with_train

from statewise import cli
from statewise.errors import CheckpointError, ConfigError
from statewise.training import train_run
from statewise.training.several import train_several
from statewise.training.several_folder import begin_folder, read_one_of, runs_in, seeds_and_rates

SETTINGS: dict[str, Any] = {"steps": 12, "save_every": 4, "evaluate_every": 3, "threads": 1}


def test_a_rate_that_diverged_and_was_begun_anew_is_counted_for_no_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Under its old name it would have been one more seed of the rate that it has now."""
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2, [1e-3, 1e38])
    out, names = tmp_path / "runs", list(runs)
    begin_folder(out, runs)
    assert list(train_several(runs, out, workers=1).diverged) == ["lr-1e+38-seed-0", "lr-1e+38-seed-1"]
    assert train_run(with_train(runs["lr-1e+38-seed-0"], lr=1e-3), out / "lr-1e+38-seed-0", resume=True).step == 12
    refusal = r"^lr-1e\+38-seed-0 was begun with train\.optimizer\.lr 1e\+38, and now has 0\.001"
    with pytest.raises(ConfigError, match=refusal):
        train_several(dict.fromkeys(runs), out, resume=True, workers=1)
    shutil.rmtree(out / "lr-1e+38-seed-0")
    again = train_several(dict.fromkeys(runs), out, resume=True, workers=1)
    assert (list(again.runs), list(again.diverged)) == (names[:2], names[2:])
    arguments = ["train", "--resume", str(out), "--workers", "1", "--set", "train.optimizer.lr=1e-3"]
    assert cli.run(arguments) == 2
    assert "no longer one of the runs" in capsys.readouterr().err


def test_one_that_diverged_is_begun_with_other_settings(tmp_path: Path) -> None:
    """Where the folder does not say what it was begun with; it was left as it is, and counted as what it is not."""
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 1, [1e-3, 1e38])
    train_several(runs, tmp_path / "runs", workers=1)
    runs["lr-1e+38"] = with_train(runs["lr-1e+38"], lr=2e-3)
    heard = Recorder()
    again = train_several(runs, tmp_path / "runs", resume=True, workers=1, reporter=heard)
    assert again.diverged == {}
    assert {*heard.events[-1]["validation"]} == {*runs}


@pytest.mark.usefixtures("forked_workers")
def test_a_folder_of_0_1_0_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the runs were one stacked model, killed while it saved: one has a checkpoint that the other has not. A
    third had diverged, a fourth was as good as it was asked to become. stack.json had names alone."""
    run = small_run(tmp_path, **SETTINGS)
    names = ["lr-0.001", "lr-1e+38", "lr-0.002", "lr-0.003"]
    runs = seeds_and_rates(run, 1, [1e-3, 1e38, 2e-3, 3e-3])
    out = tmp_path / "runs"
    train_several(runs, out, workers=1)
    begun = {name: weights(out / name, 12) for name in names if name != "lr-1e+38"}
    shutil.rmtree(out / "lr-0.001" / "checkpoints" / "step-00000012")
    with (out / "lr-0.003" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "reached", "step": 12, "message": "it ends here"}) + "\n")
    (out / "stack.json").write_text(json.dumps({"statewise_version": "0.1.0", "runs": names}))
    assert runs_in(out) == names
    assert cli.run(["train", "--resume", str(out), "--workers", "2"]) == 1  # since one has diverged
    assert "lr-1e+38 went wrong, 3 of 4 runs did not" in capsys.readouterr().err
    for name, expected in begun.items():
        assert weights(out / name, 12) == expected


def test_a_run_that_has_not_begun_is_what_the_others_were_begun_with(tmp_path: Path) -> None:
    """An edit of stack.json would make its runs differ in more than they say."""
    runs = seeds_and_rates(small_run(tmp_path, **SETTINGS), 2)
    begin_folder(tmp_path / "runs", runs)
    assert read_one_of(tmp_path / "runs", "seed-1") == runs["seed-1"]
    file = tmp_path / "runs" / "stack.json"
    data = json.loads(file.read_text())
    data["configurations"]["seed-1"]["train"]["optimizer"]["lr"] = 0.5
    file.write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match=r"stack\.json was edited, and seed-1 has not begun"):
        read_one_of(tmp_path / "runs", "seed-1")


def test_bad_input(tmp_path: Path) -> None:
    run = small_run(tmp_path, **SETTINGS)
    with pytest.raises(ConfigError, match="each once"):
        seeds_and_rates(run, 1, [1e-3, 1e-3])
    with pytest.raises(ConfigError, match="first six digits"):
        seeds_and_rates(run, 1, [1e-3, 1.00000001e-3])
    with pytest.raises(ConfigError, match="at least 1"):
        seeds_and_rates(run, 0)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter.txt").touch()
    with pytest.raises(CheckpointError, match=r"letter\.txt"):
        begin_folder(tmp_path / "full", {"seed-0": run})
    (tmp_path / "stack.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be read"):
        runs_in(tmp_path)
    with pytest.raises(CheckpointError, match="holds no run"):
        train_several({"seed-7": None}, tmp_path / "none", resume=True)
