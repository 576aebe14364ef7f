"""`statewise plot`: pictures of runs. Each kind of picture is a command of its own below it; curves are the default.

Those of what is inside a model are in ``plot_models``.
"""

from __future__ import annotations

import difflib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from statewise.cli.commands import plot_models

DEFAULT = "curves"


class _WithDefault(typer.core.TyperGroup):
    """`statewise plot RUN` is `statewise plot curves RUN`."""

    def parse_args(self, context: Any, arguments: list[str]) -> list[str]:
        first = arguments[0] if arguments else ""
        if first not in self.commands and first not in context.help_option_names:
            near = difflib.get_close_matches(first, self.commands, 1, 0.75)
            if near and not Path(first).exists():
                raise typer.BadParameter(f"there is no picture {first!r} and no such run; did you mean {near[0]!r}?")
            arguments = [DEFAULT, *arguments]
        return super().parse_args(context, arguments)


plot = typer.Typer(
    cls=_WithDefault,
    rich_markup_mode=None,
    help="Draw runs and what is inside their models: `statewise plot RUN ...` is `statewise plot curves RUN ...`. If a "
    "folder has the name of a command below, write ./curves.",
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
    from statewise.training.plotting import plot_runs

    figure = plot_runs(runs, x=x.value, smooth=smooth, log_y=log_y)
    plot_models.write(figure, out or (runs[0] if len(runs) == 1 else Path()) / "curves.png", overwrite)


for name, command in plot_models.COMMANDS.items():
    plot.command(name)(command)
