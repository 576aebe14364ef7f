"""A result to print, to read and to compute with: tables beside the published ones, bars, and plots."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from statewise import __version__
from statewise.configuration import to_dict
from statewise.reproduce.hardware import today
from statewise.reproduce.work import Work, finite, write_json, write_text
from statewise.train.tables import print_result
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULT_FILE = "result.json"
REPORT_FILE = "report.md"


@dataclass(frozen=True, kw_only=True)
class Bar:
    """What has to be reached: ``ours`` at least ``bar``, or ``beyond`` it; ``unit`` is printed behind both.

    ours: None where what was to be measured diverged
    """

    what: str
    ours: float | None
    bar: float
    beyond: bool = False
    unit: str = ""

    @property
    def holds(self) -> bool:
        if self.ours is None:
            return False
        return self.ours > self.bar if self.beyond else self.ours >= self.bar

    def __str__(self) -> str:
        words = "more than" if self.beyond else "at least"
        verdict = "reached" if self.holds else "MISSED"
        ours = "diverged" if self.ours is None else f"{self.ours:,.4g}{self.unit}"
        return f"{verdict}: {self.what}: {ours}, {words} {self.bar:,.4g}{self.unit} was asked"


class Plot(NamedTuple):
    """A figure for the file ``<name>.png``: ``write`` makes it. :func:`drawn` is one from an empty figure."""

    name: str
    title: str
    write: Callable[[Path], None]


def drawn(name: str, title: str, draw: Callable[[Figure], None], *, width: float = 7.5, height: float = 4.8) -> Plot:
    """The plot that ``draw`` makes of an empty figure so large, in inches."""

    def write(path: Path) -> None:
        from statewise.train.plotting import figure

        with figure(path, width, height) as drawing:
            draw(drawing)

    return Plot(name, title, write)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a reproduction found.

    setting:     what was done, in a sentence or two
    tables:      the published figures beside ours
    differences: in what the setting differs from the published one, and what is not known of that
    figures:     the numbers themselves, JSON data
    bars:        what the project asks of itself; empty in a quick look
    """

    title: str
    setting: str
    tables: Sequence[Table]
    differences: Sequence[str] = ()
    figures: dict[str, Any] = field(default_factory=dict)
    bars: Sequence[Bar] = ()
    plots: Sequence[Plot] = ()


def doubling_axis(axes: Axes, values: Sequence[int], label: str) -> None:
    """A logarithmic axis of x with a tick at each value and nowhere else."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(values), [f"{value:,}" for value in values])
    axes.set_xticks([], minor=True)
    axes.set_xlabel(label)
    axes.grid(alpha=0.3)


def write_report(report: Report, work: Work, *, plots: bool) -> dict[str, Any]:
    """result.json, report.md and the plots, into the folder of the work; gives what result.json holds.

    Errors: CheckpointError where they cannot be written.
    """
    written = list(report.plots) if plots else []
    for plot in written:
        plot.write(work.folder / f"{plot.name}.png")
    record = {
        "reproduction": work.name,
        "title": report.title,
        "setting": report.setting,
        "settings": to_dict(work.config),
        "date": today(),
        "statewise_version": __version__,
        "environments": work.environments,
        "seconds": work.seconds,
        "cpu_seconds": work.cpu_seconds,
        "figures": report.figures,
        "tables": [table._asdict() for table in report.tables],
        "bars": [{**asdict(bar), "holds": bar.holds} for bar in report.bars],
        "differences": list(report.differences),
        "plots": [f"{plot.name}.png" for plot in written],
    }
    record = finite(record)
    write_json(work.folder / RESULT_FILE, record)
    write_text(work.folder / REPORT_FILE, markdown(report, record, written))
    return record


def markdown(report: Report, record: dict[str, Any], plots: Sequence[Plot]) -> str:
    """The report as a page."""
    lines = [f"# {report.title}", "", report.setting, ""]
    for table in report.tables:
        lines += [f"## {table.title}", "", *_markdown_table(table), ""]
        lines += [line for note in table.notes for line in (note, "")]
    if report.bars:
        lines += ["## Bars", "", *(f"- {bar}" for bar in report.bars), ""]
    if report.differences:
        lines += ["## What differs from the published setting", "", *(f"- {text}" for text in report.differences), ""]
    for plot in plots:
        lines += [f"## {plot.title}", "", f"![{plot.title}]({plot.name}.png)", ""]
    lines += ["## Where and how", "", f"{record['date']}, {record['seconds']:,.0f} s, {machines(record)}", ""]
    lines += ["```json", json.dumps(record["settings"], indent=2), "```", ""]
    return "\n".join(lines)


def _markdown_table(table: Table) -> list[str]:
    columns = [column or " " for column in table.columns]
    rows = [columns, ["---"] + ["---:"] * (len(columns) - 1), *table.rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in rows]


def machines(record: dict[str, Any]) -> str:
    """The machine in a line; if the parts were measured on several, all of them."""
    return "; ".join(
        f"{place.get('gpu', place['cpu'])}, {place['cores']} cores, {place['threads']} threads, "
        f"PyTorch {place['torch']}, statewise {place['statewise']}"
        for place in record["environments"]
    )


def print_report(
    report: Report, record: dict[str, Any], folder: Path, *, as_json: bool | None = None, stream: TextIO | None = None
) -> None:
    """Tables on a terminal, the record as one JSON line elsewhere, unless ``as_json`` decides."""
    stream = sys.stdout if stream is None else stream
    if not stream.isatty() if as_json is None else as_json:
        print(json.dumps({"kind": "result", "folder": str(folder), **record}), file=stream, flush=True)
        return
    from rich.console import Console

    console = Console(file=stream)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    say(f"\n{report.title}\n{report.setting}")
    for table in report.tables:
        print_result(table, stream)
        for note in table.notes:
            say(note)
    for bar in report.bars:
        say(str(bar))
    if report.differences:
        say("What differs from the published setting:")
    for text in report.differences:
        say(f"- {text}")
    say(f"{record['seconds']:,.0f} s on {machines(record)}")
    written = [REPORT_FILE, RESULT_FILE, *record["plots"]]
    say(f"written to {folder}: {', '.join(written)}")
