"""What the runs gave, as tables next to the published ones, and a plot."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any, NamedTuple

from statewise.reproduce.lra.published import (
    ACCURACY,
    AVERAGE,
    CHANCE,
    SETTINGS,
    SPEED,
    TASKS,
    TITLES,
    arena_task,
    setting_of,
)
from statewise.reproduce.lra.settings import MODELS, Cell, LraSettings, run_config
from statewise.reproduce.outcomes import LOST, each, known, mean, row_of, runs_of
from statewise.reproduce.page import told
from statewise.reproduce.report import Curve, Panel, Report, curves
from statewise.reproduce.training import Trial


class Found(NamedTuple):
    """data: of each task, what is read; parts: what each run gave"""

    data: Mapping[str, Mapping[str, Any]]
    parts: Mapping[Cell, Trial]

    def seeds(self, model: str, task: str) -> list[Trial]:
        return [part for cell, part in self.parts.items() if cell[:2] == (model, task)]


def report(config: LraSettings, found: Found) -> Report:
    runs: dict[str, dict[str, Any]] = {}
    for cell, part in found.parts.items():
        spent = {name: part.get(name) for name in ("cpu_seconds", "ms_per_step", "step_ms")}
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
            curves(
                "lra",
                "Validation accuracy while training",
                *(_panel(config, found, task) for task in config.tasks),
                width=max(7.5, 3.6 * min(3, len(config.tasks))),
                height=4.8 if len(config.tasks) == 1 else 3.4,
            )
        ],
    )


CLOCKS = {"wall": "by the clock", "processor": "of the processor"}


def _words(config: LraSettings, found: Found) -> dict[str, Any]:
    """What the page is filled in with."""
    limits = [] if config.minutes is None else [f"{config.minutes:g} minutes {CLOCKS[config.clock]}"]
    limits += [] if config.steps is None else [f"{config.steps:,} steps"]
    budget = f"Each run ends after {' or '.join(limits)}" if limits else "Each run has its published number of steps"
    seeds = f"{len(config.seeds)} seeds, of which the table has the mean" if len(config.seeds) > 1 else "One seed"
    sizes = (config.minutes, config.steps, config.d_model, config.n_layers, config.batch_size)
    rows = {task: ", ".join(f"{n:,} {name}" for name, n in data["sizes"].items()) for task, data in found.data.items()}
    caveats = {task: found.data[task]["caveats"] for task in config.tasks}
    most_rows = max(data["sizes"].get("test", 0) for data in found.data.values())
    return {
        **vars(config),
        "test_rows": None if config.test_rows is None or most_rows <= config.test_rows else config.test_rows,
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


def _speeds(config: LraSettings, found: Found) -> list[dict[str, Any]] | None:
    """How many times the Transformer's speed of training: the published ones, then ours; None without a Transformer."""
    if "transformer" not in config.models:
        return None

    def ms(model: str, task: str) -> float | None:
        times = known(part.get("step_ms") for part in found.seeds(model, task))
        return statistics.fmean(times) / _rows_a_step(config, model, task) if times else None

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


def _rows_a_step(config: LraSettings, model: str, task: str) -> int:
    train = run_config(config, model, task, config.seeds[0]).train  # which further settings may have changed
    return train.batch_size * train.accumulation


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
        run = run_config(config, model, task, config.seeds[0])
        width, depth, lr = run.model.d_model, len(run.model.layers), run.train.optimizer.lr  # type: ignore[attr-defined]
        pairs: list[tuple[Any, Any]] = [(width, was.d_model), (depth, was.n_layers), (now.d_state, was.d_state)]
        pairs += [(_rows_a_step(config, model, task), was.batch_size), (f"{lr:g}", f"{was.lr:g}")]
        pairs.append(("-" if steps is None else f"{steps:,}", f"{was.steps:,}"))
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
