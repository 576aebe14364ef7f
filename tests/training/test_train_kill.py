"""kill -9 at any moment, then resume: the same numbers bit for bit, and never a folder that cannot be used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from forked_programs import ran
from places import TESTS
from toy_task import toy, toy_run
from training_runs import curve, small_run, with_train

from statewise import checkpoints
from statewise.training import train_run

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="children are forked")


def run_killed(folder: Path, *how: str) -> list[dict[str, Any]]:
    script = TESTS / "killed_runs.py"
    path = os.pathsep.join([str(Path(checkpoints.__file__).parents[2]), str(script.parent)])
    result = ran([script, folder, *how], env={**os.environ, "PYTHONPATH": path})
    assert result.returncode == 0, result.stderr
    log: list[dict[str, Any]] = json.loads(result.stdout)
    assert log[-1]["status"] == 0, result.stderr
    return log


def assert_same_end(one: Path, other: Path) -> None:
    latest = [checkpoints.resolve(run, "latest") for run in (one, other)]
    models = [checkpoints.load(path).state_dict() for path in latest]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


@pytest.mark.parametrize(("kind", "times"), [("random", 10), ("toy", 3)])
@pytest.mark.usefixtures(toy.__name__)
def test_kills_at_random_moments(tmp_path: Path, kind: str, times: int) -> None:
    settings: dict[str, Any] = {"steps": 4 * times, "save_every": 1, "evaluate_every": 7, "accumulation": 2}
    config = toy_run(**settings) if kind == "toy" else small_run(tmp_path, **settings)
    log = run_killed(tmp_path, kind, "0")
    assert [entry["status"] for entry in log] == [9] * times + [0]
    steps = [entry["step"] for entry in log]
    assert steps == sorted(steps)  # what was saved stays
    assert steps[-2] > 0
    train_run(with_train(config, save_every=None), tmp_path / "straight")
    assert curve(tmp_path / "killed") == curve(tmp_path / "straight")
    assert_same_end(tmp_path / "killed", tmp_path / "straight")


def test_a_kill_at_each_call_that_changes_the_folder(tmp_path: Path) -> None:
    """Systematic where the other is random: die at the first fsync, rename, ... of a process, at the second, ..."""
    config = small_run(tmp_path, steps=20, save_every=1, keep_last=1, keep_best=False, carry_state=True)
    log = run_killed(tmp_path, "calls", "0")
    in_start = [entry["status"] for entry in log if entry["in_start"]]
    later = [entry["status"] for entry in log if not entry["in_start"]]
    assert in_start == [9] * (len(in_start) - 1) + [0]
    assert len(in_start) > 8
    assert later == [9] * 21 + [0]
    steps = [entry["step"] for entry in log]
    assert steps == sorted(steps)
    assert 0 < steps[-2] < 20  # so that saves were interrupted before their end and after it
    train_run(with_train(config, save_every=None), tmp_path / "straight")
    assert curve(tmp_path / "killed") == curve(tmp_path / "straight")
    assert_same_end(tmp_path / "killed", tmp_path / "straight")
