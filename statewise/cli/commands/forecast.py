"""`statewise forecast`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from statewise.cli.answer_files import require_answer_file, require_new, require_other_than, write_answers
from statewise.cli.options import Device, Exact, Folder, Which, device_for, may_be_exact

if TYPE_CHECKING:
    from statewise.predict import Forecasts


@may_be_exact
def forecast(
    folder: Folder,
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="DATA",
            help="A table with the columns of the training data: CSV, TSV, Parquet, compressed or not. Default: the "
            "run's own.",
            show_default=False,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="How many to forecast. Default: the model's horizon.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="FILE.csv, FILE.jsonl or FILE.parquet. Without --out and --plot: JSON lines."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the forecast: .png, .svg or .pdf.")] = None,
    future: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A table with the covariates of the steps to come, if DATA does not have them."
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of --out and --plot.")] = False,
    paths: Annotated[int, typer.Option(min=2, help="Beyond the horizon: how many possible futures are drawn.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="For drawing those futures.")] = 0,
    batch_size: Annotated[int, typer.Option(min=1, help="Series read together.")] = 64,
    which: Which = "best",
    device: Device = "auto",
    exact: Exact = False,
) -> None:
    """Forecast what comes after the end of series, with intervals.

    A forecast begins after the last known value of each series. If the model was trained with values that are known
    ahead, give those too: in rows of DATA below the last value, or by --future.
    """
    from statewise.cli.console import counted
    from statewise.cli.model_folder import open_model
    from statewise.errors import ConfigError
    from statewise.plots.style import require_plot
    from statewise.predict import Predictor

    if out is not None:
        require_answer_file(out, overwrite)
    if plot is not None:
        require_plot(plot)
        require_new(plot, overwrite)
    opened = open_model(folder, which=which, device=device_for(None, device, exact))
    opened.require_answers()
    if not opened.forecasts:
        kind = type(opened.model).__name__
        raise ConfigError(f"{folder} holds a {kind}, which does not forecast; use statewise predict {folder} DATA")
    predictor = Predictor(opened.model)
    series = opened.own_series() if data is None else data
    for file, flag in ((out, "--out"), (plot, "--plot")):
        if file is not None:
            require_other_than(file, flag, series, future)
    pasts = predictor.pasts(series, steps, future=future)
    first: list[Forecasts] = []

    def noted(batches: Iterator[Forecasts]) -> Iterator[Forecasts]:
        for batch in batches:
            first[:] = first or [batch]
            yield batch

    with counted("forecasting") as progress:
        batches = noted(
            predictor.forecasts(pasts, steps, paths=paths, seed=seed, batch_size=batch_size, progress=progress)
        )
        if out is None and plot is not None:
            next(batches)  # the picture has the first series alone
        else:
            write_answers(batches, out, overwrite)
    if plot is not None:
        first[0].plot(plot, n_series=len(pasts))
    several = f"{len(pasts):,} series, " if len(pasts) > 1 else ""
    for file in (out, plot):
        if file is not None:
            print(f"{several}{first[0].times.shape[1]:,} steps ahead: {file}", file=sys.stderr)
