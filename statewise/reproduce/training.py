"""Training runs as trials: continued where they were stopped, tested at their end; divergence is a result."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from statewise.checkpoints import load, resolve
from statewise.errors import DivergedError, NotFiniteError
from statewise.models.base import Model
from statewise.reproduce.files import write_json
from statewise.reproduce.measure import n_parameters
from statewise.reproduce.work import Job, Stopped, Work
from statewise.training.config import RunConfig
from statewise.training.course import DIVERGED, TrainResult
from statewise.training.environment import choose_device
from statewise.training.loop import train_run
from statewise.training.metrics import read_metrics
from statewise.training.report import Reporter
from statewise.training.run_folder import METRICS_FILE, RUN_FILE
from statewise.training.several import train_several
from statewise.training.tasks import Task, open_task

CPU_FILE = "cpu-seconds.json"  # of all sessions so far
SECONDS_BETWEEN_COUNTS = 2.0
Trial = Mapping[str, Any]  # what one gave


def train_one(run: RunConfig, folder: Path, reporter: Reporter) -> TrainResult:
    """Trains the run in its folder, or continues it.

    Errors: as ``train``; Stopped, with everything saved.
    """
    result = train_run(run, folder, resume=(folder / RUN_FILE).exists(), reporter=reporter)
    if result.signal is not None:
        raise Stopped(result.signal)
    return result


def load_checkpoint(run: RunConfig, folder: Path, which: str = "best") -> Model:
    return load(resolve(folder, which), device=choose_device(run.train.device))


def on_the_test(task: Task[Any, Any], run: RunConfig, folder: Path, rows: int | None) -> dict[str, Any]:
    """The record of the best checkpoint on the test split, or on so many rows of it.

    Errors: DivergedError for answers that are not finite, as on rows longer than those of the training.
    """
    try:
        return task.evaluate(load_checkpoint(run, folder), "test", max_items=rows)
    except NotFiniteError as error:
        raise DivergedError(f"on the test split: {error}") from error


def read_looks(folder: Path) -> list[dict[str, Any]]:
    """At the validation split."""
    return [line for line in read_metrics(folder / METRICS_FILE) if line["kind"] == "evaluation"]


def train_and_test(
    runs: Mapping[str, RunConfig], folder: str, test_rows: int | None, reporter: Reporter
) -> dict[str, Any]:
    """A trial: trains the runs, which differ in their seeds, one after the other, or goes on; then tests each, on
    ``test_rows`` of the test split (None: all).

    A seed that diverged, also one whose answers on the test are not finite, is a result: "diverged" says where. Where
    all did, there are no milliseconds of a step.

    Errors: TrainingError if an evaluation failed for another reason; Stopped, with everything saved.
    """
    path = Path(folder)
    counting = Counting(path / CPU_FILE, reporter)
    try:
        results, diverged, _ = train_runs(runs, path, counting, workers=1)  # its CPU seconds are of this process
    finally:
        counting.write()
    cpu_seconds, step_ms = json.loads((path / CPU_FILE).read_text()), counting.ms_of_steps()
    seeds = {
        name: _tested(run, path / name, results[name], test_rows) if name in results else {"diverged": diverged[name]}
        for name, run in runs.items()
    }
    steps = max((result.step for result in results.values()), default=None)
    return {
        "seeds": seeds,
        "parameters": n_parameters(next(iter(runs.values())).model),
        "cpu_seconds": cpu_seconds,
        "ms_per_step": None if steps is None else 1e3 * cpu_seconds / steps,
        "step_ms": step_ms,
    }


def trained(work: Work, part: str, runs: Mapping[str, RunConfig], test_rows: int | None = None) -> Job:
    """The trial of these runs, whose folder is named after the part."""
    return Job(train_and_test, (runs, str(work.folder / f"run-{part}"), test_rows))


def is_diverged(seed: Trial) -> bool:
    """Whether a part says that a seed diverged. Folders of older versions hold none that did."""
    return seed.get("diverged") is not None


def whole(part: Trial) -> list[Trial]:
    """What a part says of the seeds that did not diverge."""
    return [seed for seed in part["seeds"].values() if not is_diverged(seed)]


def choose_rate(tuned: Mapping[float, Trial]) -> float | None:
    """The learning rate with the least loss on the validation split, of those at which the run did not diverge; None if
    it diverged at every one.
    """
    losses = {rate: found["validation_loss"] for rate, found in tuned.items() if not is_diverged(found)}
    return min(losses, key=losses.__getitem__, default=None)


class TrainedRuns(NamedTuple):
    """results: of the runs that did not diverge; diverged: of the others, where they did; cpu_seconds: of each run, of
    all its threads in this session"""

    results: dict[str, TrainResult]
    diverged: dict[str, str]
    cpu_seconds: dict[str, float]


def train_runs(
    runs: Mapping[str, RunConfig], folder: Path, reporter: Reporter, workers: int | None = None
) -> TrainedRuns:
    """Trains runs, each in ``folder / name``, or continues them; ``workers`` at once (None: one for each core).

    Errors: as ``train_several``, but for a DivergedError: that is a result; Stopped, with everything saved.
    """
    try:
        result = train_several(runs, folder, resume=True, workers=workers, reporter=reporter)
    except DivergedError as error:
        return TrainedRuns({}, {name: _where(folder / name / METRICS_FILE, error.what) for name in runs}, {})
    if result.signal is not None:
        raise Stopped(result.signal)
    diverged = {name: _where(folder / name / METRICS_FILE, message) for name, message in result.diverged.items()}
    return TrainedRuns(result.runs, diverged, result.cpu_seconds)


def _where(metrics: Path, otherwise: str) -> str:
    """Where a run diverged, from the last line of its metrics, or ``otherwise`` if that line could not be written."""
    last = [{}, *(read_metrics(metrics) if metrics.exists() else [])][-1]
    if last.get("kind") != DIVERGED:
        return otherwise
    return str(last.get("what", last["message"]))  # older folders have the whole message alone


class Counting(Reporter):
    """Passes everything on, and adds the seconds that all cores work meanwhile to what the file says.

    It writes at each checkpoint and every few seconds between steps, so that whatever ends the process, steps that are
    kept are counted. Those that a kill takes, and that are done again, are counted twice: both took their time.
    """

    def __init__(self, file: Path, reporter: Reporter) -> None:
        self.file, self.reporter = file, reporter
        file.parent.mkdir(parents=True, exist_ok=True)
        self._before = json.loads(file.read_text()) if file.exists() else 0.0
        steps = self._steps_file
        self._of_steps: float = 0.0
        self._n_steps: int = 0
        if steps.exists():
            self._of_steps, self._n_steps = json.loads(steps.read_text())
        self._begun = self._since = time.process_time()
        self._written = time.monotonic()

    @property
    def _steps_file(self) -> Path:
        return self.file.with_name(f"steps-{self.file.name}")

    def write(self) -> None:
        write_json(self.file, self._before + time.process_time() - self._begun)
        write_json(self._steps_file, [self._of_steps, self._n_steps])
        self._written = time.monotonic()

    def ms_of_steps(self) -> float | None:
        """Milliseconds of all cores for a step alone, without looks at the validation split and checkpoints."""
        return 1e3 * self._of_steps / self._n_steps if self._n_steps else None

    def begin(self, task: Task[Any, Any]) -> None:
        self.reporter.begin(task)

    def event(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "checkpoint":
            self.write()
        self.reporter.event(record)
        self._since = time.process_time()  # a look and a checkpoint are told when they are done

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        now = time.process_time()
        self._of_steps, self._n_steps, self._since = self._of_steps + now - self._since, self._n_steps + 1, now
        if time.monotonic() - self._written >= SECONDS_BETWEEN_COUNTS:
            self.write()
        self.reporter.progress(fraction, record)

    def close(self) -> None:
        self.reporter.close()


def _tested(run: RunConfig, folder: Path, result: TrainResult, rows: int | None) -> dict[str, Any]:
    task, looks = open_task(run), read_looks(folder)
    try:
        record = on_the_test(task, run, folder, rows)
    except DivergedError as error:
        return {"diverged": error.what}
    return {
        "diverged": None,
        "accuracy": record["accuracy"],
        "loss": record["loss"],
        "chance": record["chance"] if "chance" in record else _most_frequent(record["confusion"]),
        "validation": result.validation,
        "epochs": result.step / task.batches.steps_per_epoch,
        "steps": result.step,
        "seconds": result.seconds,
        "parameters": n_parameters(run.model),
        "course": [line["accuracy"] for line in looks],
        "course_seconds": [line["seconds"] for line in looks],
    }


def _most_frequent(confusion: Sequence[Sequence[int]]) -> float:
    """The share of the most frequent class: what is right without looking."""
    rows = [sum(row) for row in confusion]
    return max(rows) / sum(rows)
