"""What a budget allows: minutes of the clock or of the processor, and steps."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from training_runs import curve, small_run, steps_of, with_train

from statewise.errors import ConfigError
from statewise.training import loop as loop_module
from statewise.training import train_run
from statewise.training.ranks import Ranks


class Clock:
    """Time passes only where a test says so: a second each time somebody looks."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_minutes_alone_drive_the_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module.time, "monotonic", Clock().monotonic)
    config = small_run(tmp_path, minutes=1.0, lr=0.01, min_ratio=0.0, warmup=0.5, evaluate_minutes=0.25)
    result = train_run(config, tmp_path / "run")
    lines = curve(tmp_path / "run", "train")
    assert 60 <= result.seconds < 70
    rates = [line["lr"] for line in lines]
    peak = rates.index(max(rates))
    assert 0.3 < peak / len(rates) < 0.7
    assert rates[:peak] == sorted(rates[:peak])
    assert rates[peak:] == sorted(rates[peak:], reverse=True)
    assert rates[-1] < 0.001
    assert 4 <= len(curve(tmp_path / "run", "evaluation")) <= 5
    again = train_run(with_train(config, minutes=2.0), tmp_path / "run", resume=True)
    assert 120 <= again.seconds < 130  # the first minute counted


def test_minutes_of_the_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the budget nor the looks, the rates and the seconds of a run hang on what else the machine does."""
    monkeypatch.setattr(loop_module.time, "process_time", Clock().monotonic)
    config = small_run(tmp_path, minutes=1.0, clock="processor", evaluate_minutes=0.25)
    result = train_run(config, tmp_path / "run")
    assert 60 <= result.seconds < 70
    assert 4 <= len(curve(tmp_path / "run", "evaluation")) <= 5
    again = train_run(with_train(config, minutes=2.0), tmp_path / "run", resume=True)
    assert 120 <= again.seconds < 130


def test_minutes_of_the_processor_are_for_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ranks, "arrange", lambda *_: torch.device("meta"))
    with pytest.raises(ConfigError, match=r"train\.budget\.clock=processor .* the run is on meta"):
        train_run(small_run(tmp_path, minutes=1.0, clock="processor"), tmp_path / "run")


def test_steps_drive_the_schedule_where_both_are_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module.time, "monotonic", Clock().monotonic)
    config = small_run(tmp_path, minutes=0.25, steps=100, lr=0.01, warmup=0.0)
    result = train_run(config, tmp_path / "run")
    assert result.step < 20
    assert curve(tmp_path / "run", "train")[-1]["lr"] > 0.009


def test_by_minutes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_module.time, "monotonic", Clock().monotonic)
    train_run(small_run(tmp_path, steps=12, save_minutes=0.1, keep_last=9, keep_best=False), tmp_path / "run")
    found = steps_of(tmp_path / "run")
    assert 3 <= len(found) <= 5
    assert found[-1] == 12
