"""What a run writes and reports, step by step: metrics, validation, checkpoints, records."""

from __future__ import annotations

import json
import math
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from statewise.checkpoints import resolve
from statewise.errors import CheckpointError, DivergedError, InputError, NotFiniteError, TrainingError
from statewise.models.evaluation_mode import evaluation_mode
from statewise.training.metrics import MetricsFile, NoMetrics
from statewise.training.optimizer import describe_groups
from statewise.training.report import Reporter
from statewise.training.run_state import RunState
from statewise.training.schedule import Cadence, learning_rate_factor
from statewise.training.signals import ASKED
from statewise.training.snapshot import set_torch_generators, torch_generators

DIVERGED = "diverged"  # the kind of the last line of metrics of a run that diverged


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """How a run ended.

    validation:       the task's ``metric`` of the validation split after the last step, None without an evaluation
    higher_is_better: which way that metric goes
    signal:           what stopped the run before its end
    late:             a signal that came when the run had its last step behind it: whoever has more to do should not
    stopped:          whether anything did: a signal, or a callback
    """

    folder: Path
    checkpoint: Path | None
    step: int
    seconds: float
    metric: str
    higher_is_better: bool
    validation: float | None
    signal: int | None
    stopped: bool = False
    late: int | None = None

    @property
    def exit_code(self) -> int:
        """0, or as a shell has it for a signal: 128 plus its number."""
        return 0 if self.signal is None else 128 + self.signal


class Course:
    """What one run writes while it trains: lines of metrics, evaluations, checkpoints."""

    def __init__(self, state: RunState, metrics: MetricsFile | NoMetrics, reporter: Reporter) -> None:
        self.state, self.metrics, self.reporter = state, metrics, reporter
        self.reporting = reporting = state.config.reporting
        seconds = state.progress.seconds
        self._evaluate_due = Cadence(reporting.evaluate_every, reporting.evaluate_minutes, seconds)
        self._save_due = Cadence(reporting.save_every, reporting.save_minutes, seconds)
        self._validates = "validation" in state.task.sizes()

    def count(self, loss: float, norm: float, lr: float, seconds: float) -> dict[str, Any]:
        """Takes a step into account that took so many seconds; gives the record of it."""
        progress, task = self.state.progress, self.state.task
        progress.n_steps += 1
        progress.losses += loss
        progress.step_seconds += seconds
        routers, experts = self.state.routers, {}
        if routers is not None:
            progress.expert_loads += routers.load
            experts = {"expert_load": progress.expert_loads / progress.n_steps}
        mean_loss = progress.losses / progress.n_steps
        units, before = units_in(self.state, progress.step), units_in(self.state, progress.step - progress.n_steps)
        return {
            "kind": "train",
            "step": progress.step,
            "seconds": progress.seconds,
            "loss": mean_loss,
            **task.from_loss(mean_loss),
            "gradient_norm": norm,
            "lr": lr,
            **experts,
            task.unit: units,
            f"{task.unit}_per_second": (units - before) / max(progress.step_seconds, 1e-9),
        }

    def log(self, record: dict[str, Any], done: bool) -> None:
        """Writes the record of a step if it is time, or the end."""
        progress = self.state.progress
        if progress.step % self.reporting.log_every == 0 or done:
            self.write(record)
            progress.n_steps, progress.losses, progress.step_seconds, progress.expert_loads = 0, 0.0, 0.0, 0.0

    def should_evaluate(self, done: bool) -> bool:
        progress = self.state.progress
        return self._validates and (self._evaluate_due(progress.step, progress.seconds) or done)

    def evaluate(self) -> bool:
        """Evaluates on the validation split; whether it has never been better."""
        evaluation = _evaluate(self.state)
        self.write(evaluation)
        return bool(evaluation["best"])

    def should_save(self, is_best: bool, done: bool) -> bool:
        progress = self.state.progress
        return self._save_due(progress.step, progress.seconds) or (is_best and self.reporting.keep_best) or done

    def save(self) -> None:
        path = self.state.save(self.metrics.sync)
        self.reporter.event({"kind": "checkpoint", "step": self.state.progress.step, "path": str(path)})

    @property
    def is_saved(self) -> bool:
        """Whether nothing was done since the last checkpoint."""
        step = self.state.progress.step
        return not step or self.state.checkpoint == self.state.run.checkpoint_path(step)

    def write(self, record: dict[str, Any]) -> None:
        try:
            self.state.ranks.by_first(lambda: self.metrics.write(record))  # no rank waits for one that has stopped
        except CheckpointError as error:
            raise CheckpointError(f"{error}; {self.state.what_remains()}") from error
        self.reporter.event(record)

    def result(self, stopped_by: int | None, received: int | None) -> TrainResult:
        state = self.state
        return TrainResult(
            folder=state.run.path,
            checkpoint=state.checkpoint,
            step=state.progress.step,
            seconds=state.progress.seconds,
            metric=state.task.metric,
            higher_is_better=state.task.higher_is_better,
            validation=state.progress.validation,
            signal=None if stopped_by == ASKED else stopped_by,
            stopped=stopped_by is not None,
            late=received if stopped_by is None and received != ASKED else None,
        )


def _evaluate(state: RunState) -> dict[str, Any]:
    """Evaluates on the validation split, in float32 where all weights are there in it; returns the record. The run is
    not affected."""
    task, progress = state.task, state.progress
    generators = torch_generators(state.device)
    try:
        with evaluation_mode(state.model), torch.no_grad(), state.ranks.evaluating(state.device):
            own = task.validate(state.model)
        record = state.ranks.by_first(lambda: own)  # every rank has looked at all of it; what is decided has to be one
    except InputError as error:
        what = f"step {progress.step}: the evaluation failed: {error}"
        if isinstance(error, NotFiniteError):
            raise DivergedError(f"{what}; {state.what_remains()}. {state.advice()}", what) from error
        raise TrainingError(f"{what}; {state.what_remains()}") from error
    set_torch_generators(generators, state.device)
    for name, value in record.items():
        if isinstance(value, float) and not math.isfinite(value):
            what = f"step {progress.step}: the validation {name} is {value}"
            raise DivergedError(f"{what}; {state.what_remains()}. {state.advice()}", what)
    score, best = float(record[task.metric]), progress.best
    is_best = best is None or (score > best if task.higher_is_better else score < best)
    wanted = state.config.budget.stop_at
    if wanted is not None:
        progress.held = progress.held + 1 if (score >= wanted if task.higher_is_better else score <= wanted) else 0
    progress.validation = score
    progress.best = score if is_best else best
    first = {"kind": "evaluation", "step": progress.step, "seconds": progress.seconds}
    return {**first, **{name: value for name, value in record.items() if name not in first}, "best": is_best}


def is_done(state: RunState) -> bool:
    """Whether the budget is spent, or the run is as good as it was asked to become."""
    budget = state.config.budget
    return fraction_done(state) >= 1 or (budget.stop_at is not None and state.progress.held >= budget.stop_after)


def units_in(state: RunState, steps: int) -> int:
    return state.task.units_in(steps * state.config.accumulation)


def fraction_done(state: RunState) -> float:
    """The fraction of the budget that is used; of two budgets, the one nearer to its end."""
    steps, minutes = state.total_steps, state.config.budget.minutes
    by_steps = 0.0 if steps is None else state.progress.step / steps
    by_clock = 0.0 if minutes is None else state.progress.seconds / (60 * minutes)
    return min(1.0, max(by_steps, by_clock))


def learning_rate(state: RunState) -> float:
    """The rate of the next step: by its number, or by the clock where the budget is in minutes alone."""
    config = state.config
    at = fraction_done(state) if state.total_steps is None else (state.progress.step + 1) / state.total_steps
    return config.optimizer.lr * learning_rate_factor(at, **vars(config.schedule))


def start_record(state: RunState) -> dict[str, Any]:
    task = state.task
    return {
        "kind": "start",
        "folder": str(state.run.path),
        "step": state.progress.step,
        "parameters": sum(group.n_parameters for group in state.groups),
        "groups": describe_groups(state.groups, state.config.optimizer.lr),
        "device": str(state.device),
        "threads": torch.get_num_threads(),
        **({"ranks": state.ranks.size} if state.ranks.size > 1 else {}),
        "steps": state.total_steps,
        f"{task.unit}_per_step": units_in(state, 1),
        "data": task.describe(),
        **{f"{split}_{task.unit}": size for split, size in task.sizes().items()},
    }


def changed_record(state: RunState) -> dict[str, Any] | None:
    """The fields that a resumed run changes; None if there are none."""
    changed = state.run.changed
    if not changed:
        return None
    told = ", ".join(f"{name} is now {json.dumps(now)} (was {json.dumps(was)})" for name, (was, now) in changed.items())
    return {
        "kind": "changed",
        "step": state.progress.step,
        "fields": {name: list(values) for name, values in changed.items()},
        "message": f"{state.run.path} continues with other settings: {told}",
    }


def diverged_record(step: int, error: DivergedError) -> dict[str, Any]:
    """The record of a run that diverged after ``step`` steps."""
    return {"kind": DIVERGED, "step": step + 1, "message": str(error), "what": error.what}


def end_record(state: RunState, stopped_by: int | None) -> dict[str, Any]:
    step, seconds, checkpoint = state.progress.step, state.progress.seconds, state.checkpoint
    unit, units = state.task.unit, units_in(state, step)
    best = _best_checkpoint(state)
    if stopped_by is None:
        message = (
            f"done after step {step:,}: {units:,} {unit} in {seconds:,.0f} s, "
            f"{units / max(seconds, 1e-9):,.0f} a second; the last checkpoint is {checkpoint}"
        )
        if best is not None and best != checkpoint:
            message += f"; the best, which evaluate and predict use, is {best.name}"
        kind = "end"
    else:
        saved = f"saved in {checkpoint}" if step else "nothing to save"
        name = "a callback" if stopped_by == ASKED else signal.Signals(stopped_by).name
        again = f"statewise train --resume {state.run.path}"
        message = f"stopped by {name} after step {step:,}, {saved}; to continue: {again}"
        kind = "stop"
    return {
        "kind": kind,
        "step": step,
        "seconds": seconds,
        unit: units,
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "best_checkpoint": None if best is None else str(best),
        "message": message,
    }


def _best_checkpoint(state: RunState) -> Path | None:
    """The checkpoint that a command takes which gets the run's folder; None without any, or with a damaged one."""
    try:
        return resolve(state.run.path)
    except (OSError, CheckpointError):
        return None
