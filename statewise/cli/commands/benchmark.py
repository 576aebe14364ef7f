"""`statewise benchmark` and `statewise profile`: where the time goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from statewise.cli.options import Json, Which

USUAL = 2.0  # seconds for each case
GENERAL = ("bars", "ceilings", "errors")  # beside the workloads, which take every option
TAKES = {  # of those
    "--quick": GENERAL,
    "--seconds": ("bars", "ceilings"),
    "--threads": GENERAL,
}


def benchmark(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="A workload, bars, ceilings or errors; without a name they are listed."),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, only to see that everything runs.")] = False,
    seconds: Annotated[
        float | None,
        typer.Option(help="Seconds for each case; every side gets a few turns anyway. Default: 2; for ceilings 0.25."),
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: as many as PyTorch uses.")] = None,
    memory: Annotated[bool, typer.Option(help="Also measure peak memory, each side in a fresh process.")] = True,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the cost of a step against length.")] = None,
    json: Json = None,
) -> None:
    """Measure our kernels and models against those of others, side by side in one run.

    "bars" checks every promise of speed and memory on this machine, "ceilings" measures the most the machine can do,
    "errors" how far every kernel is from float64. Packages that are not installed are left out, and named with the
    command that installs them.
    """
    _refuse_unused(name, quick=quick, seconds=seconds, threads=threads, memory=memory, plot=plot)
    from statewise.benchmark.ceilings import SECONDS
    from statewise.benchmark.command import ceilings_here, errors_here, run_bars_here, run_workload_here
    from statewise.benchmark.show import bars_table, ceilings_table, errors_tables, workload_tables, workloads_table
    from statewise.cli.console import show_evaluation

    for_each = seconds if seconds is not None else SECONDS if name == "ceilings" else USUAL
    if name is None:
        table = workloads_table()
        show_evaluation({row[0]: row[1] for row in table.rows}, [table], as_json=json)
    elif name in GENERAL:
        if name == "ceilings":
            ceilings = ceilings_here(quick=quick, seconds=for_each, threads=threads)
            show_evaluation(ceilings, [ceilings_table(ceilings)], as_json=json)
            return
        if name == "errors":
            errors = errors_here(quick=quick, threads=threads)
            show_evaluation(errors, errors_tables(errors), as_json=json)
            return
        records = run_bars_here(quick=quick, seconds=for_each, threads=threads)
        show_evaluation(records, [bars_table(records)], as_json=json)
    else:
        record = run_workload_here(name, quick=quick, seconds=for_each, threads=threads, memory=memory, plot=plot)
        show_evaluation(record, workload_tables(record), as_json=json)


def _refuse_unused(
    name: str | None, *, quick: bool, seconds: float | None, threads: int | None, memory: bool, plot: Path | None
) -> None:
    """Errors: BadParameter for an option that this benchmark would ignore; its default value is none that is given."""
    given = {
        "--quick": quick,
        "--seconds": seconds not in (None, USUAL),
        "--threads": threads is not None,
        "--no-memory": not memory,
        "--plot": plot is not None,
    }
    for option, is_given in given.items():
        takes = TAKES.get(option, ())
        if not is_given or (name is not None and (name not in GENERAL or name in takes)):
            continue
        what = "the list of benchmarks" if name is None else f"benchmark {name}"
        users = " or ".join(part for part in (", ".join(takes), "a workload, such as scan") if part)
        raise typer.BadParameter(f"{what} does not use it; leave it out, or measure {users}", param_hint=option)


def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model by name, such as mamba-130m, or a folder.")],
    steps: Annotated[
        list[str] | None, typer.Option("--step", help="training, prefill or decoding. Repeatable. Default: all.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    length: Annotated[int, typer.Option(min=1, help="Tokens of each in training and prefill.")] = 512,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: as many as PyTorch uses.")] = None,
    which: Which = "best",
    json: Json = None,
) -> None:
    """Show what the time of a step is spent on: matrix products, scans, norms, loss, optimiser, Python and so on."""
    from statewise.benchmark.command import preset_model, profile_here
    from statewise.benchmark.show import profile_table
    from statewise.cli.console import show_evaluation
    from statewise.cli.model_folder import open_model

    opened = preset_model(model) or open_model(Path(model), which=which, device="cpu").language_model
    found = profile_here(opened, steps=steps or (), batch_size=batch_size, length=length, threads=threads)
    record = {"model": model, **found}
    show_evaluation(record, [profile_table(record, f"a step of {model}: milliseconds and shares")], as_json=json)
