"""`statewise train`: options to a run, and the run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from statewise.cli.one_voice import one_voice
from statewise.errors import ConfigError, excerpt


@one_voice
def train(
    preset: Annotated[str | None, typer.Option(help="A run by name, such as demo (the default) or tiny.")] = None,
    config: Annotated[Path | None, typer.Option(help="A run as JSON, such as the run.json of another run.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIELD=VALUE", help="Set any field, as in train.optimizer.lr=3e-4. May be repeated."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Of text: stdlib, shakespeare, or a file, folder or glob; else a data set (data.source)."),
    ] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="Where the files of a data set are (data.folder).")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help='"bytes", a tokenizer.json, or "bpe:2048" to learn one (data.tokenizer).')
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The folder for the run, without another one in it. Default: runs/PRESET-1, or the next free number."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the run in this folder instead.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Train so long (train.budget.minutes).")] = None,
    steps: Annotated[int | None, typer.Option(help="Train so many steps (train.budget.steps).")] = None,
    epochs: Annotated[
        float | None, typer.Option(help="Train so many passes over the data (train.budget.epochs).")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences in a batch (train.batch_size).")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a sequence of text (train.length).")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate (train.optimizer.lr).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of parameters, dropout and data order (train.seed).")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train so many seeds, from train.seed on: runs in --out."),
    ] = None,
    lrs: Annotated[
        str | None, typer.Option(help="Learning rates to train with, as 1e-3,3e-3; with --seeds each of both.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Of several runs so many at once. As many as there are cores; on CUDA 1."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda (train.device).")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the run as JSON, for --config, and stop.")
    ] = False,
    estimate: Annotated[
        bool, typer.Option("--estimate", help="Print the memory that a step takes and what is free, and stop.")
    ] = False,
) -> None:
    """Train a model: a preset, a file, or either with some fields set.

    --steps, --epochs and --minutes together replace the budget of the preset or file: the run then ends by whichever is
    given. With --resume the run's own run.json is the file; another given by --config must agree with it, but for the
    budget, the place of the data, what is left on the way, and the machine.

    With --seeds or --lrs the folder holds several runs, each trained by a process of its own with its share of the
    cores (--workers says how many at once), and --resume takes them all up, or one of them.

    Under torchrun its processes train one model, laid out as train.parallel says: torchrun --nproc-per-node 4 -m
    statewise train ... --set train.parallel.data=fsdp. See docs/distributed.md.
    """
    if preset is not None and config is not None:
        raise typer.BadParameter("a run comes from one of --preset and --config, not from both", param_hint="--config")
    if preset is not None and resume is not None:
        raise typer.BadParameter(
            "a resumed run has its own configuration, in its folder; leave out --preset",
            param_hint="--preset",
        )
    only_tells = print_config or estimate
    if out is not None and resume is not None and not only_tells:
        raise typer.BadParameter(
            f"a resumed run goes on in its own folder, {resume}; leave out --out", param_hint="--out"
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
    }
    several = seeds is not None or lrs is not None
    if several and resume is not None:
        raise typer.BadParameter(
            "which runs a folder holds is settled when they begin; leave out --seeds and --lrs",
            param_hint="--seeds" if lrs is None else "--lrs",
        )
    if lrs is not None and lr is not None:
        raise typer.BadParameter("give the learning rates by --lrs, or one by --lr", param_hint="--lrs")
    if resume is not None and not only_tells:
        from statewise.train.several_folder import runs_in

        names = runs_in(resume)
        if names is not None:
            runs = {name: _run_config(None, config, resume / name, flags, assignments or []) for name in names}
            _train_several(runs, resume, workers, resume=True)
    if workers is not None and not several:
        raise typer.BadParameter("it is for several runs; give --seeds or --lrs too", param_hint="--workers")
    run = _run_config(preset, config, resume, flags, assignments or [])
    if several and not only_tells:
        from statewise.train.several_folder import seeds_and_rates

        begun = seeds_and_rates(run, 1 if seeds is None else seeds, _rates(lrs))
        _train_several(begun, out or _next_folder(preset, config), workers, resume=False)
    if print_config:
        _print_run(run)
        return
    if estimate:
        _print_estimate(run)
        return
    from statewise.train.loop import train as train_run
    from statewise.train.report import make_reporter

    folder = resume or out or _next_folder(preset, config)
    result = train_run(run, folder, resume=resume is not None, reporter=make_reporter())
    raise typer.Exit(result.exit_code)


def _run_config(
    preset: str | None, file: Path | None, resume: Path | None, flags: dict[str, Any], assignments: Sequence[str]
) -> Any:
    """The RunConfig that the options of `train` describe."""
    from json import dumps

    from statewise.cli.model_folder import require_data_fields
    from statewise.configuration import assign, parse_json
    from statewise.configuration.words import suggest
    from statewise.train.presets import PRESETS, fit_model
    from statewise.train.run_folder import run_from_dict
    from statewise.train.several_folder import read_one_of
    from statewise.train.tasks import run_types

    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"--preset {excerpt(preset)} is unknown; {suggest(preset, list(PRESETS), 'Presets')}")
    if file is not None:
        try:
            config = run_from_dict(parse_json(file.read_bytes(), str(file)), where=str(file))
        except OSError as error:
            raise ConfigError(f"--config {file} cannot be read: {error.strerror}") from error
    elif resume is not None:
        config = read_one_of(resume.parent, resume.name)
    else:
        config = PRESETS[preset or "demo"]()
    require_data_fields(config.data, {name[5:]: value for name, value in flags.items() if name.startswith("data.")})
    budgets = ("train.budget.steps", "train.budget.epochs", "train.budget.minutes")
    if any(flags[name] is not None for name in budgets):  # those not given are no limit any more
        assignments = [*(f"{name}=null" for name in budgets if flags[name] is None), *assignments]
    given = [f"{name}={dumps(value)}" for name, value in flags.items() if value is not None]
    config = assign(config, [*given, *assignments], types=run_types())
    from_preset = file is None and resume is None
    return fit_model(config, {text.split("=")[0].strip() for text in assignments}) if from_preset else config


def _next_folder(preset: str | None, config: Path | None) -> Path:
    """The first of runs/NAME-1, runs/NAME-2 and so on that is not there yet."""
    from itertools import count
    from os import environ
    from os.path import lexists

    if int(environ.get("WORLD_SIZE", "1")) > 1:
        raise typer.BadParameter("several processes cannot each choose a folder; give one", param_hint="--out")
    name = config.stem if config is not None else preset or "demo"
    return next(path for n in count(1) if not lexists(path := Path("runs", f"{name}-{n}")))


def _rates(text: str | None) -> list[float] | None:
    """Learning rates from "1e-3,3e-3"."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1e-3,3e-3", param_hint="--lrs") from None


def _train_several(runs: dict[str, Any], folder: Path, workers: int | None, *, resume: bool) -> NoReturn:
    from statewise.train.ranks import require_one_process
    from statewise.train.report import make_reporter
    from statewise.train.several import train_several
    from statewise.train.several_folder import begin_folder

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
    from statewise.train.memory_estimate import estimate_memory

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
