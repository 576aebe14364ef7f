"""Trains in child processes that are killed with SIGKILL: run by test_train_kill.py, in a process of its own.

    python killed_runs.py FOLDER random SEED    ten times, at random moments of a run that saves after every step
    python killed_runs.py FOLDER toy SEED       three times, a run that is no language model's
    python killed_runs.py FOLDER calls 0        at the first, second, third ... of the calls that change a folder

Children are forked from one process in which everything is imported, so that a kill costs no start of Python.
After each kill the folder is read as anybody would; then the run is resumed. Prints what happened as JSON.
"""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # so that no child imports it
from toy_task import ToyConfig, ToyDataConfig, ToyTask, toy_run
from training_runs import small_run

from statewise import checkpoints
from statewise.errors import CheckpointError
from statewise.models.registry import CONFIG_TYPES
from statewise.training import RunConfig, read_metrics, train_run
from statewise.training.report import Reporter
from statewise.training.tasks import TASKS

CALLS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir")


def in_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    return child


def is_usable(run: Path) -> int:
    """The step of the last checkpoint, 0 before the first; fails if anything there cannot be read."""
    if (run / "metrics.jsonl").exists():
        read_metrics(run / "metrics.jsonl")
    try:
        latest = checkpoints.resolve(run, "latest")
    except CheckpointError:
        assert not list((run / "checkpoints").glob("step-*")), "there are checkpoints, and they cannot be found"
        return 0
    checkpoints.load(latest)
    _, data = checkpoints.read_trainer(latest)
    return int(data["step"])


def toy_to_kill(**train: Any) -> RunConfig:
    """Its names are known from here on."""
    CONFIG_TYPES["ToyConfig"], TASKS[ToyDataConfig] = ToyConfig, (ToyTask,)
    return toy_run(**train)


def killed_at_random(folder: Path, seed: int, times: int, make: Callable[..., RunConfig]) -> list[dict[str, Any]]:
    config = make(steps=4 * times, save_every=1, evaluate_every=7, accumulation=2)
    generator, run = random.Random(seed), folder / "killed"
    log = []
    for _ in range(times):
        reading, writing = os.pipe()

        class Tell(Reporter):
            def progress(self, fraction: float, record: Any, writing: int = writing) -> None:
                os.write(writing, b".")

        child = in_child(lambda: train_run(config, run, resume=run.exists(), reporter=Tell()))
        os.close(writing)
        for _ in range(generator.randint(0, 3)):
            os.read(reading, 1)
        time.sleep(generator.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        os.close(reading)
        unfinished = [path.name for path in (run / "checkpoints").glob(".*")]
        log.append({"status": status, "step": is_usable(run), "unfinished": unfinished})
    child = in_child(lambda: train_run(config, run, resume=True))
    log.append({"status": os.waitpid(child, 0)[1], "step": is_usable(run), "unfinished": []})
    return log


def killed_at_calls(folder: Path) -> list[dict[str, Any]]:
    """First at each call before the first step, until none is left; then at each call after a process's first step."""
    config = small_run(folder, steps=20, save_every=1, keep_last=1, keep_best=False, carry_state=True)
    run = folder / "killed"

    class Countdown(Reporter):
        """Kills its own process at the ``call``-th call that it counts."""

        def __init__(self, call: int, in_start: bool) -> None:
            self.left, self.in_start, self.counts = call, in_start, in_start
            for name in CALLS:
                setattr(os, name, self.counted(getattr(os, name)))

        def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                self.left -= self.counts
                if self.left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return function(*args, **kwargs)

            return wrapper

        def progress(self, fraction: float, record: Any) -> None:
            if self.in_start:
                os._exit(0)  # the start is over, and nobody was killed in it
            self.counts = True

    log: list[dict[str, Any]] = []
    for in_start in (True, False):
        for call in range(1, 1000 if in_start else 22):
            how = (call, in_start)
            child = in_child(lambda how=how: train_run(config, run, resume=run.exists(), reporter=Countdown(*how)))
            _, status = os.waitpid(child, 0)
            log.append({"status": status, "step": is_usable(run), "in_start": in_start})
            if status == 0:
                break
    child = in_child(lambda: train_run(config, run, resume=True))
    log.append({"status": os.waitpid(child, 0)[1], "step": is_usable(run), "in_start": False})
    return log


if __name__ == "__main__":
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    if sys.argv[2] == "calls":
        print(json.dumps(killed_at_calls(folder)))
    else:
        times, make = (3, toy_to_kill) if sys.argv[2] == "toy" else (10, functools.partial(small_run, folder))
        print(json.dumps(killed_at_random(folder, int(sys.argv[3]), times, make)))
