"""Training: a loop that reads batches, steps the optimiser, and writes a folder from which it continues bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path

import torch

from statewise.errors import CheckpointError, DivergedError
from statewise.training.config import RunConfig
from statewise.training.course import (
    Course,
    TrainResult,
    changed_record,
    diverged_record,
    end_record,
    fraction_done,
    is_done,
    learning_rate,
    start_record,
)
from statewise.training.environment import process_settings
from statewise.training.logs import require_logs, with_logs
from statewise.training.metrics import MetricsFile, NoMetrics
from statewise.training.open_ranks import open_ranks
from statewise.training.report import Reporter
from statewise.training.run_state import RunState
from statewise.training.signals import ASKED, StopSignals
from statewise.training.update import loss_function, update

__all__ = ["TrainResult", "train_run"]


def train_run(
    config: RunConfig | None,
    folder: Path | str,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
    holds: Collection[str] = (),
    stop_when: Callable[[], bool] | None = None,
) -> TrainResult:
    """Trains a model as ``config`` says, and leaves ``folder`` as run_folder.py describes it.

    With ``resume`` the run continues from its last checkpoint (or begins, if it ended before the first: then with
    any configuration). ``config`` may then be None, for what the folder says, or differ in the fields of
    ``CHANGEABLE_ON_RESUME``. On the CPU, with the same number of threads and a budget in steps or epochs,
    every number is then the same, bit for bit, as if the run had never been stopped. A run that is given more steps
    follows the longer schedule from there on.

    In a process that torchrun started, or that has joined a process group, all processes of it train one model, laid
    out as ``train.parallel`` says: each calls this with the same arguments. Rank 0 writes the folder and reports.
    If torchrun starts the processes again (``--max-restarts``), they continue the run that they had begun.

    holds: what the folder of a new run may hold already, by name: the data that were put there for it.
    stop_when: is called after every step; if it returns True, the run ends there, as by a signal, with a checkpoint.

    The first SIGINT or SIGTERM ends the run after its step, with a checkpoint; the second one at once. PyTorch's,
    Python's and numpy's global generators are seeded. The number of threads and the precision of float32 products
    are set as the configuration says, and back at the end.

    Errors: ConfigError, DataError, CheckpointError (also when the disk is full: what was saved before remains),
            and DivergedError naming the first layer that made a number that is not finite, which is also the last
            line of the metrics, of kind "diverged".
    """
    reporter = Reporter() if reporter is None else reporter
    with ExitStack() as stack:
        ranks = stack.enter_context(open_ranks())
        if ranks.rank:
            reporter = Reporter()
        stack.callback(reporter.close)
        run = stack.enter_context(ranks.open_run(folder, config, resume=resume, holds=holds))
        ranks.by_first(lambda: require_logs(run.config.train.reporting.log))
        stack.enter_context(process_settings(run.config.train))
        state = RunState(run, ranks=ranks)
        # Now that nothing in it was refused: a mistake leaves no run, and a run its old run.json
        ranks.by_first(run.write_config)
        if ranks.rank:
            metrics: MetricsFile | NoMetrics = NoMetrics()
        else:
            metrics = stack.enter_context(MetricsFile(run.metrics_path, keep_to_step=state.progress.step))
            reporter = stack.enter_context(with_logs(reporter, run, state.progress.step))
        if metrics.damaged is not None:
            message = (
                f"{run.metrics_path} had damaged lines: the readable ones are kept, the whole file is in "
                f"{metrics.damaged}"
            )
            reporter.event({"kind": "warning", "step": state.progress.step, "message": message})
        changed = changed_record(state)
        if changed is not None:
            reporter.event(changed)
        stop = stack.enter_context(StopSignals())  # not before: until here there is nothing to save
        try:
            return _loop(state, metrics, reporter, stop, stop_when)
        except DivergedError as error:
            with suppress(CheckpointError):  # the disk is full as well; what it diverged at matters more
                metrics.write(diverged_record(state.progress.step, error))
            raise


def _loop(
    state: RunState,
    metrics: MetricsFile | NoMetrics,
    reporter: Reporter,
    stop: StopSignals,
    stop_when: Callable[[], bool] | None,
) -> TrainResult:
    def asked() -> int | None:
        """A signal, or that a callback wants the run to end."""
        return ASKED if stop.received is None and stop_when is not None and stop_when() else stop.received

    progress, course, ranks = state.progress, Course(state, metrics, reporter), state.ranks
    eager = loss_function(state)
    loss_of = ranks.loss_function(eager)
    if state.config.compile:
        loss_of = torch.compile(loss_of)
    reporter.begin(state.task)
    reporter.event(start_record(state))
    now = time.process_time if state.config.budget.clock == "processor" else time.monotonic
    begun = now() - progress.seconds
    done, stopped_by = is_done(state), None
    while not done and (stopped_by := ranks.signal(asked())) is None:
        step_begun = now()
        lr = learning_rate(state)
        loss, norm = update(state, lr, loss_of, eager)
        ended = now()
        progress.seconds = ranks.clock(ended - begun)
        record = course.count(loss, norm, lr, ended - step_begun)
        done = is_done(state)
        reporter.progress(fraction_done(state), record)
        course.log(record, done)
        is_best = False
        if course.should_evaluate(done):
            is_best = course.evaluate()
            done = is_done(state)
            progress.seconds = ranks.clock(now() - begun)
        if course.should_save(is_best, done):
            course.save()
            progress.seconds = ranks.clock(now() - begun)
    if not done and not course.is_saved:
        course.save()
    reporter.event(end_record(state, stopped_by))
    return course.result(stopped_by, stop.received)
