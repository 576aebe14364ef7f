"""`statewise reproduce`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import Json
from statewise.errors import ConfigError


def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which claim. Without a name you get the list.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder for the results. If it holds a part of the same run, the run continues."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A quick look in a minute or two, with small sizes. Draw no conclusions from it."),
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set any field of its settings. May be repeated."),
    ] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="The folder with the data (the field folder).")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Train this many seeds, 0, 1, 2 ... (the field seeds).")
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw plots with matplotlib.")] = True,
    json: Json = None,
) -> None:
    """Measure a published claim here, and print the published figures next to ours.

    The folder (default: runs/reproduce-NAME) gets result.json, report.md and the plots. Ctrl-C keeps what is done, and
    the same command continues.
    """
    from statewise.cli.console import show_evaluation
    from statewise.reproduce import listed, print_report, settings
    from statewise.reproduce import reproduce as reproduce_claim
    from statewise.reproduce.progress import make_watcher

    if name is None:
        from statewise.training.tasks import Table

        rows = listed()
        table = Table("reproductions", ("name", "what", "takes about"), rows)
        show_evaluation({key: {"summary": what, "takes": time} for key, what, time in rows}, [table], as_json=json)
        return
    from json import dumps

    if data_folder is not None and not hasattr(settings(name, quick=quick), "folder"):
        raise ConfigError(f"--data-dir is not for {name}, which reads no data from a folder; leave it out")
    of_default = getattr(settings(name, quick=quick), "seeds", None)
    if seeds is not None and of_default is None:
        raise ConfigError(f"--seeds is not for {name}, which trains no model from several seeds; leave it out")
    given = [
        *(assignments or []),
        *([] if seeds is None else [f"seeds={seeds if isinstance(of_default, int) else list(range(seeds))}"]),
        *([] if data_folder is None else [f"folder={dumps(data_folder)}"]),
    ]
    config = settings(name, quick=quick, assignments=given)
    folder = Path("runs", f"reproduce-{name}{'-quick' if quick else ''}") if out is None else out
    outcome = reproduce_claim(name, folder, config, plots=plots, watcher=make_watcher())
    if outcome.report is not None and outcome.record is not None:
        print_report(outcome.report, outcome.record, outcome.folder, as_json=json)
    raise typer.Exit(outcome.exit_code)
