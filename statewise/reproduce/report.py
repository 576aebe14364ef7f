"""A result to print, to read and to compute with: tables next to the published ones, bars, and plots."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from statewise import __version__
from statewise.configuration import to_dict
from statewise.reproduce.files import finite, write_json, write_text
from statewise.reproduce.hardware import today
from statewise.reproduce.work import Work
from statewise.training.tables import print_result
from statewise.training.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESULT_FILE = "result.json"
REPORT_FILE = "report.md"
MARKED = {"marker": "o"}  # the style of a curve


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
    """A figure for the file ``<name>.png``: ``write`` makes it."""

    name: str
    title: str
    write: Callable[[Path], None]


class Curve(NamedTuple):
    """The arguments of matplotlib's ``plot``; with "yerr" in the style of ``errorbar``."""

    x: Sequence[float]
    y: Sequence[float]
    label: str | None = None
    style: dict[str, Any] = {}  # noqa: RUF012 - never changed


@dataclass(frozen=True)
class Panel:
    """Curves on one pair of axes.

    log:    the logarithmic axes, of "", "x", "y" and "xy"
    ticks:  a logarithmic axis of x with a tick at each of these and nowhere else
    levels: horizontal lines, each (y, style)        set: further properties of the axes, as "ylim"
    """

    curves: Sequence[Curve]
    title: str = ""
    x: str = ""
    y: str = ""
    log: str = ""
    ticks: Sequence[int] = ()
    levels: Sequence[tuple[float, dict[str, Any]]] = ()
    legend: bool = True
    set: dict[str, Any] = field(default_factory=dict)

    def draw(self, axes: Axes) -> None:
        for x, y, label, style in self.curves:
            axes.errorbar(x, y, label=label, **style) if "yerr" in style else axes.plot(x, y, label=label, **style)
        for level, style in self.levels:
            axes.axhline(level, linewidth=0.8, **style)
        for axis in self.log:
            axes.set(**{f"{axis}scale": "log"})
        axes.set_title(self.title, fontsize=9)
        axes.set(xlabel=self.x, ylabel=self.y, **self.set)
        if self.ticks:
            axes.set_xscale("log", base=2)
            axes.set_xticks(list(self.ticks), [f"{value:,}" for value in self.ticks])
            axes.set_xticks([], minor=True)
            if len(self.ticks) > 9:
                axes.tick_params(axis="x", labelrotation=60, labelsize=7)
        handles = dict(zip(*reversed(axes.get_legend_handles_labels())))  # a label that comes twice is there once
        if self.legend and handles:
            axes.legend(handles.values(), handles.keys(), fontsize=8)


def curves(
    name: str, title: str, *panels: Panel, width: float = 7.5, height: float = 4.8, sharey: bool = False
) -> Plot:
    """The plot of some panels: up to four side by side, more in rows of three. width, height: of one row."""
    columns = len(panels) if len(panels) <= 4 else 3
    rows = math.ceil(len(panels) / columns)

    def draw(drawing: Figure) -> None:
        grid = drawing.subplots(rows, columns, sharey=sharey, squeeze=False).ravel()
        for panel, axes in zip(panels, grid):
            panel.draw(axes)
        for axes in grid[len(panels) :]:
            axes.remove()

    return drawn(name, title, draw, width=width, height=rows * height)


def drawn(name: str, title: str, draw: Callable[[Figure], None], *, width: float = 7.5, height: float = 4.8) -> Plot:
    """The plot that ``draw`` makes of an empty figure so large, in inches."""

    def write(path: Path) -> None:
        from statewise.plots.style import figure

        with figure(path, width, height) as drawing:
            draw(drawing)

    return Plot(name, title, write)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was found of a claim.

    setting:     what was done, in a sentence or two
    tables:      the published figures next to ours
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


def write_report(report: Report, work: Work, *, source: str = "", plots: bool) -> dict[str, Any]:
    """result.json, report.md and the plots, into the folder of the work; gives what result.json holds.

    Errors: CheckpointError where they cannot be written.
    """
    written = list(report.plots) if plots else []
    for plot in written:
        plot.write(work.folder / f"{plot.name}.png")
    record: dict[str, Any] = finite(
        {
            "reproduction": work.name,
            "title": report.title,
            "source": source,
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
    )
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
    source = f"Published: {record['source']}. " if record.get("source") else ""
    lines += ["## Where and how", "", f"{source}{record['date']}, {record['seconds']:,.0f} s, {machines(record)}", ""]
    return "\n".join([*lines, "```json", json.dumps(record["settings"], indent=2), "```", ""])


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

    def say(*lines: str) -> None:
        for line in lines:
            console.print(line, highlight=False, markup=False)

    say(f"\n{report.title}\n{report.setting}")
    for table in report.tables:
        print_result(table, stream)
        say(*table.notes)
    say(*map(str, report.bars))
    if report.differences:
        say("What differs from the published setting:", *(f"- {text}" for text in report.differences))
    if record["source"]:
        say(f"Published: {record['source']}")
    say(f"{record['seconds']:,.0f} s on {machines(record)}")
    say(f"written to {folder}: {', '.join([REPORT_FILE, RESULT_FILE, *record['plots']])}")
