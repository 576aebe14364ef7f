"""The command line: `statewise train`, `generate`, `evaluate`, `reproduce`, `benchmark`, `profile`, `info`.

It only translates: options to configurations, results to text. Nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from statewise import __version__
from statewise.errors import ConfigError, DataError, StatewiseError

app = typer.Typer(
    name="statewise",
    help="State-space sequence models: train, evaluate, generate, understand.",
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A run folder, or one checkpoint.", show_default=False)]
Which = Annotated[str, typer.Option("--checkpoint", help="Of a run folder: best or latest.")]
Device = Annotated[str, typer.Option(help="auto (CUDA where there is one), cpu or cuda.")]
TokenizerOption = Annotated[
    str | None, typer.Option("--tokenizer", help='"bytes" or a tokenizer.json. Default: that of the checkpoint.')
]
Weights = Annotated[
    str | None,
    typer.Option(help="Of a language model: float32, bfloat16, int8 or int4. Default: as saved.", show_default=False),
]
Json = Annotated[
    bool | None,
    typer.Option("--json/--no-json", help="Default: tables on a terminal, JSON elsewhere.", show_default=False),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"statewise {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    pass


@app.command()
def train(
    preset: Annotated[str | None, typer.Option(help="A run by name, such as demo (the default) or tiny.")] = None,
    config: Annotated[Path | None, typer.Option(help="A run as JSON, such as the run.json of another run.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set any field, as in train.lr=3e-4. May be repeated."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Of text: stdlib, shakespeare, or a file, folder or glob; else a data set (data.source)."),
    ] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="Where the files of a data set are (data.folder).")
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help='"bytes" or a tokenizer.json (data.tokenizer).')] = None,
    out: Annotated[Path | None, typer.Option(help="The folder for the run; it must not hold another one.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with the run in this folder instead.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Train so long (train.minutes).")] = None,
    steps: Annotated[int | None, typer.Option(help="Train so many steps (train.steps).")] = None,
    epochs: Annotated[float | None, typer.Option(help="Train so many passes over the data (train.epochs).")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Sequences in a batch (train.batch_size).")] = None,
    length: Annotated[int | None, typer.Option(help="Tokens in a sequence of text (train.length).")] = None,
    lr: Annotated[float | None, typer.Option(help="The highest learning rate (train.lr).")] = None,
    seed: Annotated[int | None, typer.Option(help="Of parameters, dropout and data order (train.seed).")] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train so many seeds side by side, from train.seed on: runs in --out."),
    ] = None,
    lrs: Annotated[
        str | None, typer.Option(help="Learning rates to train side by side, as 1e-3,3e-3; with --seeds each of both.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda (train.device).")] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print the run as JSON, for --config, and stop.")
    ] = False,
) -> None:
    """Train a model: a preset, a file, or either with some fields set.

    --steps, --epochs and --minutes together replace the budget of the preset or file: the run then ends by whichever is
    given. With --resume the run's own run.json is the file; another given by --config must agree with it, but for the
    budget, the place of the data, what is left on the way, and the machine.

    With --seeds or --lrs the folder holds several runs, each as if it had been trained alone, and --resume takes them
    all up, or one of them.
    """
    if preset is not None and config is not None:
        raise typer.BadParameter("a run comes from one of --preset and --config, not from both", param_hint="--config")
    if preset is not None and resume is not None:
        raise typer.BadParameter(
            "a resumed run has its own configuration, in its folder; leave out --preset",
            param_hint="--preset",
        )
    if (out is None) == (resume is None) and not print_config:
        raise typer.BadParameter(
            "give the folder for a new run, or with --resume that of the run to go on with", param_hint="--out"
        )
    flags = {
        "data.source": data,
        "data.folder": data_folder,
        "data.tokenizer": tokenizer,
        "train.minutes": minutes,
        "train.epochs": epochs,
        "train.steps": steps,
        "train.batch_size": batch_size,
        "train.length": length,
        "train.lr": lr,
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
    if resume is not None and not print_config:
        from statewise.train.stack_folder import runs_in

        names = runs_in(resume)
        if names is not None:
            runs = {name: _run_config(None, config, resume / name, flags, assignments or []) for name in names}
            _train_stack(runs, resume, resume=True)
    run = _run_config(preset, config, resume, flags, assignments or [])
    if several and not print_config:
        from statewise.train.stack_folder import seeds_and_rates

        assert out is not None  # since this is no resume
        _train_stack(seeds_and_rates(run, 1 if seeds is None else seeds, _rates(lrs)), out, resume=False)
    if print_config:
        _print_run(run)
        return
    from statewise.train.loop import train as train_run
    from statewise.train.report import make_reporter

    folder = resume if resume is not None else out
    assert folder is not None  # one of the two was given
    result = train_run(run, folder, resume=resume is not None, reporter=make_reporter())
    raise typer.Exit(result.exit_code)


@app.command()
def generate(
    folder: Folder,
    prompts: Annotated[list[str] | None, typer.Option("--prompt", help="A text to go on from. Repeatable.")] = None,
    prompt_files: Annotated[
        list[str] | None, typer.Option("--prompt-file", help="The same, from a file; - is standard input. Repeatable.")
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(help="At most so many for each prompt.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw among the likeliest that reach this probability.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Draw among those with this share of the likeliest's probability.")
    ] = None,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: what was read or written is unlikelier.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Default: a new one, told at the end.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text. Repeatable.")] = None,
    echo: Annotated[bool, typer.Option("--echo", help="Print the prompt before what follows.")] = False,
    log_probabilities: Annotated[
        bool, typer.Option("--log-probabilities", help="One JSON object for each token instead of text.")
    ] = False,
    state_in: Annotated[
        Path | None, typer.Option(help="Go on from a saved state; a prompt then follows what was read.")
    ] = None,
    state_out: Annotated[Path | None, typer.Option(help="Save the state after the prompt.")] = None,
    weights: Weights = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
) -> None:
    """Write: print the continuation of each prompt as it comes."""
    from statewise.console import read_prompt, write_generated

    if log_probabilities and echo:
        raise typer.BadParameter(
            "--log-probabilities prints what is generated, one object for each token, and no prompt; leave out --echo",
            param_hint="--echo",
        )
    texts: list[str | bytes] = [*(prompts or []), *(read_prompt(path) for path in prompt_files or [])]
    if state_out is not None and state_out.exists():
        raise DataError(f"{state_out} exists already; give --state-out a new name")
    from statewise.generate import Sampling, read
    from statewise.generate import generate as generate_tokens
    from statewise.generate.reading_file import load_reading, save_reading
    from statewise.model_folder import open_model

    sampling: dict[str, Any] = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    Sampling(**sampling)  # an option out of range is told before a long prompt is read
    opened = open_model(folder, which=which, device=device, tokenizer=tokenizer)
    model, tokens = opened.language_model, opened.tokenizer
    state = None if state_in is None else load_reading(state_in, model=model)
    prompt = texts or None
    if state_out is not None:
        state, prompt = read(model, prompt, tokenizer=tokens, state=state), None
        save_reading(state, state_out, model=model)
    seed = int.from_bytes(os.urandom(4), "big") if seed is None else seed
    stream = generate_tokens(
        model,
        prompt,
        max_new_tokens=max_new_tokens,
        seed=seed,
        stop=stop or (),
        tokenizer=tokens,
        state=state,
        weights=weights,
        **sampling,
    )
    write_generated(
        stream,
        n_rows=len(texts) or (1 if state is None else len(state.logits)),
        echo=texts if echo else [],
        seed=seed,
        log_probabilities=log_probabilities,
    )


@app.command()
def evaluate(
    folder: Folder,
    data: Annotated[str | None, typer.Option(help="Other data than the run's: a source as for train.")] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="Where the files of a data set are, if not where the run had them.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="test (the default), validation or train.", show_default=False)
    ] = None,
    max_items: Annotated[
        int | None,
        typer.Option("--max-items", "--max-tokens", min=1, help="Read only so many rows, or tokens."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also draw the result, where its kind has a picture.")
    ] = None,
    text_file: Annotated[
        str | None, typer.Option(help="Text: a file read as one document instead of a split; - is standard input.")
    ] = None,
    chunk_length: Annotated[
        int | None, typer.Option(help="Text: tokens in a chunk; changes the memory, not the result. Default: 1024.")
    ] = None,
    across_documents: Annotated[
        bool, typer.Option("--across-documents", help="Text: carry the state from one document to the next as well.")
    ] = False,
    streams: Annotated[
        int | None, typer.Option(help="Text: read it as so many pieces side by side, which is faster. Default: 1.")
    ] = None,
    window: Annotated[
        int | None, typer.Option(help="Text: read windows of so many tokens instead of one sequence.")
    ] = None,
    stride: Annotated[
        int | None, typer.Option(help="Tokens (default: half a window) or time steps between windows.")
    ] = None,
    compressors: Annotated[
        bool | None, typer.Option(help="Text: what xz -9 and zlib make of the same bytes.", show_default=False)
    ] = None,
    weights: Weights = None,
    tokenizer: TokenizerOption = None,
    which: Which = "best",
    device: Device = "auto",
    json: Json = None,
) -> None:
    """Measure how well a model does on a split of its data.

    A language model is told beside general compressors. Its text is read as one sequence with the state carried on,
    with full attention in windows instead.
    """
    from statewise.console import read_prompt, show_evaluation

    if text_file is not None and data is not None:
        raise typer.BadParameter("a text comes from one of --data and --text-file", param_hint="--text-file")
    for name, given in (("--split", split), ("--max-tokens", max_items), ("--data-dir", data_folder)):
        if text_file is not None and given is not None:
            raise typer.BadParameter(
                f"{name} chooses from a corpus that is divided; the file of --text-file is read as a whole",
                param_hint=name,
            )
    text = None if text_file is None else read_prompt(text_file)
    from statewise.model_folder import open_model

    opened = open_model(folder, which=which, device=device, tokenizer=tokenizer)
    if weights is not None:
        opened = opened.with_weights(weights)
    asked = {
        "across_documents": across_documents or None,
        "chunk_length": chunk_length,
        "n_streams": streams,
        "window": window,
        "stride": stride,
        "compressors": compressors,
    }
    options = {name: value for name, value in asked.items() if value is not None}
    if text is not None:
        show_evaluation(*opened.evaluate_file(text, str(text_file), plot=plot, **options), as_json=json)
    else:
        task = opened.task(data, data_folder)
        result = opened.evaluate(task, split or "test", max_items=max_items, plot=plot, **options)
        show_evaluation(*result, as_json=json)


@app.command()
def reproduce(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which one; without a name they are listed.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="The folder of the results; one that holds a part of the same is gone on with."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look of under a minute: small sizes, nothing to conclude.")
    ] = False,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set any field of its settings. May be repeated."),
    ] = None,
    data_folder: Annotated[
        str | None, typer.Option("--data-dir", help="The folder that the data lie in (the field folder).")
    ] = None,
    plots: Annotated[bool, typer.Option(help="Draw them, with matplotlib.")] = True,
    json: Json = None,
) -> None:
    """Measure a published claim here, and print the published figures beside ours.

    The folder (by default runs/reproduce-NAME) gets result.json, report.md and the plots. Ctrl-C keeps what is done,
    and the same command goes on.
    """
    from statewise.console import show_evaluation
    from statewise.reproduce import listed, print_report, settings
    from statewise.reproduce import reproduce as reproduce_claim
    from statewise.reproduce.progress import make_watcher

    if name is None:
        from statewise.train.tasks import Table

        rows = listed()
        table = Table("reproductions", ("name", "what", "takes about"), rows)
        show_evaluation({key: {"summary": what, "takes": time} for key, what, time in rows}, [table], as_json=json)
        return
    from json import dumps

    if data_folder is not None and not hasattr(settings(name, quick=quick), "folder"):
        raise ConfigError(f"--data-dir is not for {name}, which reads no data from a folder; leave it out")
    given = [*(assignments or []), *([] if data_folder is None else [f"folder={dumps(data_folder)}"])]
    config = settings(name, quick=quick, assignments=given)
    folder = Path("runs", f"reproduce-{name}{'-quick' if quick else ''}") if out is None else out
    outcome = reproduce_claim(name, folder, config, plots=plots, watcher=make_watcher())
    if outcome.report is not None and outcome.record is not None:
        print_report(outcome.report, outcome.record, outcome.folder, as_json=json)
    raise typer.Exit(outcome.exit_code)


@app.command()
def benchmark(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A workload, or bars; without a name they are listed.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: whether everything runs.")] = False,
    seconds: Annotated[float, typer.Option(help="For each case; every side has a few turns anyway.")] = 2.0,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: as many as PyTorch takes.")] = None,
    memory: Annotated[bool, typer.Option(help="Also the peak memory, each side in a fresh process.")] = True,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Draw the cost of a step against length.")] = None,
    json: Json = None,
) -> None:
    """Measure our kernels and models beside those of others, in turns in one run: medians and ratios.

    "bars" holds every bar of speed and memory against this machine. Others that are not installed are left out and
    named, with the command that installs them.
    """
    from statewise.benchmark.command import run_bars_here, run_workload_here
    from statewise.benchmark.show import bars_table, workload_tables, workloads_table
    from statewise.console import show_evaluation

    if plot is not None and name is None:
        raise typer.BadParameter(
            "there is nothing to draw without a workload; name one such as scan", param_hint="--plot"
        )
    if name is None:
        table = workloads_table()
        show_evaluation({row[0]: row[1] for row in table.rows}, [table], as_json=json)
    elif name == "bars":
        if plot is not None:
            raise typer.BadParameter("bars have no plot; name a workload such as scan", param_hint="--plot")
        records = run_bars_here(quick=quick, seconds=seconds, threads=threads)
        show_evaluation(records, [bars_table(records)], as_json=json)
    else:
        record = run_workload_here(name, quick=quick, seconds=seconds, threads=threads, memory=memory, plot=plot)
        show_evaluation(record, workload_tables(record), as_json=json)


@app.command()
def profile(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model by name, such as mamba-130m, or a folder.")],
    steps: Annotated[
        list[str] | None, typer.Option("--step", help="training, prefill or decoding. Repeatable. Default: all.")
    ] = None,
    batch_size: Annotated[int, typer.Option(min=1, help="Sequences.")] = 1,
    length: Annotated[int, typer.Option(min=1, help="Tokens of each in training and prefill.")] = 512,
    threads: Annotated[int | None, typer.Option(min=1, help="Default: as many as PyTorch takes.")] = None,
    which: Which = "best",
    json: Json = None,
) -> None:
    """Tell where the time of a step goes: matrix products, scans, norms, loss, optimiser, Python and so on."""
    from statewise.benchmark.command import preset_model, profile_here
    from statewise.benchmark.show import profile_table
    from statewise.console import show_evaluation
    from statewise.model_folder import open_model

    opened = preset_model(model) or open_model(Path(model), which=which, device="cpu").language_model
    found = profile_here(opened, steps=steps or (), batch_size=batch_size, length=length, threads=threads)
    record = {"model": model, **found}
    show_evaluation(record, [profile_table(record, f"a step of {model}: milliseconds and shares")], as_json=json)


@app.command()
def info(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="[FOLDER]", help="A run folder or checkpoint to describe as well.", show_default=False),
    ] = None,
    which: Which = "best",
    json: Json = None,
) -> None:
    """Tell versions, devices and kernels; of a run or checkpoint its configuration, parameters and states."""
    from statewise.console import show_info
    from statewise.info import environment, parts

    record = environment()
    if folder is not None:
        from statewise.model_folder import open_model
        from statewise.models.registry import model_to_dict

        opened = open_model(folder, which=which, device="cpu")
        record["checkpoint"] = str(opened.checkpoint)
        record["configuration"] = model_to_dict(opened.manifest.model)
        record["parts"] = parts(opened.model)
    show_info(record, as_json=json)


def _run_config(
    preset: str | None, file: Path | None, resume: Path | None, flags: dict[str, Any], assignments: Sequence[str]
) -> Any:
    """The RunConfig that the options of `train` describe."""
    from json import dumps

    from statewise.configuration import assign, parse_json
    from statewise.model_folder import require_data_fields
    from statewise.train.presets import PRESETS, fit_model
    from statewise.train.run_folder import read_run, run_from_dict
    from statewise.train.tasks import run_types

    if preset is not None and preset not in PRESETS:
        raise ConfigError(f"--preset {preset!r} is unknown; use one of {', '.join(PRESETS)}")
    if file is not None:
        try:
            config = run_from_dict(parse_json(file.read_bytes(), str(file)), where=str(file))
        except OSError as error:
            raise ConfigError(f"--config {file} cannot be read: {error.strerror}") from error
    elif resume is not None:
        config = read_run(resume)
    else:
        config = PRESETS[preset or "demo"]()
    require_data_fields(config.data, {name[5:]: value for name, value in flags.items() if name.startswith("data.")})
    budgets = ("train.steps", "train.epochs", "train.minutes")
    if any(flags[name] is not None for name in budgets):  # those not given are no limit any more
        assignments = [*(f"{name}=null" for name in budgets if flags[name] is None), *assignments]
    given = [f"{name}={dumps(value)}" for name, value in flags.items() if value is not None]
    config = assign(config, [*given, *assignments], types=run_types())
    from_preset = file is None and resume is None
    return fit_model(config, {text.split("=")[0].strip() for text in assignments}) if from_preset else config


def _rates(text: str | None) -> list[float] | None:
    """Learning rates from "1e-3,3e-3"."""
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no list of numbers such as 1e-3,3e-3", param_hint="--lrs") from None


def _train_stack(runs: dict[str, Any], folder: Path, *, resume: bool) -> NoReturn:
    from statewise.train.report import make_reporter
    from statewise.train.stack_folder import begin_folder
    from statewise.train.stacked import train_stack

    if not resume:
        begin_folder(folder, list(runs))
    result = train_stack(runs, folder, resume=resume, reporter=make_reporter())
    result.require_all()
    raise typer.Exit(result.exit_code)


def _print_run(run: Any) -> None:
    from json import dumps

    from statewise.configuration import to_dict

    print(dumps(to_dict(run), indent=2))


def run(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; a user's mistake is one line on standard error."""
    try:
        words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
        command = typer.main.get_command(app)
        with command.make_context("statewise", words) as context:
            command.invoke(context)
        sys.stdout.flush()
        return 0
    except typer.Exit as exit_:
        return exit_.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except BrokenPipeError:  # `statewise generate ... | head`: the reader has what it wanted
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except StatewiseError as error:
        return _fail(error, str(error), error.exit_code)
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _fail(error, f"{name}{error.strerror or error}", 1)
    except Exception as error:
        # Errors of usage: their class is typer's or click's own, depending on the version
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        return _fail(error, message(), 2)


def _fail(error: Exception, message: str, code: int) -> int:
    if os.environ.get("STATEWISE_DEBUG") == "1":
        traceback.print_exception(error)
    print(f"statewise: error: {' '.join(message.split())}", file=sys.stderr)
    return code


def main() -> NoReturn:
    """The program `statewise`."""
    # The threads of OpenMP wait for each other by spinning, for milliseconds. Where another process wants a core, the
    # one that is waited for does not run, and a training step takes ten times as long. Read when torch is imported.
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    sys.exit(run())
