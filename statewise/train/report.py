"""What a run tells whoever watches: a progress bar on a terminal, JSON lines everywhere else."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TextIO

from statewise.train.optimizer import groups_table

if TYPE_CHECKING:
    from rich.console import Console


class Reporter:
    """Hears of everything and says nothing; the others derive from it.

    ``event`` takes records of these kinds: "start", "train" and "evaluation" (as metrics.jsonl has them),
    "checkpoint", "warning", "stop" (a signal) and "end". ``progress`` is called after every step with the fraction
    of the run that is done and that step's "train" record.
    """

    def event(self, record: Mapping[str, Any]) -> None:
        pass

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        pass

    def close(self) -> None:
        pass


class JsonReporter(Reporter):
    """One JSON object a line, as it happens."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def event(self, record: Mapping[str, Any]) -> None:
        print(json.dumps(record), file=self.stream, flush=True)


class TerminalReporter(Reporter):
    """A bar with loss, bits per byte, tokens per second, gradient norm and the time left; events above it."""

    def __init__(self, console: Console) -> None:
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.console = console
        self.bar = Progress(
            # Every column in one line of 80 characters, whatever is left for the bar
            TextColumn("step {task.fields[step]}"),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:.0f}%"),
            TextColumn("loss {task.fields[loss]:.3f} {task.fields[bits_per_byte]:.3f} bits/byte"),
            TextColumn("{task.fields[tokens_per_second]:,.0f} tok/s"),
            TextColumn("|g| {task.fields[gradient_norm]:.2f}"),
            TimeRemainingColumn(),
            console=console,
            expand=True,
        )
        self.task: Any = None

    def event(self, record: Mapping[str, Any]) -> None:
        kind = record["kind"]
        if kind == "start":
            self._print(record["text"])
            self.console.print(groups_table(record["groups"]))
            begun = f"goes on from step {record['step']:,}" if record["step"] else "begins"
            self._print(f"{record['folder']} {begun}: {record['parameters']:,} parameters on {record['device']}")
        elif kind == "evaluation":
            best = ", the best so far" if record["best"] else ""
            self._print(
                f"step {record['step']:,}: validation loss {record['loss']:.4f}, "
                f"{record['bits_per_byte']:.4f} bits/byte{best}"
            )
        elif kind == "checkpoint":
            self._print(f"step {record['step']:,}: saved {record['path']}")
        elif kind in ("warning", "stop", "end"):
            self._print(record["message"])

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        if self.task is None:
            self.task = self.bar.add_task("", total=1.0, **record)
            self.bar.start()
        self.bar.update(self.task, completed=fraction, **record)

    def close(self) -> None:
        self.bar.stop()

    def _print(self, line: str) -> None:
        self.console.print(line, highlight=False, markup=False, soft_wrap=True)


def make_reporter(stream: TextIO | None = None) -> Reporter:
    """The one that suits ``stream`` (standard output if None)."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty():
        return JsonReporter(stream)
    from rich.console import Console

    return TerminalReporter(Console(file=stream))
