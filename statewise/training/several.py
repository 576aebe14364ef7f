"""Training several runs, such as the seeds of one configuration: as many at once as there are cores."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from statewise.checkpoints.folders import RUN_FILE
from statewise.errors import ConfigError, DivergedError
from statewise.training.config import CHANGEABLE_ON_RESUME, RunConfig
from statewise.training.course import DIVERGED, TrainResult
from statewise.training.environment import choose_device
from statewise.training.loop import train_run
from statewise.training.memory_check import require_memory
from statewise.training.metrics import read_metrics
from statewise.training.ranks import require_one_process
from statewise.training.report import Reporter
from statewise.training.run_folder import METRICS_FILE, differences, read_run
from statewise.training.several_folder import read_one_of, require_as_begun
from statewise.training.signals import Stopped
from statewise.training.tasks import Task, open_task
from statewise.training.workers import Job, n_cores, run_jobs


@dataclass(frozen=True, kw_only=True)
class SeveralResult:
    """How several runs ended.

    runs:        of those that were trained to the end, or to a signal, by name
    diverged:    why the others were not
    cpu_seconds: of all threads of each run, in this session
    signal:      what stopped them before their end
    """

    runs: dict[str, TrainResult]
    diverged: dict[str, str]
    cpu_seconds: dict[str, float]
    signal: int | None

    @property
    def exit_code(self) -> int:
        """0, or as a shell has it for a signal: 128 plus its number."""
        return 0 if self.signal is None else 128 + self.signal

    def require_all(self) -> None:
        """Errors: DivergedError if a run diverged, with the names of all that did and the first one's reason."""
        if self.diverged:
            first = next(iter(self.diverged))
            others = [name for name in self.diverged if name != first]
            also = f" (and so did {', '.join(others)})" if others else ""
            raise DivergedError(
                f"{first} went wrong{also}, {len(self.runs)} of {len(self.runs) + len(self.diverged)} runs did not; "
                f"{first}: {self.diverged[first]}"
            )


def train_several(
    runs: Mapping[str, RunConfig | None],
    folder: Path | str,
    *,
    resume: bool = False,
    workers: int | None = None,
    reporter: Reporter | None = None,
) -> SeveralResult:
    """Trains runs by name, each in ``folder / name`` as :func:`statewise.training.train_run` does.

    workers: how many are trained at once, each in a new Python process with its share of the cores; 1: in this process,
             one after the other. None: as many as there are runs, if the cores suffice for the threads that they set;
             on CUDA 1. A run has as many threads however many of the others are still to be done.

    A run in which a loss or a gradient is not finite ends with a last line of kind "diverged" in its metrics; the
    others continue. With ``resume`` (None: each folder's own configuration) each continues from its own last
    checkpoint, or begins; those that diverged are left as they are, or begin again if they are given with other
    settings. On the CPU, with the same number of threads, every number is then the same, bit for bit, as if nothing
    had been stopped.

    The first SIGINT or SIGTERM ends all runs after their steps, each with a checkpoint; the second one at once. At the
    end of all, if they have one metric, the reporter gets a "summary".

    Cost:   memory of as many runs as are trained at once; before several processes start, so many of the first run
            have to fit into what is free.
    Errors: as :func:`statewise.training.train_run`; of one run, after the others have saved and ended. WorkerError if a
            process is killed. ConfigError for fewer than one worker, for classes of your own that another process
            cannot import, and for a run that ``folder`` says was begun with other settings. If all diverge,
            DivergedError.
    """
    reporter, folder = Reporter() if reporter is None else reporter, Path(folder)
    require_one_process("several runs are begun")
    given = {name: read_one_of(folder, name) if run is None else run for name, run in runs.items()}
    if resume:
        require_as_begun(folder, given)
    diverged = _diverged(given, folder) if resume else {}
    missing = {name: run for name, run in given.items() if name not in diverged}
    if not missing:
        raise DivergedError(f"every run in {folder} has diverged: {next(iter(diverged.values()))}")
    n_workers = _workers(given, workers)
    results: dict[str, TrainResult] = {}
    cpu_seconds: dict[str, float] = {}

    def finished(name: str, record: Mapping[str, Any]) -> None:
        cpu_seconds[name] = record["cpu_seconds"]
        if record["diverged"] is not None:
            diverged[name] = record["diverged"]
            reporter.event({"kind": DIVERGED, "run": name, "message": record["diverged"], **_last(folder / name)})
            return
        paths = {key: Path(record["result"][key]) for key in ("folder", "checkpoint") if record["result"][key]}
        results[name] = result = TrainResult(**{**record["result"], **paths})
        asked = result.signal
        if asked is None and len(cpu_seconds) < len(missing):
            asked = result.late
        if asked is not None:
            raise Stopped(asked)

    arguments = {name: (run, str(folder / name), resume) for name, run in missing.items()}
    stopped_by = None
    try:
        if n_workers == 1:
            for name, each in arguments.items():
                finished(name, train_one(*each, _Named(reporter, name, begins=not cpu_seconds)))
        else:
            first = next(iter(missing.values()))
            task = open_task(first)
            require_memory(task.run, task, copies=min(n_workers, len(missing)))
            reporter.begin(task)
            named = {name: _Named(reporter, name) for name in missing}
            jobs = {name: Job(train_one, each) for name, each in arguments.items()}
            run_jobs(jobs, n_workers, lambda name, message: named[name].hear(message), finished)
    except Stopped as stopped:
        stopped_by = stopped.signal
        name = signal.Signals(stopped_by).name
        message = f"stopped by {name}, what was done is saved; to continue: statewise train --resume {folder}"
        reporter.event({"kind": "stop", "runs": list(runs), "message": message})
    finally:
        reporter.close()
    if not results and stopped_by is None:
        raise DivergedError(next(iter(diverged.values())))
    result = SeveralResult(
        runs={name: results[name] for name in runs if name in results},
        diverged={name: diverged[name] for name in runs if name in diverged},
        cpu_seconds=cpu_seconds,
        signal=stopped_by,
    )
    metrics = {run.metric for run in result.runs.values() if run.validation is not None}
    if stopped_by is None and len(metrics) == 1:
        reporter.event(summary(result, {name: run.train.optimizer.lr for name, run in given.items()}))
    return result


def train_one(config: RunConfig, folder: str, resume: bool, reporter: Reporter) -> dict[str, Any]:
    """A run in its folder, begun or continued, as JSON data: its result, or why it diverged."""
    begun, result, diverged = time.process_time(), None, None
    try:
        found = train_run(config, folder, resume=resume and (Path(folder) / RUN_FILE).exists(), reporter=reporter)
        result = asdict(found) | {key: str(path) for key, path in vars(found).items() if isinstance(path, Path)}
    except DivergedError as error:
        diverged = str(error)
    return {"result": result, "diverged": diverged, "cpu_seconds": time.process_time() - begun}


def summary(result: SeveralResult, lrs: Mapping[str, float]) -> dict[str, Any]:
    """A record of the kind "summary": the last validation of each run, and the mean over the seeds of a learning rate.

    lrs: the learning rate of each run. "best_lr" is the best of several, by the mean over its seeds. A rate with a seed
    that diverged is only taken if all rates have one.
    """
    scores = {name: run.validation for name, run in result.runs.items() if run.validation is not None}
    first = next(iter(result.runs.values()))
    by_rate: dict[float, list[float]] = {}
    for name, score in scores.items():
        by_rate.setdefault(lrs[name], []).append(score)
    means = {lr: statistics.fmean(values) for lr, values in by_rate.items()}
    lost = {lrs[name] for name in result.diverged}
    candidates = {lr: mean for lr, mean in means.items() if lr not in lost} or means
    best = (max if first.higher_is_better else min)(candidates, key=candidates.__getitem__)
    return {
        "kind": "summary",
        "metric": first.metric,
        "validation": scores,
        "best_lr": best if len(set(lrs.values())) > 1 else None,
        "mean": means[best],
        "standard_deviation": statistics.stdev(by_rate[best]) if len(by_rate[best]) > 1 else None,
        "diverged": [*result.diverged],
    }


class _Named(Reporter):
    """Passes on what a run reports, with its name; except that it was stopped, which is reported for all.

    begins: whether the task of the runs was not yet reported
    """

    def __init__(self, reporter: Reporter, name: str, begins: bool = False) -> None:
        self.reporter, self.name, self.begins = reporter, name, begins

    def begin(self, task: Task[Any, Any]) -> None:
        if self.begins:
            self.reporter.begin(task)

    def event(self, record: Mapping[str, Any]) -> None:
        if record["kind"] != "stop":
            self.reporter.event({"kind": record["kind"], "run": self.name, **record})

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        self.reporter.progress(fraction, {**record, "run": self.name})

    def hear(self, message: Mapping[str, Any]) -> None:
        """What its process says."""
        if message["kind"] == "event":
            self.event(message["record"])
        else:
            self.progress(message["fraction"], message["record"])


def _workers(runs: Mapping[str, RunConfig], workers: int | None) -> int:
    if workers is not None and workers < 1:
        raise ConfigError(f"workers={workers} is too few; use at least 1")
    first = next(iter(runs.values())).train
    if workers is None:
        workers = 1 if choose_device(first.device).type == "cuda" else n_cores() // (first.threads or 1)
    return max(1, min(workers, len(runs)))


def _last(run: Path) -> dict[str, Any]:
    """The last line of a run's metrics if it is that it diverged; else nothing."""
    path = run / METRICS_FILE
    last = [{}, *(read_metrics(path) if path.exists() else [])][-1]
    return last if last.get("kind") == DIVERGED else {}


def _diverged(runs: Mapping[str, RunConfig], folder: Path) -> dict[str, str]:
    """Those of an earlier session, with the reason; but for one with settings that it was not begun with."""
    found = {name: _last(folder / name) for name in runs}
    return {
        name: str(last["message"])
        for name, last in found.items()
        if last and differences(read_run(folder / name), runs[name]).keys() <= CHANGEABLE_ON_RESUME
    }
