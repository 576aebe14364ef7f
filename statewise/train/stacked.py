"""Training several runs of one configuration, which differ in their seeds and learning rates, as one stack."""

from __future__ import annotations

import json
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from statewise.checkpoints.folders import RUN_FILE
from statewise.configuration import to_dict
from statewise.errors import ConfigError, DivergedError
from statewise.train.config import RunConfig
from statewise.train.course import (
    DIVERGED,
    Course,
    TrainResult,
    changed_record,
    diverged_record,
    end_record,
    fraction_done,
    is_done,
    start_record,
)
from statewise.train.environment import process_settings
from statewise.train.loop import train
from statewise.train.memory_check import require_memory
from statewise.train.metrics import MetricsFile, read_metrics
from statewise.train.ranks import require_one_process
from statewise.train.report import Reporter
from statewise.train.run_folder import METRICS_FILE, open_run, read_run
from statewise.train.run_state import RunState
from statewise.train.signals import StopSignals
from statewise.train.stack import Member, Stack
from statewise.train.stack_folder import common_step, go_back
from statewise.train.stacked_dropout import RandomNumbers

REACHED = "reached"  # of one that was as good as it was asked to become, while others were not


@dataclass(frozen=True, kw_only=True)
class StackResult:
    """How a stack ended.

    runs:     of those that were trained to the end, or to a signal, by name
    diverged: why the others were not
    stacked:  False if they were trained one after the other, as ``train`` does
    """

    runs: dict[str, TrainResult]
    diverged: dict[str, str]
    stacked: bool
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
                f"{first} went wrong{also}, the other {len(self.runs)} runs did not; {first}: {self.diverged[first]}"
            )


def train_stack(
    runs: Mapping[str, RunConfig | None],
    folder: Path | str,
    *,
    resume: bool = False,
    reporter: Reporter | None = None,
) -> StackResult:
    """Trains runs that differ only in ``train.seed`` and ``train.lr`` side by side, each in ``folder / name``.

    Each folder is a run like any other: it can be evaluated, and gone on with alone. The data's order, the dropout and
    the initialisation of a run are those of its own seed, its gradient is clipped by its own norm, and up to rounding
    it becomes what it would be alone. The clock is that of all: seconds in the metrics are of the whole stack.

    A run in which a loss or a gradient is not finite is dropped from the stack, with a last line of kind "diverged" in
    its metrics; the others go on. With ``resume`` (None: each folder's own configuration) the runs go on from the
    newest checkpoint that all have, and those that diverged are left as they are. What only some have, since the stack
    was killed while it saved, is moved to checkpoints/abandoned; what a run made alone is never gone back behind. On
    the CPU, with the same number of
    threads, every number is then the same, bit for bit, as if the stack had never been stopped.

    A run that reaches ``stop_at`` before the others leaves the stack with a checkpoint, and a last line of kind
    "reached" in its metrics; the others go on.

    Where ``torch.func.vmap`` cannot run the model, the runs are trained one after the other, and the reporter is told.

    Cost:   for small models little more than for one: the time of one model, as long as that is spent between
            operations and not in them. Memory of all of them.
    Errors: as :func:`statewise.train.train`; ConfigError if the runs differ in more than seed and learning rate.
            CheckpointError if those to be resumed have no checkpoint in common, or one was gone on with alone.
            If all diverge, DivergedError.
    """
    reporter = Reporter() if reporter is None else reporter
    folder = Path(folder)
    require_one_process("several runs are trained side by side")
    _require_alike({name: run for name, run in runs.items() if run is not None})
    diverged, reached = _left(runs, folder) if resume else ({}, [])
    names = [name for name in runs if name not in diverged and name not in reached]
    ended = {name: _ended(folder / name, runs[name]) for name in reached}
    if not names and ended:
        return StackResult(runs=ended, diverged=diverged, stacked=True, signal=None)
    if not names:
        raise DivergedError(f"every run in {folder} has diverged: {next(iter(diverged.values()))}")
    step = common_step(folder, names) if resume else None
    with ExitStack() as stack:
        stack.callback(reporter.close)
        members: list[Member] = []
        courses: dict[str, Course] = {}
        for name in names:
            begun = resume and (folder / name / RUN_FILE).exists()
            run = stack.enter_context(open_run(folder / name, runs[name], resume=begun))
            if not members:
                stack.enter_context(process_settings(run.config.train))
            state = RunState(run, at=step or 0, stacked=True)
            if not members:
                require_memory(run.config, state.task, copies=len(names))
            members.append(Member(name, state, RandomNumbers(state.device)))
        _require_alike({member.name: member.state.run.config for member in members})
        joined = Stack(members)
        with _quiet():
            refusal = joined.refusal()
        if refusal is None:
            if resume:
                for message in go_back(folder, names, step):
                    reporter.event({"kind": "warning", "step": step, "message": message})
            for member in members:
                member.state.run.write_config()
                changed = changed_record(member.state)
                if changed is not None:
                    reporter.event({**changed, "run": member.name})
                metrics = stack.enter_context(
                    MetricsFile(member.state.run.metrics_path, keep_to_step=member.state.progress.step)
                )
                courses[member.name] = Course(member.state, metrics, reporter, member.name)
            stop = stack.enter_context(StopSignals())
            stack.enter_context(_quiet())
            try:
                result = _loop(joined, courses, ended, diverged, folder, reporter, stop)
            except DivergedError:
                if courses or not ended:
                    raise
                # All others diverged once these had reached what was asked
                result = StackResult(runs=ended, diverged=diverged, stacked=True, signal=None)
    if refusal is not None:
        result = _one_by_one(runs, names, folder, resume, reporter, refusal, diverged)
    result = replace(result, runs={name: result.runs[name] for name in runs if name in result.runs})
    if result.signal is None and any(run.validation is not None for run in result.runs.values()):
        reporter.event(summary(result, {name: read_run(folder / name).train.optimizer.lr for name in runs}))
    return result


def _loop(
    joined: Stack,
    courses: dict[str, Course],
    ended: dict[str, TrainResult],
    diverged: dict[str, str],
    folder: Path,
    reporter: Reporter,
    stop: StopSignals,
) -> StackResult:
    def lose(member: Member, error: DivergedError) -> None:
        diverged[member.name] = str(error)
        courses[member.name].write(diverged_record(member.state.progress.step, error))
        del courses[member.name]
        if not courses:
            raise error

    def each(do: Callable[[Course], Any]) -> list[Any]:
        """``do`` for every member with its random numbers; one for which it fails is dropped."""
        results: list[Any] = []
        lost = []
        for member in list(joined.members):
            try:
                with member.numbers.in_use():
                    results.append(do(courses[member.name]))
            except DivergedError as error:
                lose(member, error)
                lost.append(member)
        if lost:
            joined.drop(lost)
        return results

    def save(course: Course) -> None:
        if not course.is_saved:
            course.state.save(course.metrics.sync, prune=False)

    def save_all() -> None:
        # Each keeps its older ones until all have the new one: whenever this is stopped, there is one that all have
        each(save)
        each(lambda course: course.state.prune())
        state = joined.members[0].state
        reporter.event({"kind": "checkpoint", "step": state.progress.step, "path": str(folder), "runs": [*courses]})

    def leave(members: list[Member]) -> None:
        # What they have reached is saved before it is said, and by all: the others then have a step in common with it
        if not all(course.is_saved for course in courses.values()):
            save_all()
        for member in members:
            course, step = courses.pop(member.name), member.state.progress.step
            message = (
                f"{member.state.config.budget.stop_at:g} on the validation split was reached and has held; it ends here"
            )
            course.write({"kind": REACHED, "step": step, "message": message})
            ended[member.name] = course.result(None)
        joined.drop(members)

    first = joined.members[0].state
    reporter.begin(first.task)
    reporter.event(start_record(first) | {"folder": str(folder), "runs": [*courses]})
    begun = time.monotonic() - first.progress.seconds
    done = is_done(first)

    def tick() -> None:
        for course in courses.values():
            course.state.progress.seconds = time.monotonic() - begun

    while not done and stop.received is None:
        step_begun = time.monotonic()
        went, wrong = joined.update()
        seconds = time.monotonic() - step_begun
        for member, error in wrong:
            lose(member, error)
        tick()
        first = joined.members[0].state
        done = is_done(first)
        records = []
        for step in went:
            course = courses[step.member.name]
            records.append(course.count(step.loss, step.norm, step.lr, seconds))
        reporter.progress(fraction_done(first), _together(records, first.task.unit))
        for step, record in zip(went, records):
            courses[step.member.name].log(record, done)
        # Asked of every course, here and below: each has a clock of its own that has to be set
        reached: list[Member] = []
        is_best, due = False, [course.should_evaluate(done) for course in courses.values()]
        if any(due):
            is_best = any(each(Course.evaluate))
            tick()
            reached = [member for member in joined.members if is_done(member.state)]
            done = len(reached) == len(joined.members)
        due = [course.should_save(is_best, done) for course in courses.values()]
        if any(due):
            save_all()
            tick()
        if reached and not done:
            leave(reached)
    if not done and not all(course.is_saved for course in courses.values()):
        save_all()
    stopped_by = None if done else stop.received
    last = joined.members[0].state
    reporter.event(end_record(last, stopped_by, folder) | {"runs": [*courses], "diverged": [*diverged]})
    results = ended | {name: course.result(stopped_by) for name, course in courses.items()}
    return StackResult(runs=results, diverged=diverged, stacked=True, signal=stopped_by)


def summary(result: StackResult, lrs: Mapping[str, float]) -> dict[str, Any]:
    """A record of the kind "summary": the last validation of each run, and the mean over the seeds of a learning rate.

    lrs: the learning rate of each run. Of several the best is taken, by the mean over its seeds, and is "best_lr"; one
    of which a seed diverged only if that is so of all.
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


def _one_by_one(
    runs: Mapping[str, RunConfig | None],
    names: list[str],
    folder: Path,
    resume: bool,
    reporter: Reporter,
    refusal: str,
    diverged: dict[str, str],
) -> StackResult:
    message = f"the runs are trained one after the other, since this model cannot be stacked: {refusal}"
    reporter.event({"kind": "warning", "step": 0, "message": message})
    results, stopped_by = {}, None
    for name in names:
        try:
            begun = resume and (folder / name / RUN_FILE).exists()
            results[name] = train(runs[name], folder / name, resume=begun, reporter=reporter)
        except DivergedError as error:
            diverged[name] = str(error)
            continue
        stopped_by = results[name].signal
        if stopped_by is not None:
            break
    if not results:
        raise DivergedError(next(iter(diverged.values())))
    return StackResult(runs=results, diverged=diverged, stacked=False, signal=stopped_by)


def _together(records: list[dict[str, Any]], unit: str) -> dict[str, Any]:
    """The records of a step as one: means, and how fast all are."""
    mean = {key: value for key, value in records[0].items() if not isinstance(value, float)}
    for key, value in records[0].items():
        if isinstance(value, float):
            mean[key] = sum(record[key] for record in records) / len(records)
    speed = f"{unit}_per_second"
    return mean | {speed: sum(record[speed] for record in records)}


def _require_alike(runs: Mapping[str, RunConfig]) -> None:
    plain = {}
    for name, run in runs.items():
        data: Any = json.loads(json.dumps(to_dict(run)))
        del data["train"]["seed"], data["train"]["optimizer"]["lr"]
        plain[name] = data
    for name, data in plain.items():
        first, expected = next(iter(plain.items()))
        if data != expected:
            part = next(key for key in expected if data[key] != expected[key])
            raise ConfigError(
                f"{name} and {first} differ in {part}; runs that are trained side by side may differ in train.seed and "
                "train.optimizer.lr alone"
            )


def _left(names: Iterable[str], folder: Path) -> tuple[dict[str, str], list[str]]:
    """The runs that left their stack: those that diverged, with the reason, and those that reached what was asked."""
    diverged, reached = {}, []
    for name in names:
        path = folder / name / METRICS_FILE
        last = [{}, *read_metrics(path)][-1] if path.exists() else {}
        if last.get("kind") == DIVERGED:
            diverged[name] = str(last["message"])
        elif last.get("kind") == REACHED:
            reached.append(name)
    return diverged, reached


def _ended(folder: Path, config: RunConfig | None) -> TrainResult:
    """The result of a run that left its stack because it was done."""
    with open_run(folder, config, resume=True) as run:
        state = RunState(run)
    return TrainResult(
        folder=folder,
        checkpoint=state.checkpoint,
        step=state.progress.step,
        seconds=state.progress.seconds,
        metric=state.task.metric,
        higher_is_better=state.task.higher_is_better,
        validation=state.progress.validation,
        signal=None,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's remark that vmap runs an operation, such as attention, once for each model."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)
        yield
