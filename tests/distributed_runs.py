"""Whole runs of several ranks: trained, stopped by a signal on any rank, copied, compared to the bit."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from distributed_harness import Place
from training_runs import curve

from statewise import checkpoints
from statewise.training import RunConfig, TrainResult, course, train_run
from statewise.training.report import Reporter


class Heard(Reporter):
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def event(self, record: Any) -> None:
        self.kinds.append(record["kind"])


@contextmanager
def a_signal_on(rank: int, place: Place, step: int) -> Iterator[None]:
    """SIGTERM for one rank after its step."""
    log = course.Course.log

    def log_and_kill(self: course.Course, record: dict[str, Any], done: bool) -> None:
        log(self, record, done)
        if place.rank == rank and record["step"] == step:
            os.kill(os.getpid(), signal.SIGTERM)

    with mock.patch.object(course.Course, "log", log_and_kill):
        yield


def trained(place: Place, run: RunConfig, name: str, stop: int | None = None, **options: Any) -> TrainResult:
    with a_signal_on(place.size - 1, place, -1 if stop is None else stop):
        result = train_run(run, place.folder / name, **options)
    dist.barrier()
    return result


def copied(place: Place, name: str, to: str) -> None:
    if place.rank == 0:
        shutil.copytree(place.folder / name, place.folder / to)
    dist.barrier()


def everything(run: Path) -> dict[str, torch.Tensor]:
    latest = checkpoints.resolve(run, "latest")
    return {**checkpoints.load(latest).state_dict(), **checkpoints.read_trainer(latest)[0]}


def require_equal(one: Path, other: Path) -> None:
    assert curve(one) == curve(other)
    first, second = everything(one), everything(other)
    assert first.keys() == second.keys()
    assert [name for name in first if not torch.equal(first[name], second[name])] == []


def require_that_it_goes_on(place: Place, run: RunConfig, name: str, stop: int) -> None:
    """Stopped after a step and resumed, it is to the bit what it is when it is not stopped."""
    trained(place, run, f"{name}-straight")
    trained(place, run, f"{name}-stopped", stop=stop)
    trained(place, run, f"{name}-stopped", resume=True)
    require_equal(place.folder / f"{name}-straight", place.folder / f"{name}-stopped")
