"""What you see of a run: a progress bar on a terminal, JSON lines everywhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TextIO

from statewise.errors import reason
from statewise.training.optimizer import groups_table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from statewise.training.tasks.base import Task

SHORT = {"tokens": "tok", "sequences": "seq", "windows": "win"}  # units, in the bar


class Reporter:
    """Receives everything and prints nothing; the others derive from it.

    ``event`` takes records of these kinds: "recognised" (what data were taken for), "start", "train" and "evaluation"
    (as metrics.jsonl has them), "checkpoint", "warning", "changed" (fields that a resumed run changes), "stop" (a
    signal, or a callback) and "end". ``progress`` is called after every step with the fraction of the run that is done
    and that step's "train" record. ``begin`` comes first, with the task.

    With several runs, all these records, and those of ``progress``, have the run's name under "run". One "stop" for all
    has their names under "runs". A run that went wrong gives a "diverged". At the end, if all got there, there is a
    "summary": the last validation of each run, and the mean over the seeds of the best learning rate.
    """

    def begin(self, task: Task[Any, Any]) -> None:
        pass

    def event(self, record: Mapping[str, Any]) -> None:
        pass

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class Reporters(Reporter):
    """Passes everything on to several reporters, in their order.

    reporters: one that raises an error is left out from then on; the others get a "warning" that says so, or, if none
               is left, standard error does. The run continues
    essential: called first; an exception in it ends the run, as it would if it were alone
    """

    def __init__(self, *reporters: Reporter, essential: Reporter | None = None) -> None:
        self.reporters = list(reporters)
        self.essential = essential

    def begin(self, task: Task[Any, Any]) -> None:
        self._tell(lambda reporter: reporter.begin(task), {})

    def event(self, record: Mapping[str, Any]) -> None:
        self._tell(lambda reporter: reporter.event(record), record)

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        self._tell(lambda reporter: reporter.progress(fraction, record), record)

    def close(self) -> None:
        self.close_others()
        if self.essential is not None:
            self.essential.close()

    def close_others(self) -> None:
        """All but the essential one."""
        self._tell_others(lambda reporter: reporter.close(), {})

    def _tell(self, tell: Callable[[Reporter], None], record: Mapping[str, Any]) -> None:
        if self.essential is not None:
            tell(self.essential)
        self._tell_others(tell, record)

    def _tell_others(self, tell: Callable[[Reporter], None], record: Mapping[str, Any]) -> None:
        for reporter in tuple(self.reporters):
            if reporter not in self.reporters:  # left out meanwhile: it failed at hearing of another's failure
                continue
            try:
                tell(reporter)
            except Exception as error:
                self._leave_out(reporter, error, record)

    def _leave_out(self, reporter: Reporter, error: Exception, record: Mapping[str, Any]) -> None:
        """Tells the others that one has failed, at a record of this run and step."""
        self.reporters.remove(reporter)
        about = {name: record[name] for name in ("run", "step") if name in record}
        message = (
            f"{type(reporter).__name__} failed and is left out from now on; the run continues "
            f"({type(error).__name__}: {reason(error)})"
        )
        if self.essential is None and not self.reporters:
            print(f"warning: {message}", file=sys.stderr)
        else:
            self.event({"kind": "warning", **about, "message": message})


class JsonReporter(Reporter):
    """One JSON object a line, as it happens."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def event(self, record: Mapping[str, Any]) -> None:
        print(json.dumps(record), file=self.stream, flush=True)


class TerminalReporter(Reporter):
    """A bar with the loss and what else the task shows, speed, gradient norm and the time left; events above it."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bar: Any = None
        self.rows: dict[str, Any] = {}  # of the bar, by the name of the run
        self.task: Any = None
        self.is_described = False

    def begin(self, task: Task[Any, Any]) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.task, self.rows, self.is_described = task, {}, False
        self.bar = Progress(
            # Every column in one line of 80 characters, whatever is left for the bar
            TextColumn("{task.description}step {task.fields[step]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:.0f}%"),
            TextColumn("{task.fields[shown]}"),
            TextColumn("|g| {task.fields[gradient_norm]:.2f}"),
            TimeRemainingColumn(),
            console=self.console,
            expand=True,
        )

    def event(self, record: Mapping[str, Any]) -> None:
        kind, run = record["kind"], record.get("run")
        if kind == "start" and not self.is_described:  # of several runs the first: they differ in little
            self.is_described = True
            self._print(record["data"])
            self.console.print(groups_table(record["groups"]))
        if kind == "summary":
            self.console.print(summary_table(record))
        if kind in ("end", "diverged") and run in self.rows:
            self.bar.remove_task(self.rows.pop(run))
        line = event_line(record, self.task)
        if line is not None:
            self._print(line)

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        shown = {
            "step": record["step"],
            "gradient_norm": record["gradient_norm"],
            "shown": progress_line(record, self.task),
        }
        run = record.get("run", "")
        if run not in self.rows:
            self.rows[run] = self.bar.add_task(run and f"{run} ", total=1.0, **shown)
            self.bar.start()
        self.bar.update(self.rows[run], completed=fraction, **shown)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def event_line(record: Mapping[str, Any], task: Task[Any, Any] | None) -> str | None:
    """An event of a training run in a line; None of what has none, as "train". task: what is trained for, once told."""
    kind = record["kind"]
    if kind == "start":
        begun = f"continues from step {record['step']:,}" if record["step"] else "begins"
        return f"{record['folder']} {begun}: {record['parameters']:,} parameters on {record['device']}"
    if kind == "evaluation" and task is not None:
        best = ", the best so far" if record["best"] else ""
        name = f"{record['run']}, " if "run" in record else ""
        return f"{name}step {record['step']:,}: validation {task.evaluation_line.format(**record)}{best}"
    if kind == "checkpoint":
        return f"step {record['step']:,}: saved {record['path']}"
    if kind == "diverged":
        return f"{record['run']}: {record['message']}; the others continue"
    return str(record["message"]) if kind in ("recognised", "warning", "changed", "stop", "end") else None


def progress_line(record: Mapping[str, Any], task: Task[Any, Any]) -> str:
    """What a "train" record says beside a bar: the loss, what else the task shows, how many times the mean the busiest
    expert has, and the speed."""
    speed = f"{record[f'{task.unit}_per_second']:,.0f} {SHORT.get(task.unit, task.unit)}/s"
    load = f" load {record['expert_load']:.2f}" if "expert_load" in record else ""
    return f"{task.progress_line.format(**record)}{load} {speed}"


def summary_table(record: Mapping[str, Any]) -> Table:
    """The "summary" of several runs, as a table that rich can print."""
    from rich.table import Table

    table = Table("run", title="after the last step, validation split", title_justify="left")
    table.add_column(record["metric"].replace("_", " "), justify="right")
    for name, score in record["validation"].items():
        table.add_row(name, f"{score:.4f}")
    for name in record["diverged"]:
        table.add_row(name, "diverged")
    spread = record["standard_deviation"]
    if record["best_lr"] is not None or spread is not None:
        deviation = "" if spread is None else f" ({spread:.4f})"
        name = "mean" if spread is None else "mean (standard deviation)"
        if record["best_lr"] is not None:
            name = f"the best rate, {record['best_lr']:g}" + ("" if spread is None else f": {name}")
        table.add_row(name, f"{record['mean']:.4f}{deviation}")
    return table


def make_reporter(stream: TextIO | None = None) -> Reporter:
    """The one that suits ``stream`` (standard output if None)."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return JsonReporter(stream)
    from rich.console import Console

    return TerminalReporter(Console(file=stream))
