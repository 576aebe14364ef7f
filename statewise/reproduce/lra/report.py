"""What ``lra`` found: the published table with our rows below it, each run, and what was scaled."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.reproduce.lra.published import ACCURACY, AVERAGE, CHANCE, SETTINGS, TASKS, TITLES
from statewise.reproduce.lra.runs import MODELS, arena_task, setting_of
from statewise.reproduce.lra.settings import LraSettings
from statewise.reproduce.report import Report, drawn
from statewise.reproduce.seeds_of_a_run import mean_text, ms_text, told, whole
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Runs = Mapping[tuple[str, str], Mapping[int, Mapping[str, Any]]]  # by (model, task), then by seed: what a part gave


def make_report(config: LraSettings, data: Mapping[str, Mapping[str, Any]], ours: Runs) -> Report:
    return Report(
        title="Long Range Arena",
        setting=_setting(config),
        tables=[_beside(config, data, ours), _each(config, data, ours), _scaled(config, ours)],
        differences=_differences(config),
        figures={
            "published": {name: list(row) for name, row in ACCURACY.items()},
            "data": data,
            "runs": {
                f"{task}-{model}": {str(s): _of(part) for s, part in r.items()} for (model, task), r in ours.items()
            },
        },
        plots=[drawn("lra", "Validation accuracy while training", partial(_draw, config, ours))],
    )


def _of(part: Mapping[str, Any]) -> dict[str, Any]:
    """What a run gave, with the CPU time of its part."""
    return {**part["seeds"]["seed"], "cpu_seconds": part["cpu_seconds"], "ms_per_step": part["ms_per_step"]}


def _accuracies(runs: Mapping[int, Mapping[str, Any]]) -> list[float]:
    """Of the seeds that did not diverge."""
    return [100 * found["accuracy"] for part in runs.values() for found in whole(part)]


def _beside(config: LraSettings, data: Mapping[str, Mapping[str, Any]], ours: Runs) -> Table:
    """The published rows, then ours: "*" where the data have caveats, "-" where nothing was run."""
    rows = [("guessing: one of all classes", *(f"{value:.1f}" for value in CHANCE), f"{statistics.fmean(CHANCE):.1f}")]
    for name, row in ACCURACY.items():
        published = ("fails" if value is None else f"{value:g}" for value in row)
        rows.append((name, *published, AVERAGE.get(name, "-")))
    for model in config.models:
        cells = dict.fromkeys(TASKS, "-")
        for task in config.tasks:
            mean = mean_text([*ours[model, task].values()], 2) + "*" * bool(data[task]["caveats"])
            name = arena_task(task)
            cells[name] = mean if cells[name] == "-" else f"{cells[name]} {mean}"
        overall = "-"
        if all(task in config.tasks and "diverged" not in cells[task] for task in TASKS):
            overall = f"{statistics.fmean(x for task in TASKS for x in _accuracies(ours[model, task])):.2f}"
            overall += "*" * any(data[task]["caveats"] for task in TASKS)
        rows.append((f"ours: {MODELS[model]}", *cells.values(), overall))
    notes = [f"* {task}: {'; '.join(data[task]['caveats'])}." for task in config.tasks if data[task]["caveats"]]
    substitutes = [task for task in config.tasks if task not in TASKS]
    if substitutes:
        notes.append(
            f"Not the published rows but {', '.join(substitutes)}: compare with our other rows, not with the table."
        )
    missing = [TITLES[task] for task in TASKS if task not in map(arena_task, config.tasks)]
    notes += [f"Not run: {', '.join(missing)}."] if missing else []
    notes += [f"Not run: {', '.join(left)}." for left in [_left_out(config)] if left]
    notes.append(
        "The averages of published rows are the published ones, a failure of Path-X counted as 50; some were of more "
        "digits than the table has."
    )
    return Table("Accuracy in %", ("", *TITLES.values(), "average"), rows, tuple(notes))


def _left_out(config: LraSettings) -> list[str]:
    return [label for model, label in MODELS.items() if model not in config.models]


def _each(config: LraSettings, data: Mapping[str, Mapping[str, Any]], ours: Runs) -> Table:
    rows = []
    for (model, task), runs in ours.items():
        for seed, part in runs.items():
            found = part["seeds"]["seed"]
            rows.append(
                (
                    f"{task}, {MODELS[model]}" + (f", seed {seed}" if len(runs) > 1 else ""),
                    told(found, lambda f: f"{f['accuracy']:.2%}", "diverged"),
                    told(found, lambda f: f"{max(f['course'], default=0.0):.2%}"),
                    told(found, lambda f: f"{f['chance']:.2%}"),
                    f"{part['parameters']:,}",
                    told(found, lambda f: f"{f['steps']:,}"),
                    told(found, lambda f: f"{f['epochs']:.2f}"),
                    told(found, lambda f: f"{f['seconds'] / 60:.1f}"),
                    ms_text(part, 0),
                )
            )
    sizes = "; ".join(
        f"{task}: {', '.join(f'{n:,} {name}' for name, n in found['sizes'].items())}" for task, found in data.items()
    )
    columns = (
        "",
        "test",
        "best validation",
        "most frequent class",
        "parameters",
        "steps",
        "epochs",
        "minutes",
        "CPU ms a step",
    )
    note = f"Of each run the checkpoint with the best accuracy on the validation rows, tested once. Rows: {sizes}."
    return Table("What was run", columns, rows, (note,))


def _scaled(config: LraSettings, ours: Runs) -> Table:
    """Ours, and in brackets what is published where it is another."""
    rows = []
    for model, task in ours:
        was, now = setting_of(model, task), config.scaled(model, task)
        steps = max((found["steps"] for part in ours[model, task].values() for found in whole(part)), default=None)
        pairs: Sequence[tuple[Any, Any]] = (
            (now.d_model, was.d_model),
            (now.n_layers, was.n_layers),
            ("-", "-") if model == "transformer" else (now.d_state, was.d_state),
            (now.batch_size, was.batch_size),
            (f"{now.lr:g}", f"{was.lr:g}"),
            ("-" if steps is None else f"{steps:,}", f"{was.steps:,}"),
        )
        known = model in SETTINGS and model != "h3"
        cells = (f"{a} ({b})" if a != b and known else str(a) for a, b in pairs)
        rows.append((f"{task}, {MODELS[model]}", *cells))
    columns = ("", "width", "layers", "N", "batch", "rate", "steps")
    return Table("Sizes, and in brackets the published ones where ours are others", columns, rows)


def _setting(config: LraSettings) -> str:
    limits = [] if config.minutes is None else [f"{config.minutes:g} minutes"]
    limits += [] if config.steps is None else [f"{config.steps:,} steps"]
    budget = f"Each run ends after {' or '.join(limits)}" if limits else "Each run has its published number of steps"
    return (
        f"{', '.join(MODELS[model] for model in config.models)} on {', '.join(config.tasks)}. {budget}; AdamW, warm-up "
        "and a cosine to 0. S4 and S4D read in both directions, with the published norm, placement, weight decay, and "
        "rates of A, B and dt; the mean over a row's own steps goes into a linear head, for retrieval two of them into "
        "[u, v, u - v, u v] and an MLP."
        + (f" {len(config.seeds)} seeds, of which the table has the mean." if len(config.seeds) > 1 else " One seed.")
    )


def _differences(config: LraSettings) -> list[str]:
    lines = []
    if any(getattr(config, name) is not None for name in ("minutes", "steps", "d_model", "n_layers", "batch_size")):
        lines.append(
            "Sizes and budgets are those of the tables above: the accuracies say what these give, not what the models "
            "can do. The published schedule: minutes, steps, d_model, n_layers, d_state and batch_size null."
        )
    if {"s4", "s4d"} & set(config.models):
        lines.append(
            "dt = exp(log dt), as in the code that S4D's figures come from; version 4 of it has a softplus. The second "
            "direction reads each row's own steps, without the published code's shift by one."
        )
    if "s4d" in config.models:
        lines.append(
            "S4D's settings are those that its repository keeps as version 3, with S4D-LegS for the layer; B begins "
            "at 1."
        )
    if "h3" in config.models:
        lines.append(
            "H3: no settings for these tasks are published. It stands in S4D's place, in S4D's settings, and is causal."
        )
    if "transformer" in config.models:
        lines.append(
            "Transformer: causal attention with rotary positions, MLPs of four times the width, pre-norm LayerNorm, "
            "gradients clipped at 1. The published one reads in both directions, with learned positions."
        )
    if config.settings:
        lines.append(f"Further fields were set: {', '.join(config.settings)}.")
    lines.append("S4's first table (ICLR 2022) is left out: it could not be confirmed where this was written.")
    return lines


def _draw(config: LraSettings, ours: Runs, drawing: Figure) -> None:
    panels = drawing.subplots(1, len(config.tasks), squeeze=False)[0]
    for axes, task in zip(panels, config.tasks):
        for i, model in enumerate(config.models):
            runs = ours[model, task].values()
            if any(not whole(part) for part in runs):
                axes.plot([], [], color=f"C{i}", linestyle="none", marker="x", label=f"{MODELS[model]}: diverged")
            for found in (found for part in runs for found in whole(part)):
                minutes = [seconds / 60 for seconds in found["course_seconds"]]
                axes.plot(minutes, [100 * x for x in found["course"]], marker=".", color=f"C{i}", label=MODELS[model])
        for chance in {
            f["chance"] for model in config.models for part in ours[model, task].values() for f in whole(part)
        }:
            axes.axhline(100 * chance, color="grey", linestyle=":", label="most frequent class")
        axes.set(title=task, xlabel="minutes of training", ylabel="validation accuracy, %")
        axes.grid(alpha=0.3)
    handles = dict(zip(*reversed(panels[0].get_legend_handles_labels())))
    panels[0].legend(handles.values(), handles.keys(), fontsize=8)
