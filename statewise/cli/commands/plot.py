"""`statewise plot`: pictures of runs. Each kind of picture is a command of its own below it; curves are the default."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from statewise.cli.options import refuse_existing

DEFAULT = "curves"


class _WithDefault(typer.core.TyperGroup):
    """`statewise plot RUN` is `statewise plot curves RUN`."""

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        first = arguments[0] if arguments else ""
        if first not in self.commands and first not in context.help_option_names:
            arguments = [DEFAULT, *arguments]
        return super().parse_args(context, arguments)


plot = typer.Typer(
    cls=_WithDefault,
    rich_markup_mode=None,
    help="Draw runs: `statewise plot RUN ...` is `statewise plot curves RUN ...`. If a folder has the name of "
    "a command below, write ./curves.",
)


class Axis(StrEnum):
    steps = "steps"
    time = "time"
    units = "units"


@plot.command()
def curves(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of runs, or of several seeds or rates.", show_default=False),
    ],
    x: Annotated[
        Axis, typer.Option(help="Against steps, the time of training, or the tokens, sequences or windows read.")
    ] = Axis.steps,
    smooth: Annotated[int, typer.Option(min=1, help="Show means over this many lines of metrics.jsonl.")] = 1,
    log_y: Annotated[
        bool, typer.Option("--log-y", help="Losses, and metrics where less is better, on a logarithmic scale.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A .png, .svg or .pdf. Default: curves.png in the run's folder; for several runs, in this folder."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file of --out.")] = False,
) -> None:
    """Draw training curves: the loss, the task's metric and the learning rate, of one run or of several.

    Seeds that were trained together (train --seeds) are drawn as their mean, in a band from the least to the greatest.
    """
    from statewise.checkpoints.atomic import write_file
    from statewise.plots.style import require_plot
    from statewise.training.plotting import plot_runs

    figure = plot_runs(runs, x=x.value, smooth=smooth, log_y=log_y)
    out = out or (runs[0] if len(runs) == 1 else Path()) / "curves.png"
    require_plot(out)

    def write(path: Path) -> None:
        figure.savefig(path, dpi=150)

    write_file(out, 0, write, None if overwrite else refuse_existing)
    print(out)
