"""Training: a loop that reads batches, steps the optimiser, and leaves a folder from which it can go on bit for bit."""

from __future__ import annotations

import math
import signal
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from statewise.errors import CheckpointError, InputError, TrainingError
from statewise.models.evaluation_mode import evaluation_mode
from statewise.train.config import RunConfig
from statewise.train.environment import process_settings
from statewise.train.metrics import MetricsFile
from statewise.train.optimizer import describe_groups
from statewise.train.report import Reporter
from statewise.train.run_folder import open_run
from statewise.train.run_state import RunState
from statewise.train.schedule import Cadence, learning_rate_factor
from statewise.train.signals import StopSignals
from statewise.train.snapshot import set_torch_generators, torch_generators
from statewise.train.update import loss_function, update


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended.

    validation: the task's ``metric`` of the validation split after the last step, None without a look
    signal:     what stopped the run before its end
    """

    folder: Path
    checkpoint: Path | None
    step: int
    seconds: float
    metric: str
    validation: float | None
    signal: int | None

    @property
    def exit_code(self) -> int:
        """0, or as a shell has it for a signal: 128 plus its number."""
        return 0 if self.signal is None else 128 + self.signal


def train(
    config: RunConfig | None, folder: Path | str, *, resume: bool = False, reporter: Reporter | None = None
) -> TrainResult:
    """Trains a model as ``config`` says, and leaves ``folder`` as run_folder.py describes it.

    With ``resume`` the run goes on from its last checkpoint (or begins, if it ended before the first: then with
    any configuration); ``config`` may then be None, for what the folder says, or differ in what
    ``CHANGEABLE_ON_RESUME`` lists. On the CPU, with the same number of threads and a budget in steps or epochs,
    every number is then the same, bit for bit, as if the run had never been stopped. A run that is given more steps
    follows the longer schedule from there on.

    The first SIGINT or SIGTERM ends the run after its step, with a checkpoint; the second one at once. PyTorch's,
    Python's and numpy's global generators are seeded. The number of threads and the precision of float32 products
    are set as the configuration says, and back at the end.

    Errors: ConfigError, DataError, CheckpointError (also when the disk is full: what was saved before remains),
            and TrainingError naming the first layer that made a number that is not finite.
    """
    reporter = Reporter() if reporter is None else reporter
    with ExitStack() as stack:
        stack.callback(reporter.close)
        run = stack.enter_context(open_run(folder, config, resume=resume))
        stack.enter_context(process_settings(run.config.train))
        state = RunState(run)
        run.write_config()  # now that nothing in it was refused: a mistake leaves no run, and a run its old run.json
        metrics = stack.enter_context(MetricsFile(run.metrics_path, keep_to_step=state.progress.step))
        if metrics.damaged is not None:
            message = (
                f"{run.metrics_path} had damaged lines: what can be read goes on, the rest is in {metrics.damaged}"
            )
            reporter.event({"kind": "warning", "step": state.progress.step, "message": message})
        stop = stack.enter_context(StopSignals())  # not before: until here there is nothing to save
        return _loop(state, metrics, reporter, stop)


def _loop(state: RunState, metrics: MetricsFile, reporter: Reporter, stop: StopSignals) -> TrainResult:
    config, progress, task = state.config, state.progress, state.task
    eager = loss_function(state)
    loss_of = torch.compile(eager) if config.compile else eager
    evaluate_due = Cadence(config.evaluate_every, config.evaluate_minutes, progress.seconds)
    save_due = Cadence(config.save_every, config.save_minutes, progress.seconds)
    units_per_step = _units_per_step(state)
    validates = "validation" in task.sizes()

    def write(record: dict[str, Any]) -> None:
        try:
            metrics.write(record)
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {state.what_remains()}") from error
        reporter.event(record)

    def save() -> None:
        reporter.event({"kind": "checkpoint", "step": progress.step, "path": str(state.save(metrics.sync))})

    reporter.begin(task)
    reporter.event(_start_record(state))
    begun = time.monotonic() - progress.seconds
    done = _fraction_done(state) >= 1
    while not done and stop.received is None:
        step_begun = time.monotonic()
        lr = _learning_rate(state)
        loss, norm = update(state, lr, loss_of, eager)
        now = time.monotonic()
        progress.seconds = now - begun
        progress.n_steps += 1
        progress.losses += loss
        progress.step_seconds += now - step_begun
        done = _fraction_done(state) >= 1

        mean_loss = progress.losses / progress.n_steps
        record = {
            "kind": "train",
            "step": progress.step,
            "seconds": progress.seconds,
            "loss": mean_loss,
            **task.from_loss(mean_loss),
            "gradient_norm": norm,
            "lr": lr,
            task.unit: progress.step * units_per_step,
            f"{task.unit}_per_second": progress.n_steps * units_per_step / max(progress.step_seconds, 1e-9),
        }
        reporter.progress(_fraction_done(state), record)
        if progress.step % config.log_every == 0 or done:
            write(record)
            progress.n_steps, progress.losses, progress.step_seconds = 0, 0.0, 0.0

        is_best = False
        if validates and (evaluate_due(progress.step, progress.seconds) or done):
            evaluation = _evaluate(state)
            write(evaluation)
            is_best = evaluation["best"]
            progress.seconds = time.monotonic() - begun
        if save_due(progress.step, progress.seconds) or (is_best and config.keep_best) or done:
            save()
            progress.seconds = time.monotonic() - begun

    if not done and progress.step and state.checkpoint != state.run.checkpoint_path(progress.step):
        save()
    reporter.event(_end_record(state, None if done else stop.received))
    return TrainResult(
        folder=state.run.path,
        checkpoint=state.checkpoint,
        step=progress.step,
        seconds=progress.seconds,
        metric=task.metric,
        validation=progress.validation,
        signal=None if done else stop.received,
    )


def _evaluate(state: RunState) -> dict[str, Any]:
    """Looks at the validation split, in float32; gives the record. The run goes on as if nobody had looked."""
    task, progress = state.task, state.progress
    generators = torch_generators(state.device)
    try:
        with evaluation_mode(state.model), torch.no_grad():
            record = task.validate(state.model)
    except InputError as error:
        raise TrainingError(f"step {progress.step}: the evaluation failed: {error}; {state.what_remains()}") from error
    set_torch_generators(generators, state.device)
    for name, value in record.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise TrainingError(f"step {progress.step}: the validation {name} is {value}; {state.what_remains()}")
    score, best = float(record[task.metric]), progress.best
    is_best = best is None or (score > best if task.higher_is_better else score < best)
    progress.validation = score
    progress.best = score if is_best else best
    own = {"kind": "evaluation", "step": progress.step, "seconds": progress.seconds}
    return {**own, **{name: value for name, value in record.items() if name not in own}, "best": is_best}


def _units_per_step(state: RunState) -> int:
    return state.config.accumulation * state.task.units_per_batch


def _fraction_done(state: RunState) -> float:
    """Of the budget; of the one nearer to its end where there are two."""
    steps, minutes = state.total_steps, state.config.minutes
    by_steps = 0.0 if steps is None else state.progress.step / steps
    by_clock = 0.0 if minutes is None else state.progress.seconds / (60 * minutes)
    return min(1.0, max(by_steps, by_clock))


def _learning_rate(state: RunState) -> float:
    """Of the step to come: by its number, or by the clock where the budget is in minutes alone."""
    config = state.config
    at = _fraction_done(state) if state.total_steps is None else (state.progress.step + 1) / state.total_steps
    return config.lr * learning_rate_factor(
        at, kind=config.schedule, warmup=config.warmup, decay=config.decay, minimum=config.lr_min_ratio
    )


def _start_record(state: RunState) -> dict[str, Any]:
    task = state.task
    return {
        "kind": "start",
        "folder": str(state.run.path),
        "step": state.progress.step,
        "parameters": sum(group.n_parameters for group in state.groups),
        "groups": describe_groups(state.groups, state.config.lr),
        "device": str(state.device),
        "threads": torch.get_num_threads(),
        "steps": state.total_steps,
        f"{task.unit}_per_step": _units_per_step(state),
        "data": task.describe(),
        **{f"{split}_{task.unit}": size for split, size in task.sizes().items()},
    }


def _end_record(state: RunState, stopped_by: int | None) -> dict[str, Any]:
    step, seconds, checkpoint = state.progress.step, state.progress.seconds, state.checkpoint
    unit, units = state.task.unit, step * _units_per_step(state)
    if stopped_by is None:
        message = (
            f"done after step {step:,}: {units:,} {unit} in {seconds:,.0f} s, {units / max(seconds, 1e-9):,.0f} a "
            f"second; the last checkpoint is {checkpoint}"
        )
        kind = "end"
    else:
        saved = f"saved in {checkpoint}" if step else "nothing to save"
        name = signal.Signals(stopped_by).name
        message = f"stopped by {name} after step {step:,}, {saved}; to go on: statewise train --resume {state.run.path}"
        kind = "stop"
    return {
        "kind": kind,
        "step": step,
        "seconds": seconds,
        unit: units,
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "message": message,
    }
