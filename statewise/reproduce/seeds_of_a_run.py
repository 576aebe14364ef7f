"""One training run with several seeds: trained side by side, and each tested once at its end."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints import load, resolve
from statewise.errors import TrainingError
from statewise.reproduce.work import Stopped, write_json
from statewise.train.config import RunConfig
from statewise.train.course import TrainResult
from statewise.train.divergence import is_divergence
from statewise.train.loop import train
from statewise.train.metrics import read_metrics
from statewise.train.report import Reporter
from statewise.train.run_folder import METRICS_FILE, RUN_FILE
from statewise.train.stacked import train_stack
from statewise.train.tasks import Task, open_task

CPU_FILE = "cpu-seconds.json"  # of all sessions so far
SECONDS_BETWEEN_COUNTS = 2.0


def train_and_test(runs: Mapping[str, RunConfig], folder: str, reporter: Reporter) -> dict[str, Any]:
    """A part: trains the runs, which differ in their seeds, or goes on with them; then tests each of them.

    A seed that diverged is a result: "diverged" says where, and nothing was tested. Where all did, there are no
    milliseconds of a step.

    Errors: TrainingError if an evaluation failed for another reason; Stopped, with everything saved.
    """
    path = Path(folder)
    counting = Counting(path / CPU_FILE, reporter)
    try:
        results, diverged = _train(runs, path, counting)
    finally:
        counting.write()
    stopped = [result.signal for result in results.values() if result.signal is not None]
    if stopped:
        raise Stopped(stopped[0])
    cpu_seconds = json.loads((path / CPU_FILE).read_text())
    seeds = {
        name: _tested(run, path / name, results[name]) if name in results else {"diverged": diverged[name]}
        for name, run in runs.items()
    }
    steps = max((result.step for result in results.values()), default=None)
    return {
        "seeds": seeds,
        "parameters": _n_parameters(next(iter(runs.values()))),
        "cpu_seconds": cpu_seconds,
        "ms_per_step": None if steps is None else 1e3 * cpu_seconds / steps,
    }


def is_diverged(seed: Mapping[str, Any]) -> bool:
    """Of what a part says of a seed. Folders of older versions hold none that diverged."""
    return seed.get("diverged") is not None


def whole(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What a part says of the seeds that did not diverge."""
    return [seed for seed in part["seeds"].values() if not is_diverged(seed)]


def mean_text(parts: Sequence[Mapping[str, Any]], digits: int) -> str:
    """The mean accuracy of all seeds, in %; "diverged" if one of them did."""
    seeds = [seed for part in parts for seed in part["seeds"].values()]
    if any(map(is_diverged, seeds)):
        return "diverged"
    return f"{100 * statistics.fmean(seed['accuracy'] for seed in seeds):.{digits}f}"


def told(seed: Mapping[str, Any], text: Callable[[Mapping[str, Any]], str], otherwise: str = "-") -> str:
    """What ``text`` says of a seed, and of one that diverged the other."""
    return otherwise if is_diverged(seed) else text(seed)


def ms_text(part: Mapping[str, Any], digits: int = 1) -> str:
    ms = part["ms_per_step"]
    return "-" if ms is None else f"{ms:,.{digits}f}"


def _train(
    runs: Mapping[str, RunConfig], folder: Path, reporter: Reporter
) -> tuple[dict[str, TrainResult], dict[str, str]]:
    """The results of those that did not diverge, and of the others where they did."""
    begun = any((folder / name / RUN_FILE).exists() for name in runs)
    try:
        if len(runs) == 1:
            ((name, run),) = runs.items()
            return {name: train(run, folder / name, resume=begun, reporter=reporter)}, {}
        result = train_stack(runs, folder, resume=begun, reporter=reporter)
    except TrainingError as error:
        if not is_divergence(error):
            raise
        return {}, {name: _where(folder / name / METRICS_FILE, error) for name in runs}
    return result.runs, result.diverged


def _where(metrics: Path, error: TrainingError) -> str:
    """What a stack wrote of the run that diverged; of one that was alone, what it said itself."""
    last = [{}, *(read_metrics(metrics) if metrics.exists() else [])][-1]
    return str(last["message"]) if last.get("kind") == "diverged" else str(error)


def _n_parameters(run: RunConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in run.model.build().parameters())


class Counting(Reporter):
    """Passes everything on, and adds the seconds that all cores work meanwhile to what the file says.

    It writes at each checkpoint and every few seconds between steps, so that whatever ends the process, steps that are
    kept are counted. Those that a kill takes, and that are done again, are counted twice: both took their time.
    """

    def __init__(self, file: Path, reporter: Reporter) -> None:
        self.file, self.reporter = file, reporter
        file.parent.mkdir(parents=True, exist_ok=True)
        self._before = json.loads(file.read_text()) if file.exists() else 0.0
        self._begun = time.process_time()
        self._written = time.monotonic()

    def write(self) -> None:
        write_json(self.file, self._before + time.process_time() - self._begun)
        self._written = time.monotonic()

    def begin(self, task: Task[Any, Any]) -> None:
        self.reporter.begin(task)

    def event(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "checkpoint":
            self.write()
        self.reporter.event(record)

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        if time.monotonic() - self._written >= SECONDS_BETWEEN_COUNTS:
            self.write()
        self.reporter.progress(fraction, record)

    def close(self) -> None:
        self.reporter.close()


def _tested(run: RunConfig, folder: Path, result: TrainResult) -> dict[str, Any]:
    model, task = load(resolve(folder, "best")), open_task(run)
    record = task.evaluate(model, "test")
    looks = [line for line in read_metrics(folder / METRICS_FILE) if line["kind"] == "evaluation"]
    return {
        "diverged": None,
        "accuracy": record["accuracy"],
        "loss": record["loss"],
        "chance": record["chance"] if "chance" in record else _most_frequent(record["confusion"]),
        "validation": result.validation,
        "epochs": result.step / task.batches.steps_per_epoch,
        "steps": result.step,
        "seconds": result.seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "course": [line["accuracy"] for line in looks],
        "course_seconds": [line["seconds"] for line in looks],
    }


def _most_frequent(confusion: Sequence[Sequence[int]]) -> float:
    """The share of the most frequent class: what is right without looking."""
    rows = [sum(row) for row in confusion]
    return max(rows) / sum(rows)
