"""Stopped and resumed is the same as never stopped, bit for bit."""

from __future__ import annotations

import math
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from training_runs import (
    Recorder,
    curve,
    small_model,
    small_run,
    with_train,
)

from statewise import checkpoints
from statewise.mixers.attention import AttentionConfig
from statewise.models.block import BlockConfig
from statewise.models.mlp import MLPConfig
from statewise.training import train_run
from statewise.training.report import Reporter


class StopAt(Recorder):
    """Sends a signal at the end of a step."""

    def __init__(self, step: int, number: int = signal.SIGTERM) -> None:
        super().__init__()
        self.step, self.number = step, number

    def progress(self, fraction: float, record: Any) -> None:
        if record["step"] == self.step:
            os.kill(os.getpid(), self.number)


def everything(folder: Path) -> dict[str, Tensor]:
    """Parameters, moments, generators and carried state of the last checkpoint."""
    latest = checkpoints.resolve(folder, "latest")
    tensors, _ = checkpoints.read_trainer(latest)
    return {**checkpoints.load(latest).state_dict(), **tensors}


def assert_same(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    differing = [name for name in one if not torch.equal(one[name], other[name])]
    assert not differing


def disturb() -> None:
    torch.rand(3)
    random.random()
    np.random.rand(3)


@pytest.mark.parametrize("carry_state", [False, True])
def test_bit_for_bit(tmp_path: Path, carry_state: bool) -> None:
    mamba = small_model(dropout=0.2).layers[0]
    attention = BlockConfig(mixer=AttentionConfig(n_heads=2, window=6), mlp=MLPConfig(expand=2), dropout=0.2)
    config = small_run(
        tmp_path,
        model=small_model(layers=(mamba, attention), embedding_dropout=0.1),
        steps=9,
        accumulation=2,
        carry_state=carry_state,
        log_every=4,
        evaluate_every=3,
        threads=1,
    )
    train_run(config, tmp_path / "straight")
    expected = everything(tmp_path / "straight")
    assert any(name.startswith("state.layers.1") for name in expected) is carry_state

    for stops in ([1], [4], [2, 5, 8]):
        run = tmp_path / f"stopped-{stops}"
        for number, stop in enumerate(stops):
            disturb()
            result = train_run(config, run, resume=number > 0, reporter=StopAt(stop))
            assert (result.step, result.signal, result.exit_code) == (stop, signal.SIGTERM, 128 + signal.SIGTERM)
        disturb()
        result = train_run(None, run, resume=True)
        assert (result.step, result.exit_code) == (9, 0)
        assert curve(run) == curve(tmp_path / "straight")
        assert_same(everything(run), expected)


def test_all_generators_go_on(tmp_path: Path) -> None:
    """Also Python's and numpy's, which a model of somebody's own may draw from."""

    class Draw(StopAt):
        drawn: list[float]

        def progress(self, fraction: float, record: Any) -> None:
            self.drawn += [random.random(), float(np.random.rand()), random.gauss(0, 1), float(np.random.randn())]
            super().progress(fraction, record)

    def draws(run: Path, stops: list[int]) -> list[float]:
        drawn: list[float] = []
        for i, stop in enumerate(stops):
            reporter = Draw(stop)
            reporter.drawn = drawn
            train_run(small_run(tmp_path, steps=6), run, resume=i > 0, reporter=reporter)
            disturb()
        return drawn

    assert draws(tmp_path / "a", [99]) == draws(tmp_path / "b", [1, 4, 99])


def test_a_run_that_went_beyond_its_checkpoint_repeats_those_steps(tmp_path: Path) -> None:
    class Fail(Reporter):
        def progress(self, fraction: float, record: Any) -> None:
            if record["step"] == 6:
                raise KeyError("the power went")

    config = small_run(tmp_path, save_every=4, evaluate_every=2, keep_best=False)
    with pytest.raises(KeyError):
        train_run(config, tmp_path / "run", reporter=Fail())
    assert curve(tmp_path / "run", "train")[-1]["step"] == 5
    with open(tmp_path / "run" / "metrics.jsonl", "ab") as file:
        file.write(b'{"kind": "train", "st')
    train_run(config, tmp_path / "run", resume=True)
    train_run(config, tmp_path / "straight")
    assert curve(tmp_path / "run") == curve(tmp_path / "straight")
    assert_same(everything(tmp_path / "run"), everything(tmp_path / "straight"))


def test_the_first_signal_stops_after_the_step_and_says_how_to_go_on(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT)
    reporter = StopAt(3, signal.SIGINT)
    result = train_run(small_run(tmp_path), tmp_path / "run", reporter=reporter)
    assert (result.step, result.exit_code) == (3, 130)
    assert result.checkpoint == tmp_path / "run" / "checkpoints" / "step-00000003"
    message = reporter.events[-1]["message"]
    assert reporter.events[-1]["kind"] == "stop"
    assert "SIGINT after step 3" in message
    assert f"--resume {tmp_path / 'run'}" in message
    assert "\n" not in message
    assert signal.getsignal(signal.SIGINT) is before


def test_a_signal_during_the_last_step_changes_nothing(tmp_path: Path) -> None:
    result = train_run(small_run(tmp_path, steps=3), tmp_path / "run", reporter=StopAt(3))
    assert (result.step, result.signal, result.exit_code) == (3, None, 0)


def test_a_finished_run_has_nothing_to_do_and_can_be_extended(tmp_path: Path) -> None:
    config = small_run(tmp_path, steps=3)
    first = train_run(config, tmp_path / "run")
    again = train_run(config, tmp_path / "run", resume=True)
    assert (again.step, again.checkpoint, again.validation) == (3, first.checkpoint, first.validation)
    longer = with_train(config, steps=5, evaluate_every=1)
    assert train_run(longer, tmp_path / "run", resume=True).step == 5
    assert [line["step"] for line in curve(tmp_path / "run", "train")] == [1, 2, 3, 4, 5]
    assert train_run(None, tmp_path / "run", resume=True).step == 5  # run.json says so now


def test_the_best_goes_on_counting(tmp_path: Path) -> None:
    config = small_run(tmp_path, steps=6, lr=1e-2, evaluate_every=1)
    train_run(config, tmp_path / "run", reporter=StopAt(3))
    train_run(None, tmp_path / "run", resume=True)
    best = math.inf
    for line in curve(tmp_path / "run", "evaluation"):
        assert line["best"] is (line["bits_per_byte"] < best)
        best = min(best, line["bits_per_byte"])
