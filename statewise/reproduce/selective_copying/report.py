"""What ``selective-copying`` found: accuracies beside the published ones, and their course."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.reproduce.report import Bar, Report, drawn
from statewise.reproduce.seeds_of_a_run import mean_text, told, whole
from statewise.reproduce.selective_copying.settings import NAMES, SELECTIVE, SelectiveCopyingSettings
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Parts = Mapping[str, Mapping[str, Any]]

# Gu and Dao 2023, arXiv:2312.00752, table 1: accuracy in %
PUBLISHED = {"s4": 18.3, "h3": 57.0, "mamba": 99.8}
GAP = 20.0  # points that count as well below


def make_report(config: SelectiveCopyingSettings, found: Parts) -> Report:
    best = {model: max(_accuracies(config, model, found), default=None) for model in config.models}
    bars = []
    selective = [model for model in config.models if model in SELECTIVE]
    others = [model for model in config.models if model not in SELECTIVE]
    if config.bars:
        for model in selective:
            bars.append(Bar(what=f"{NAMES[model]}, the best seed", ours=best[model], bar=99.0, unit=" %"))
        theirs = [accuracy for model in others if (accuracy := best[model]) is not None]
        ours = [accuracy for model in selective if (accuracy := best[model]) is not None]
        if ours and theirs and len(ours) + len(theirs) == len(best):
            gap = min(ours) - max(theirs)
            what = "how far the best time-invariant layer is below the worst selective one"
            bars.append(Bar(what=what, ours=gap, bar=GAP, unit=" points"))
    minutes = sum(part["cpu_seconds"] for part in found.values()) / 60
    chance = 1 / (config.vocab_size - 2)
    return Report(
        title="Selective copying: what matters among what does not",
        setting=(
            f"{config.n_copied} symbols at random places among noise, and as many markers, at which they are asked for "
            f"in their order: rows of {config.length} tokens, a vocabulary of {config.vocab_size}. Two layers, width "
            f"64, pre-norm, no MLP; at most {config.steps:,} steps of {config.batch_size} rows, each read once, and "
            f"the loss on the answers alone; {config.n_test} test rows. Chance is {chance:.1%}. Training with its "
            f"validation took {minutes:,.1f} minutes of processor time."
        ),
        tables=[_table(config, found)],
        bars=bars,
        differences=_differences(config),
        figures={"runs": {name: dict(part) for name, part in found.items()}},
        plots=[drawn("selective-copying", "Validation accuracy", partial(_draw, config=config, found=found))],
    )


def _runs(config: SelectiveCopyingSettings, model: str, found: Parts) -> list[Mapping[str, Any]]:
    """Of those seeds that did not diverge."""
    return [run for seed in config.seeds for run in whole(found[f"{model}-{seed}"])]


def _accuracies(config: SelectiveCopyingSettings, model: str, found: Parts) -> list[float]:
    return [100 * run["accuracy"] for run in _runs(config, model, found)]


def _table(config: SelectiveCopyingSettings, found: Parts) -> Table:
    rows = []
    for model in config.models:
        parts = [found[f"{model}-{seed}"] for seed in config.seeds]
        runs, theirs = [run for part in parts for run in part["seeds"].values()], PUBLISHED.get(model)
        times = [part["ms_per_step"] for part in parts if part["ms_per_step"] is not None]
        rows.append(
            (
                NAMES[model],
                "yes" if model in SELECTIVE else "no",
                "-" if theirs is None else f"{theirs:.1f}",
                mean_text(parts, 1),
                " ".join(told(run, lambda r: f"{100 * r['accuracy']:.1f}", "diverged") for run in runs),
                " ".join(told(run, lambda r: f"{r['steps']:,}") for run in runs),
                f"{parts[0]['parameters']:,}",
                f"{sum(part['cpu_seconds'] for part in parts):,.0f}",
                f"{statistics.fmean(times):.1f}" if times else "-",
            )
        )
    return Table(
        "Accuracy of the copied symbols, %",
        ("", "selective", "publ.", "ours", "seeds", "steps", "weights", "CPU s", "ms"),
        rows,
        ("ours: the mean of the seeds. CPU s: of all seeds. ms: of processor time, for a step, with its validation.",),
    )


def _differences(config: SelectiveCopyingSettings) -> list[str]:
    lines = [
        "Scaled (Gu and Dao 2023, arXiv:2312.00752, sec. 4.1.1 and appendix E.1): published are rows of 4,096 tokens "
        f"with 16 symbols, 400,000 steps of 64 rows at 1e-4. Here {config.length:,} tokens with {config.n_copied} "
        f"symbols, {config.steps:,} steps of {config.batch_size} rows at most, at {config.lr:g} with a warm-up and a "
        "cosine, the gradient clipped to a norm of 1.",
        "The paper names no marker; ours is the last token of the vocabulary, as in the authors' copying task.",
    ]
    if config.stop_at is not None:
        lines.append(
            f"A run ends early once it named at least {config.stop_at:.1%} of its validation answers in "
            f"{config.stop_after} looks running, {config.look_every:,} steps apart."
        )
    if "gss" in config.models:
        lines.append("GSS stands for S4 in a gated block; the published one is S4 in Mamba's block, with 56.4 %.")
    if "mamba2" in config.models:
        lines.append("Mamba-2 (N = 64, heads of 32) came later; it has no published figure here.")
    return lines


def _draw(drawing: Figure, config: SelectiveCopyingSettings, found: Parts) -> None:
    axes = drawing.subplots()
    for i, model in enumerate(config.models):
        runs = _runs(config, model, found)
        lost = " (a seed diverged)" if len(runs) < len(config.seeds) else ""
        if not runs:
            axes.plot([], [], color=f"C{i}", label=NAMES[model] + lost)
        for j, run in enumerate(runs):
            course = [100 * accuracy for accuracy in run["course"]]
            steps = [min((k + 1) * config.look_every, run["steps"]) for k in range(len(course))]
            axes.plot(
                steps,
                course,
                color=f"C{i}",
                linewidth=1.2,
                linestyle="-" if model in SELECTIVE else "--",
                label=None if j else NAMES[model] + lost,
            )
    axes.set(xlabel="step (dashed: time-invariant)", ylabel="validation accuracy, %", ylim=(0, 102))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
