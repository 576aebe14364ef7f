"""One model on one of H3's synthetic languages: all seeds trained side by side, and each tested once at its end."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from statewise.checkpoints import load, resolve
from statewise.reproduce.work import Stopped, write_json
from statewise.train.config import RunConfig
from statewise.train.course import TrainResult
from statewise.train.loop import train
from statewise.train.metrics import read_metrics
from statewise.train.report import Reporter
from statewise.train.run_folder import METRICS_FILE, RUN_FILE
from statewise.train.stacked import train_stack
from statewise.train.tasks import open_task

CPU_FILE = "cpu-seconds.json"  # of all sessions so far


def train_and_test(runs: Mapping[str, RunConfig], folder: str, reporter: Reporter) -> dict[str, Any]:
    """A part: trains the runs, which differ in their seeds, or goes on with them; then tests each of them.

    Errors: TrainingError if one of them diverged; Stopped, with everything saved.
    """
    path = Path(folder)
    with _counting(path / CPU_FILE):
        results = _train(runs, path, reporter)
    stopped = [result.signal for result in results.values() if result.signal is not None]
    if stopped:
        raise Stopped(stopped[0])
    cpu_seconds = json.loads((path / CPU_FILE).read_text())
    seeds = {name: _tested(run, path / name, results[name]) for name, run in runs.items()}
    return {
        "seeds": seeds,
        "parameters": next(iter(seeds.values()))["parameters"],
        "cpu_seconds": cpu_seconds,
        "ms_per_step": 1e3 * cpu_seconds / max(result.step for result in results.values()),
    }


def _train(runs: Mapping[str, RunConfig], folder: Path, reporter: Reporter) -> dict[str, TrainResult]:
    begun = any((folder / name / RUN_FILE).exists() for name in runs)
    if len(runs) == 1:
        ((name, run),) = runs.items()
        return {name: train(run, folder / name, resume=begun, reporter=reporter)}
    result = train_stack(runs, folder, resume=begun, reporter=reporter)
    result.require_all()
    return result.runs


@contextmanager
def _counting(file: Path) -> Iterator[None]:
    """Adds the seconds that all cores work within it to what the file says."""
    file.parent.mkdir(parents=True, exist_ok=True)
    before = json.loads(file.read_text()) if file.exists() else 0.0
    begun = time.process_time()
    try:
        yield
    finally:
        write_json(file, before + time.process_time() - begun)


def _tested(run: RunConfig, folder: Path, result: TrainResult) -> dict[str, Any]:
    model, task = load(resolve(folder, "latest")), open_task(run)
    record = task.evaluate(model, "test")
    course = [line["accuracy"] for line in read_metrics(folder / METRICS_FILE) if line["kind"] == "evaluation"]
    return {
        "accuracy": record["accuracy"],
        "loss": record["loss"],
        "chance": record["chance"],
        "validation": result.validation,
        "epochs": result.step / task.batches.steps_per_epoch,
        "steps": result.step,
        "seconds": result.seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "course": course,
    }
