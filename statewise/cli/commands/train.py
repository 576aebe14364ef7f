"""`statewise train`: options to a run, and the run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from statewise.cli.one_voice import one_voice
from statewise.cli.options import Exact


@one_voice
def train(
    preset: Annotated[
        str | None,
        typer.Option(help="A prepared run, such as classifier or demo. Default: what fits --data."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A run as JSON, such as the run.json of another run.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Set any field, as in train.optimizer.lr=3e-4. May be repeated."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="A file or folder of pictures, sounds, texts, numbers; or data by name, as stdlib or ucr:ACSF1.",
        ),
    ] = None,
    label_field: Annotated[
        str | None, typer.Option(help="For a table: the column of classes or numbers to predict.", metavar="COLUMN")
    ] = None,
    text_field: Annotated[
        str | None, typer.Option(help="The column of texts; with --label-field, to classify them.", metavar="COLUMN")
    ] = None,
    row_field: Annotated[
        str | None,
        typer.Option(
            help="For a table with a line for each step: the column that says which sequence a step belongs to.",
            metavar="COLUMN",
        ),
    ] = None,
    ignored_fields: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore-field", help="A column to leave out, such as a name. May be repeated.", metavar="COLUMN"
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="For series to forecast: the column of times. Default: the first.", metavar="COLUMN"),
    ] = None,
    targets: Annotated[
        str | None, typer.Option(help="The columns to forecast. Default: all with numbers.", metavar="A,B")
    ] = None,
    covariates: Annotated[
        str | None,
        typer.Option(help="Columns whose values are known ahead, such as prices or holidays.", metavar="A,B"),
    ] = None,
    horizon: Annotated[int | None, typer.Option(help="How many steps to forecast.", min=1)] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="The folder with the files of a data set (data.folder).")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help='"bytes", a tokenizer.json, or "bpe:2048" to learn one (data.tokenizer).')
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for the run that holds no other run. Default: runs/PRESET-1, or the next free number."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Continue the run in this folder instead.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Train for this long (train.budget.minutes).")] = None,
    steps: Annotated[int | None, typer.Option(help="Train for this many steps (train.budget.steps).")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Train for this many passes over the data (train.budget.epochs).")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences in a batch (train.batch_size).")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a sequence of text (train.length).")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate (train.optimizer.lr).")] = None,
    seed: Annotated[int | None, typer.Option(help="For parameters, dropout and data order (train.seed).")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train this many seeds, from train.seed on: runs in --out."),
    ] = None,
    lrs: Annotated[
        str | None,
        typer.Option(help="Learning rates to train with, such as 1e-3,3e-3; with --seeds, every seed at every rate."),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="With several runs: how many at once. Default: one for each core; on CUDA 1."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda (train.device).")] = None,
    exact: Exact = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            "--log",
            "--log-to",  # torchrun takes --log for an option of its own, wherever it stands
            metavar="WHERE",
            help="Log to tensorboard or wandb as well (train.reporting.log). May be repeated.",
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the run as JSON, for --config, and stop.")
    ] = False,
    list_presets: Annotated[
        bool, typer.Option("--list-presets", help="Print every preset with what it learns, and stop.")
    ] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print how much memory a step needs and how much is free, and stop.")
    ] = False,
) -> None:
    """Train a model on your own data (--data PATH), or by a preset or a file, with any fields set.

    The first line says how your data are read. If the subfolders of a folder hold pictures or sounds, they are
    the classes. In a table you name the columns.

    --steps, --epochs and --minutes together replace the budget of the preset or file: the run ends by those that you
    give. --resume reads the run's own run.json; a file that you give by --config must agree with it, except for the
    budget, the place of the data, what is logged and saved, and the machine.

    With --seeds or --lrs the folder holds several runs, each trained by a process of its own with its share of the
    cores (--workers says how many at once). --resume continues all of them, or one.

    Under torchrun, all processes train one model, divided as train.parallel says: torchrun --nproc-per-node 4 -m
    statewise train ... --set train.parallel.data=fsdp. See docs/distributed.md.
    """
    if list_presets:
        from statewise.training.presets import preset_lines

        typer.echo("\n".join(preset_lines()))
        return
    if preset is not None and config is not None:
        raise typer.BadParameter(
            "--preset and --config each describe a run; give one of the two", param_hint="--config"
        )
    if preset is not None and resume is not None:
        raise typer.BadParameter(
            "a resumed run has its own configuration, in its folder; leave out --preset",
            param_hint="--preset",
        )
    only_tells = print_config or estimate
    if out is not None and resume is not None and not only_tells:
        raise typer.BadParameter(
            f"a resumed run continues in its own folder, {resume}; leave out --out", param_hint="--out"
        )
    flags = {
        "data.source": data,
        "data.folder": data_folder,
        "data.tokenizer": tokenizer,
        "train.budget.minutes": minutes,
        "train.budget.epochs": epochs,
        "train.budget.steps": steps,
        "train.batch_size": batch_size,
        "train.length": length,
        "train.optimizer.lr": lr,
        "train.seed": seed,
        "train.device": device,
        "train.exact": exact or None,
        "train.reporting.log": log or None,
    }
    said: dict[str, Any] = {"label_field": label_field, "row_field": row_field, "text_field": text_field, "time": time}
    said["ignored_fields"] = tuple(ignored_fields or ())
    said |= {"targets": _columns(targets), "covariates": _columns(covariates), "horizon": horizon}
    several = seeds is not None or lrs is not None
    if several and resume is not None:
        raise typer.BadParameter(
            "the seeds and rates of a folder of runs cannot change when you resume it; leave out --seeds and --lrs",
            param_hint="--seeds" if lrs is None else "--lrs",
        )
    if lrs is not None and lr is not None:
        raise typer.BadParameter(
            "--lr is for one learning rate and --lrs for several; give one of the two", param_hint="--lrs"
        )
    if resume is not None and not only_tells:
        from statewise.training.several_folder import runs_in

        names = runs_in(resume)
        if names is not None:
            from statewise.cli.run_options import described_run as described

            runs = {
                name: described(None, config, resume / name, flags, said, assignments or []).config for name in names
            }
            _train_several(runs, resume, workers, resume=True)
    if workers is not None and not several:
        raise typer.BadParameter("--workers is for several runs; give --seeds or --lrs too", param_hint="--workers")
    from statewise.cli.run_options import described_run, next_folder

    run, name, sentence = described_run(preset, config, resume, flags, said, assignments or [])
    if several and not only_tells:
        from statewise.training.several_folder import seeds_and_rates

        begun = seeds_and_rates(run, 1 if seeds is None else seeds, _rates(lrs))
        _train_several(begun, out or next_folder(name), workers, resume=False)
    if print_config:
        _print_run(run)
        return
    if estimate:
        _print_estimate(run)
        return
    from statewise.training.loop import train_run
    from statewise.training.report import make_reporter

    folder, reporter = resume or out or next_folder(name), make_reporter()
    if sentence is not None and _is_first():
        reporter.event({"kind": "recognised", "message": sentence})
    result = train_run(run, folder, resume=resume is not None, reporter=reporter)
    raise typer.Exit(result.exit_code)


def _columns(text: str | None) -> tuple[str, ...]:
    """Names from "a,b"."""
    return () if text is None else tuple(name.strip() for name in text.split(",") if name.strip())


def _rates(text: str | None) -> list[float] | None:
    """Learning rates from "1e-3,3e-3"."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a list of numbers such as 1e-3,3e-3", param_hint="--lrs") from None


def _train_several(runs: dict[str, Any], folder: Path, workers: int | None, *, resume: bool) -> NoReturn:
    from statewise.training.ranks import require_one_process
    from statewise.training.report import make_reporter
    from statewise.training.several import train_several
    from statewise.training.several_folder import begin_folder

    require_one_process("several runs are begun")
    if not resume:
        begin_folder(folder, runs)
    result = train_several(runs, folder, resume=resume, workers=workers, reporter=make_reporter())
    result.require_all()
    raise typer.Exit(result.exit_code)


def _is_first() -> bool:
    """Under torchrun one process speaks for all."""
    from os import environ

    return environ.get("RANK", "0") == "0"


def _print_run(run: Any) -> None:
    from json import dumps

    from statewise.configuration import to_dict

    if _is_first():
        print(dumps(to_dict(run), indent=2))


def _print_estimate(run: Any) -> None:
    """Under torchrun of one of its processes, by the first."""
    from os import environ

    from statewise.benchmark.ceilings import bfloat16_gain, kept, whether_bfloat16_pays
    from statewise.cli.console import show_evaluation
    from statewise.training.memory_estimate import estimate_memory

    if _is_first():
        parallel = run.train.parallel
        n_ranks = max(int(environ.get("WORLD_SIZE", "1")), parallel.tensor * parallel.sequence)
        found = estimate_memory(run, n_ranks=n_ranks)
        table, record = found.table(), found.record()
        if found.device == "cpu":
            ceilings = kept()
            record["bfloat16_gain"] = bfloat16_gain(ceilings)
            table = table._replace(notes=(*table.notes, whether_bfloat16_pays(ceilings)))
        show_evaluation(record, [table], as_json=None)
