"""What a reproduction reports to whoever watches: a bar on a terminal, JSON lines everywhere else, as training does."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, TextIO

from statewise.training.report import Reporter, make_reporter

if TYPE_CHECKING:
    from rich.console import Console

    from statewise.training.tasks.base import Task


class Watcher:
    """Hears of everything and says nothing; the others derive from it.

    ``event`` takes records of these kinds: "start"; "part", when a part is done or was found done; "warning"; "stop",
    for Ctrl-C; "end". ``progress`` is how much of a part is done, with something to
    show beside it; several parts may be under way, in processes of their own.
    """

    def event(self, record: Mapping[str, Any]) -> None:
        pass

    def event_within(self, part: str, record: Mapping[str, Any], line: str | None) -> None:
        """An event of a training run within a part that another process does; ``line``: the record in words, if it has
        some.
        """

    def progress(self, part: str, fraction: float, shown: str = "") -> None:
        pass

    def close(self) -> None:
        """The present part is at its end, or given up: what shows its progress goes away."""

    def training(self) -> Reporter:
        """What a training run within a part tells its progress to."""
        return Reporter()


class PartReporter(Reporter):
    """What a part in this process tells its progress to: a training run within it as training does, the rest as that
    of the part."""

    def __init__(self, watcher: Watcher, part: str) -> None:
        self.watcher, self.part = watcher, part

    @cached_property
    def run(self) -> Reporter:
        return self.watcher.training()

    def begin(self, task: Task[Any, Any]) -> None:
        self.run.begin(task)

    def event(self, record: Mapping[str, Any]) -> None:
        self.run.event(record)

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        """record: of a training step; empty of anything else"""
        if record:
            self.run.progress(fraction, record)
        else:
            self.watcher.progress(self.part, fraction)

    def close(self) -> None:
        if "run" in self.__dict__:
            self.run.close()


class JsonWatcher(Watcher):
    """One JSON object a line, as it happens."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def event(self, record: Mapping[str, Any]) -> None:
        print(json.dumps(record), file=self.stream, flush=True)

    def event_within(self, part: str, record: Mapping[str, Any], line: str | None) -> None:
        self.event({"kind": record["kind"], "part": part, **record})

    def training(self) -> Reporter:
        return make_reporter(self.stream)


class TerminalWatcher(Watcher):
    """A line for every part, and a bar for each present one that reports progress."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self.console, self.stream = console, stream
        self.bar: Any = None
        self.rows: dict[str, Any] = {}  # of the bar, by part

    def event(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "part":
            if record["part"] in self.rows:
                self.bar.remove_task(self.rows.pop(record["part"]))
            how = "found done" if record["found"] else f"{record['seconds']:,.1f} s"
            line = f"{record['done']} of {record['of']}  {record['part']}: {how}"
        else:
            line = record["message"]
        if not self.rows:
            self.close()
        self._print(line)

    def event_within(self, part: str, record: Mapping[str, Any], line: str | None) -> None:
        """Only what somebody has to know: the bar shows how it goes."""
        if line is not None and record["kind"] in ("warning", "diverged"):
            self._print(f"{part}: {line}")

    def progress(self, part: str, fraction: float, shown: str = "") -> None:
        if self.bar is None:
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.percentage:.0f}%"),
                TextColumn("{task.fields[shown]}"),
                TimeRemainingColumn(),
                console=self.console,
                transient=True,
            )
            self.bar.start()
        if part not in self.rows:
            self.rows[part] = self.bar.add_task(part, total=1.0, shown=shown)
        self.bar.update(self.rows[part], completed=fraction, shown=shown)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar, self.rows = None, {}

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)

    def training(self) -> Reporter:
        self.close()
        return make_reporter(self.stream)


def make_watcher(stream: TextIO | None = None) -> Watcher:
    """The one that suits ``stream`` (standard output if None)."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return JsonWatcher(stream)
    from rich.console import Console

    return TerminalWatcher(Console(file=stream), stream)
