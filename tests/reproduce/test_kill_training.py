"""What can befall the folder of a run: kill -9, full and protected disks, folders that go away, clocks that jump."""

from __future__ import annotations

import importlib
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from disks import protected, small_disk  # noqa: F401
from places import ROOT
from training_runs import Recorder, curve, small_run, with_train

from statewise import checkpoints
from statewise.errors import CheckpointError
from statewise.training import train_run
from statewise.training.config import RunConfig
from statewise.training.metrics import MetricsFile

EXPERIMENT = ROOT / "experiments" / "kill_training.py"


@pytest.mark.skipif(not (hasattr(os, "fork") and EXPERIMENT.exists()), reason="children are forked, by the experiment")
def test_six_kills_of_the_experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """experiments/kill_training.py has two hundred."""
    monkeypatch.syspath_prepend(EXPERIMENT.parent)
    experiment = importlib.import_module("kill_training")
    found = experiment.experiment(tmp_path, 6, seed=0, kinds=("streams",), steps=24, say=lambda line: None)
    assert found["kills"] == 6
    assert found["inside_save"] > 0
    assert (found["unusable_folders"], found["lost_checkpoints"], found["runs_that_differ"]) == ([], [], [])
    assert found["good"]


class At(Recorder):
    """Does something at the end of a step."""

    def __init__(self, step: int, what: Callable[[], object]) -> None:
        super().__init__()
        self.step, self.what = step, what

    def progress(self, fraction: float, record: Any) -> None:
        if record["step"] == self.step:
            self.what()


def refused(config: RunConfig, run: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        train_run(config, run, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- folders that go away --------------------------------------------------------------------------------------------


def test_a_folder_that_is_moved_is_not_begun_again_at_its_old_place(tmp_path: Path) -> None:
    config, run, moved = small_run(tmp_path, save_every=2), tmp_path / "run", tmp_path / "moved"
    said = refused(config, run, reporter=At(3, lambda: run.rename(moved)))
    assert f"the folder {run} was moved, removed or replaced" in said
    assert not run.exists()
    assert checkpoints.resolve(moved, "latest").name == "step-00000002"
    assert train_run(None, moved, resume=True).step == 8
    train_run(config, tmp_path / "straight")
    assert curve(moved) == curve(tmp_path / "straight")


def test_a_folder_that_is_removed_does_not_come_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert "removed" in refused(small_run(tmp_path, save_every=2), run, reporter=At(3, lambda: shutil.rmtree(run)))
    assert not run.exists()


def test_another_run_at_the_same_place_is_left_alone(tmp_path: Path) -> None:
    """Two writers whom the lock does not keep apart, since the folder of the first was moved from under it."""
    config, run = small_run(tmp_path, steps=4, save_every=2), tmp_path / "run"

    def replace_it() -> None:
        run.rename(tmp_path / "moved")
        train_run(with_train(config, steps=1), run)

    said = refused(config, run, reporter=At(3, replace_it))
    assert "replaced" in said
    assert [path.name for path in (run / "checkpoints").iterdir()] == ["step-00000001"]
    assert len(curve(run, "train")) == 1
    assert len(curve(tmp_path / "moved", "train")) > 1


# -- disks -----------------------------------------------------------------------------------------------------------


def test_a_protected_folder(tmp_path: Path, protected: tuple[Path, Callable[[], object]]) -> None:  # noqa: F811
    place, protect = protected
    config = small_run(tmp_path, steps=2)
    train_run(config, place / "run")
    before = sorted(str(path) for path in place.rglob("*"))
    protect()
    assert f"cannot write into {place / 'new'}" in refused(config, place / "new")
    longer = with_train(config, steps=4)
    assert f"{place / 'run'}" in refused(longer, place / "run", resume=True)
    assert sorted(str(path) for path in place.rglob("*")) == before
    checkpoints.load(checkpoints.resolve(place / "run"))  # it can be read as ever


def test_a_full_disk_where_a_run_is_resumed(tmp_path: Path, small_disk: Path) -> None:  # noqa: F811
    """Nothing that is there is touched before what replaces it is written; with room again, the run goes on."""
    config, run = small_run(tmp_path, steps=4, save_every=2), small_disk / "run"
    train_run(config, run, reporter=None)
    (small_disk / "others").write_bytes(bytes(free_bytes(small_disk)))
    longer = with_train(config, steps=6)
    assert "No space left on device" in refused(longer, run, resume=True)
    checkpoints.load(checkpoints.resolve(run, "latest"))
    (small_disk / "others").unlink()
    assert train_run(longer, run, resume=True).step == 6
    assert [line["step"] for line in curve(run, "train")] == [1, 2, 3, 4, 5, 6]


def free_bytes(place: Path) -> int:
    return shutil.disk_usage(place).free


@pytest.mark.parametrize("cut", [1, 20])
def test_a_line_of_metrics_that_a_kill_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut: int) -> None:
    """Half a line is written, and the process is gone: the steps beyond the checkpoint are done and told again."""
    write = MetricsFile.write

    def half(self: MetricsFile, record: Any) -> None:
        if record["step"] == 5:
            self._file.write(b'{"kind": "train", "step": 5, "loss"'[:-cut])
            raise KeyboardInterrupt
        write(self, record)

    config, run = small_run(tmp_path, save_every=2), tmp_path / "run"
    monkeypatch.setattr(MetricsFile, "write", half)
    with pytest.raises(KeyboardInterrupt):
        train_run(config, run)
    monkeypatch.undo()
    assert train_run(config, run, resume=True).step == 8
    train_run(config, tmp_path / "straight")
    assert curve(run) == curve(tmp_path / "straight")


# -- clocks ----------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set back by a day in the middle of a run: budgets and intervals are of the clock that only goes on."""
    config = small_run(tmp_path, minutes=10.0, steps=8, save_minutes=5.0, evaluate_minutes=5.0)
    day = time.time() - 86_400
    result = train_run(config, tmp_path / "run", reporter=At(3, lambda: monkeypatch.setattr(time, "time", lambda: day)))
    assert result.step == 8
    assert 0 < result.seconds < 600
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000008"]


def test_a_checkpoint_from_the_future(tmp_path: Path) -> None:
    """The order of checkpoints is that of their steps, whatever the times of their files."""
    config, run = small_run(tmp_path, save_every=2, steps=6, keep_last=3), tmp_path / "run"
    train_run(config, run)
    first = run / "checkpoints" / "step-00000002"
    os.utime(first, (4e9, 4e9))
    assert checkpoints.resolve(run, "latest").name == "step-00000006"
    assert train_run(with_train(config, steps=8), run, resume=True).step == 8
    assert not first.exists()
