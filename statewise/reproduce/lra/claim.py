"""The Long Range Arena: models trained on its tasks, the published accuracies next to ours."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Annotated, Any, NamedTuple

import torch

from statewise.configuration import assign
from statewise.configuration.types import AtLeastTwo, Count, Depth, Distinct, Limit, OneOf, Positive, Seed, Width
from statewise.data.long_range import LongRangeData
from statewise.data.long_range.config import TASKS as DATA
from statewise.errors import ConfigError
from statewise.mixers.s4 import S4Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.encoder import SequenceModelConfig
from statewise.reproduce.claim import Claim
from statewise.reproduce.lra.published import (
    ACCURACY,
    AVERAGE,
    CHANCE,
    SETTINGS,
    SPEED,
    TASKS,
    TITLES,
    Setting,
    arena_task,
    model_config,
    published_run,
    published_training,
    setting_of,
)
from statewise.reproduce.outcomes import LOST, each, known, mean, row_of, runs_of
from statewise.reproduce.page import told
from statewise.reproduce.report import Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.training import Trial, trained
from statewise.reproduce.work import Work
from statewise.training.config import BudgetConfig, Device, RunConfig
from statewise.training.presets import fit_model
from statewise.training.tasks import open_task, run_types

MODELS = {"s4": "S4", "s4d": "S4D-LegS", "h3": "H3", "mamba2": "Mamba-2", "transformer": "Transformer"}

OURS = ("mamba2", "transformer")  # whose rate, and a clipping of gradients at 1, are ours


@dataclass(frozen=True, kw_only=True)
class LraSettings(Settings):
    """models:  of "s4", "s4d", "h3", "mamba2", "transformer"
    tasks:   as ``LongRangeDataConfig`` names them: "listops", "text", "retrieval", "image", "pathfinder" and "path-x"
             from their official files in ``folder``; "listops-gen", "pathfinder-gen" and "path-x-gen", drawn here;
             "text-folder" and "retrieval-folder" from documents in ``folder``
    folder:  that the official files lie in, each task's own folder in it
    minutes, steps: of training, whichever is reached first; both null: the published number of steps
    d_model, n_layers, d_state, batch_size, lr: null: as published
    n_heads: of the Transformer's attention; transformer_lr: its rate, and that of Mamba-2
    bidirectional: every model reads in both directions; false: every one from the first step to the last alone
    evaluations:    looks at the validation split on the way, of ``evaluate_items`` rows each (null: all)
    seeds:   one run each
    settings: further fields of all runs, as "train.optimizer.weight_decay=0", or of those on one task, as
             "listops-gen:data.n_train=1000"
    workers: processes that train side by side, each with its share of the cores
    device:  "auto", "cpu" or "cuda"
    """

    models: Distinct[Annotated[str, OneOf(MODELS)]] = ("s4d", "transformer")
    tasks: Distinct[Annotated[str, OneOf(DATA)]] = ("listops-gen", "image")
    folder: str | None = None
    minutes: Limit | None = 25.0
    steps: Count | None = None
    d_model: Width | None = 64
    n_layers: Depth | None = 4
    d_state: Width | None = None
    batch_size: Count | None = 16
    lr: Positive | None = None
    n_heads: Count = 4
    transformer_lr: Positive = 1e-3
    bidirectional: bool = True
    evaluations: Count = 6
    evaluate_items: AtLeastTwo | None = 500
    seeds: Distinct[Seed] = (0,)
    settings: tuple[str, ...] = ()
    workers: Count = 2
    device: Device = "auto"

    def check(self) -> None:
        for setting in self.settings:
            task, known = _task_of(setting), f"which is not a task; use one of {', '.join(DATA)}"
            self.require(not task or task in DATA, f"settings: {setting!r} is for {task!r}, {known}")
        for model, task in product(self.models, self.tasks):  # refuses what no run could have
            run = run_config(self, model, task, self.seeds[0])
            if isinstance(run.model, SequenceModelConfig):
                _require_buildable(run.model)

    def cells(self) -> Iterator[Cell]:
        for task in self.tasks:
            yield from (Cell(model, task, seed) for model in self.models for seed in self.seeds)

    def scaled(self, model: str, task: str) -> Setting:
        """The published setting with the sizes that were given."""
        given = {name: getattr(self, name) for name in ("d_model", "n_layers", "d_state", "batch_size")}
        given["lr"] = self.transformer_lr if model in OURS else self.lr
        given = {name: value for name, value in given.items() if value is not None}
        setting = replace(setting_of(model, task), **given)
        if setting.n_systems is not None and setting.d_model % setting.n_systems:
            setting = replace(setting, n_systems=1)
        return setting


class Cell(NamedTuple):
    model: str
    task: str
    seed: int

    @property
    def part(self) -> str:
        return f"{self.task}-{self.model}-{self.seed}"


class Found(NamedTuple):
    """data: of each task, what is read; parts: what each run gave"""

    data: Mapping[str, Mapping[str, Any]]
    parts: Mapping[Cell, Trial]

    def seeds(self, model: str, task: str) -> list[Trial]:
        return [part for cell, part in self.parts.items() if cell[:2] == (model, task)]


def run_config(config: LraSettings, model: str, task: str, seed: int) -> RunConfig:
    """The training run of a model on a task. What a model of documents reads is only known when the data are opened:
    :func:`fitted`.

    Errors:  ConfigError for what no run could have.
    """
    setting = config.scaled(model, task)
    train = published_training(setting)
    budget, reporting = train.budget, replace(train.reporting, evaluate_items=config.evaluate_items)
    if (config.minutes, config.steps) != (None, None):
        every = None if config.steps is None else max(1, config.steps // config.evaluations)
        minutes = None if config.minutes is None else config.minutes / config.evaluations
        budget = BudgetConfig(minutes=config.minutes, steps=config.steps)
        reporting = replace(reporting, evaluate_every=every, evaluate_minutes=minutes, log_every=20)
    clip_norm = 1.0 if model in OURS else None
    run = replace(
        published_run(model, task, None if task.endswith("-gen") else config.folder),
        model=model_config(model, task, setting, n_heads=config.n_heads, bidirectional=config.bidirectional),
        train=replace(
            train,
            budget=budget,
            optimizer=replace(train.optimizer, clip_norm=clip_norm),
            reporting=replace(reporting, save_minutes=5.0, keep_last=1),
            seed=seed,
            device=config.device,
        ),
    )
    given = [setting.removeprefix(f"{task}:") for setting in config.settings if _task_of(setting) in ("", task)]
    try:
        return assign(run, given, types=run_types())
    except ConfigError as error:
        if not given:
            raise
        raise ConfigError(
            f"LraSettings.settings, of the task {task!r}: {error}; a setting for one task begins with its name, "
            'as in "listops-gen:data.n_train=1000"'
        ) from error


def _task_of(setting: str) -> str:
    """The task that a setting is for: "" for all."""
    name, colon, _ = setting.partition("=")[0].partition(":")
    return name if colon else ""


@cache
def _require_buildable(config: SequenceModelConfig) -> None:
    """Builds each different layer once, without memory, to refuse what only that refuses."""
    layers = []
    for layer in dict.fromkeys(config.layers):
        if isinstance(layer, BlockConfig) and isinstance(layer.mixer, (S4Config, S4DConfig)):
            layer = replace(layer, mixer=replace(layer.mixer, n_systems=1))  # many take seconds
        layers.append(layer)
    with torch.device("meta"):
        replace(config, layers=tuple(layers)).build()


def measure(config: LraSettings, work: Work) -> Found:
    reading = [task for task in config.tasks if not task.endswith("-gen")]
    if reading and config.folder is None:
        raise ConfigError(
            f"LraSettings.tasks: {reading[0]!r} reads files; set folder (--data-dir) to where they are, or leave the "
            'task out, as in tasks=["listops-gen"]'
        )
    runs, data = {}, {}
    for cell in config.cells():  # rows are made, and what is missing is told, before anything is trained
        runs[cell] = fitted(run_config(config, *cell))
        if cell.task not in data:
            opened = open_task(runs[cell])
            rows: LongRangeData = opened.data  # type: ignore[attr-defined]
            for split in ("validation", "test"):
                rows.split(split)
            data[cell.task] = {"sizes": opened.sizes(), "described": rows.describe(), "caveats": list(rows.caveats)}
    work.begin(len(runs))
    found = work.parts({cell.part: trained(work, cell.part, {"seed": run}) for cell, run in runs.items()})
    return Found(data, {cell: found[cell.part] for cell in runs})


def fitted(run: RunConfig) -> RunConfig:
    """The run with the vocabulary and the classes of its data, where these hang on the documents."""
    task = run.data.task  # type: ignore[attr-defined]
    return fit_model(run) if arena_task(task) in ("text", "retrieval") else run


def report(config: LraSettings, found: Found) -> Report:
    runs: dict[str, dict[str, Any]] = {}
    for cell, part in found.parts.items():
        spent = {"cpu_seconds": part["cpu_seconds"], "ms_per_step": part["ms_per_step"]}
        runs.setdefault(f"{cell.task}-{cell.model}", {})[str(cell.seed)] = {**part["seeds"]["seed"], **spent}
    return told(
        "lra",
        _words(config, found),
        _beside(config, found),
        _speeds(config, found),
        [_row(config, cell, part) for cell, part in found.parts.items()],
        _scaled(config, found),
        figures={"published": ACCURACY, "data": found.data, "runs": runs},
        plots=[
            curves("lra", "Validation accuracy while training", *(_panel(config, found, task) for task in config.tasks))
        ],
    )


def _words(config: LraSettings, found: Found) -> dict[str, Any]:
    """What the page is filled in with."""
    limits = [] if config.minutes is None else [f"{config.minutes:g} minutes"]
    limits += [] if config.steps is None else [f"{config.steps:,} steps"]
    budget = f"Each run ends after {' or '.join(limits)}" if limits else "Each run has its published number of steps"
    seeds = f"{len(config.seeds)} seeds, of which the table has the mean" if len(config.seeds) > 1 else "One seed"
    sizes = (config.minutes, config.steps, config.d_model, config.n_layers, config.batch_size)
    rows = {task: ", ".join(f"{n:,} {name}" for name, n in data["sizes"].items()) for task, data in found.data.items()}
    caveats = {task: found.data[task]["caveats"] for task in config.tasks}
    return {
        **vars(config),
        "names": [MODELS[model] for model in config.models],
        "budget": budget,
        "seeds_of": seeds,
        "titles": [*TITLES.values()],
        "caveats": [f"* {task}: {'; '.join(said)}." for task, said in caveats.items() if said],
        "substitutes": [task for task in config.tasks if task not in TASKS],
        "missing": [TITLES[task] for task in TASKS if task not in map(arena_task, config.tasks)],
        "left": [name for model, name in MODELS.items() if model not in config.models],
        "sizes": "; ".join(f"{task}: {text}" for task, text in rows.items()),
        "scaled": any(size is not None for size in sizes),
        "one_way": not config.bidirectional,
        "either": {"s4", "s4d"} & set(config.models),
    }


def _beside(config: LraSettings, found: Found) -> list[dict[str, Any]]:
    """The published rows, then ours: "*" where the data have caveats, None where nothing was run."""
    guessing = [f"{value:.1f}" for value in CHANCE]
    rows: list[tuple[str, list[Any], str | None]] = [
        ("guessing: one of all classes", guessing, f"{statistics.fmean(CHANCE):.1f}")
    ]
    for name, row in ACCURACY.items():
        rows.append((name, ["fails" if value is None else f"{value:g}" for value in row], AVERAGE.get(name)))
    stars = {task: "*" * bool(found.data[task]["caveats"]) for task in config.tasks}
    for model in config.models:
        each_of: dict[str, list[Any]] = {task: [] for task in TASKS}
        right = {task: each(runs_of(found.seeds(model, task)), "accuracy") for task in config.tasks}
        for task, values in right.items():
            middle = mean(values)
            each_of[arena_task(task)].append((middle if middle == LOST else f"{100 * middle:.2f}") + stars[task])
        overall = mean([value for task in TASKS for value in right.get(task, [None])], None)
        starred = "*" * any(stars.get(task) for task in TASKS)
        average = None if overall is None else f"{100 * overall:.2f}{starred}"
        rows.append((f"ours: {MODELS[model]}", [" ".join(values) or None for values in each_of.values()], average))
    return [{"name": name, "accuracies": row, "average": average} for name, row, average in rows]


def _speeds(config: LraSettings, found: Found) -> list[dict[str, Any]]:
    """How many times the Transformer's speed of training: the published ones, then ours; none without a Transformer."""
    if "transformer" not in config.models:
        return []

    def ms(model: str, task: str) -> float | None:
        times = known(each(runs_of(found.seeds(model, task)), "step_ms"))
        return statistics.fmean(times) if times else None

    rows: list[dict[str, Any]] = [
        {"name": name, "times": [None] * len(TASKS), "overall": value} for name, value in SPEED.items()
    ]
    for model in config.models:
        times: dict[str, list[str]] = {task: [] for task in TASKS}
        ratios = []
        for task in config.tasks:
            ours, transformer = ms(model, task), ms("transformer", task)
            if ours is not None and transformer is not None:
                ratios.append(transformer / ours)
                times[arena_task(task)].append(f"{ratios[-1]:.2f}")
        overall = statistics.geometric_mean(ratios) if len(ratios) == len(config.tasks) else None
        cells = [" ".join(values) or None for values in times.values()]
        rows.append({"name": f"ours: {MODELS[model]}", "times": cells, "overall": overall})
    return rows


def _row(config: LraSettings, cell: Cell, part: Trial) -> dict[str, Any]:
    """A run's row of the table."""
    name = f"{cell.task}, {MODELS[cell.model]}" + (f", seed {cell.seed}" if len(config.seeds) > 1 else "")
    row = row_of(name, [part])
    lost = dict.fromkeys(("watched", "minutes")) if row["lost"] else {"minutes": row["seconds"][0] / 60}
    return {**row, **lost}


def _scaled(config: LraSettings, found: Found) -> list[dict[str, Any]]:
    """Ours, and in brackets what is published where it is another."""
    rows = []
    for model, task in dict.fromkeys(cell[:2] for cell in found.parts):
        was, now = setting_of(model, task), config.scaled(model, task)
        steps = max(known(each(runs_of(found.seeds(model, task)), "steps")), default=None)
        pairs = [(getattr(now, name), getattr(was, name)) for name in ("d_model", "n_layers", "d_state", "batch_size")]
        pairs += [(f"{now.lr:g}", f"{was.lr:g}"), ("-" if steps is None else f"{steps:,}", f"{was.steps:,}")]
        if model == "transformer":
            pairs[2] = ("-", "-")
        is_known = model in SETTINGS and model != "h3"
        sizes = [f"{a} ({b})" if a != b and is_known else str(a) for a, b in pairs]
        rows.append({"name": f"{task}, {MODELS[model]}", "sizes": sizes})
    return rows


def _panel(config: LraSettings, found: Found, task: str) -> Panel:
    lines, chances = [], set()
    for i, model in enumerate(config.models):
        row = row_of(MODELS[model], found.seeds(model, task))
        if row["lost"]:
            lines.append(
                Curve((), (), f"{MODELS[model]}: diverged", {"color": f"C{i}", "linestyle": "none", "marker": "x"})
            )
        for run in row["whole"]:
            minutes, course = [s / 60 for s in run["course_seconds"]], [100 * x for x in run["course"]]
            lines.append(Curve(minutes, course, MODELS[model], {"marker": ".", "color": f"C{i}"}))
            chances.add(100 * run["chance"])
    levels = [(chance, {"color": "grey", "linestyle": ":", "label": "most frequent class"}) for chance in chances]
    x, y, first = "minutes of training", "validation accuracy, %", task == config.tasks[0]
    return Panel(lines, levels=levels, title=task, x=x, y=y, legend=first)


FEW_ROWS = {"listops-gen": 4000, "pathfinder-gen": 2000, "path-x-gen": 500}  # for training
QUICK = ["listops-gen:data.min_length=20", "listops-gen:data.max_length=100"]
QUICK += [
    f"{task}:data.n_{split}={n}"
    for task, n_train in FEW_ROWS.items()
    for split, n in (("train", n_train), ("validation", 200), ("test", 200))
]
CLAIM = Claim(
    summary="the Long Range Arena: S4, S4D, H3, Mamba-2 and a Transformer on any of its six tasks",
    duration="an hour on 2 cores",
    source="S4 (arXiv:2206.12037), S4D (arXiv:2206.11893), H3 (arXiv:2212.14052) and others, as the table names them",
    settings=LraSettings,
    quick='models=["s4","s4d","h3","mamba2","transformer"] tasks=["listops-gen"] minutes=0.3 d_model=32 n_layers=2 '
    "d_state=8 n_heads=2 evaluations=2 evaluate_items=64 workers=1 "
    f"settings={json.dumps(QUICK, separators=(',', ':'))}",
    measure=measure,
    report=report,
)
