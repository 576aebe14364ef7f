"""Jobs for the tests of the worker processes, which import them from here."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from statewise.errors import DataError
from statewise.reproduce.work import Stopped
from statewise.training import RunConfig, train_run
from statewise.training.report import Reporter


def where(x: float, reporter: Reporter) -> dict[str, Any]:
    """Which process this is, and its threads."""
    print("what a library prints")
    reporter.progress(0.5, {})
    return {"x": x, "pid": os.getpid(), "threads": torch.get_num_threads(), "omp": os.environ["OMP_NUM_THREADS"]}


def wait(folder: str, reporter: Reporter) -> dict[str, Any]:
    """Says that it is there, and does not end by itself."""
    Path(folder, f"waits-{os.getpid()}").write_text("")
    time.sleep(600)
    return {}


def wait_on(folder: str, reporter: Reporter) -> dict[str, Any]:
    """The same, and does not end when it is asked to either."""
    Path(folder, f"waits-{os.getpid()}").write_text("")
    while True:
        with suppress(BaseException):
            time.sleep(600)


def when_it_waits(folder: str, what: str, reporter: Reporter) -> dict[str, Any]:
    """Once the other one waits: fails, or dies, or sends a signal to the process with this number."""
    while not list(Path(folder).glob("waits-*")):
        time.sleep(0.01)
    if what == "refuse":
        raise DataError("the file is empty; give another")
    if what == "fail":
        raise ZeroDivisionError("nothing to divide by")
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    os.kill(int(what), signal.SIGTERM)
    time.sleep(600)
    return {}


def trained(config: RunConfig, folder: str, reporter: Reporter) -> dict[str, Any]:
    result = train_run(config, folder, resume=Path(folder, "run.json").exists(), reporter=reporter)
    if result.signal is not None:
        raise Stopped(result.signal)
    return {"step": result.step, "folder": str(result.folder)}
