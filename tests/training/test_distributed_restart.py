"""What torchrun starts anew goes on, whatever stands above it, and no other launch takes it for its own."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch
from distributed_harness import run_killed
from distributed_killed import killed_config
from training_runs import curve

from statewise.errors import CheckpointError
from statewise.training import train_run

if not torch.distributed.is_available() or not hasattr(os, "fork"):
    pytest.skip("needs gloo and fork", allow_module_level=True)
from statewise.training.distributed.begun_by import goes_on, sign


def test_distributed_run_of_one_process_goes_on(tmp_path: Path) -> None:
    """torchrun --nproc-per-node 1: nobody to agree with, and killed all the same."""
    found = run_killed(tmp_path, 1, [(0, "step", 3), (0, "save", 6)])
    assert found == {"steps": [12], "before": [0, 2, 2], "dead": [True, True]}
    train_run(killed_config(tmp_path, "fsdp", 12), tmp_path / "undisturbed")
    assert [line["loss"] for line in curve(tmp_path / "killed")] == pytest.approx(
        [line["loss"] for line in curve(tmp_path / "undisturbed")]
    )


@pytest.fixture
def second_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run's folder, in a worker that was started anew by a torchrun whose store is out of reach."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
    (tmp_path / "run.json").write_text("{}")
    (tmp_path / ".lock").write_text("")
    return tmp_path


def test_distributed_launches_are_told_apart(second_attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not goes_on(second_attempt)
    sign(second_attempt)
    assert goes_on(second_attempt)
    monkeypatch.setattr(Path, "write_text", None)  # what is there is not written again
    sign(second_attempt)
    parent = os.getppid()  # 1 where pytest itself was left behind
    monkeypatch.setattr(os, "getppid", lambda: parent + 1)
    assert not goes_on(second_attempt)
    monkeypatch.undo()


def test_distributed_launch_that_cannot_sign(second_attempt: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CheckpointError, match=r"cannot write .*\.lock: No space left on device; make room for it"):
        sign(second_attempt)
