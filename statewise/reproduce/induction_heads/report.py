"""What ``induction-heads`` found: accuracy by length, seed by seed, beside the published one."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.reproduce.induction_heads.settings import GOES_ON, HISTORY, MODELS, NAMES, InductionHeadsSettings
from statewise.reproduce.report import Bar, Report, doubling_axis, drawn
from statewise.reproduce.seeds_of_a_run import is_diverged, ms_text, told, whole
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Parts = Mapping[str, Mapping[str, Any]]

# Gu and Dao 2023, arXiv:2312.00752, table 11: accuracy in % at 2^6, 2^7, ... tokens, trained at 2^8
PUBLISHED_LENGTH = 256
PUBLISHED = {
    "mamba": (100.0,) * 15,
    "h3": (100.0, 100.0, 100.0, 80.9, 39.5, 23.8, 14.8, 8.2, 5.9, 6.6, 8.2, 4.7, 8.2, 6.3, 7.4),
    "attention": (100.0, 99.6, 100.0, 58.6, 26.6, 18.8, 9.8, 10.9, 7.8),
    "rotary": (100.0, 100.0, 100.0, 83.6, 31.3, 18.4, 8.6, 9.0, 5.5),
}


def published(config: InductionHeadsSettings, model: str, length: int) -> float | None:
    """The figure for this model and length, where there is one.

    >>> published(InductionHeadsSettings(), "h3", 512)
    80.9
    """
    row = PUBLISHED[model] if config.length == PUBLISHED_LENGTH else ()
    return {2 ** (6 + i): value for i, value in enumerate(row)}.get(length)


def make_report(config: InductionHeadsSettings, trained: Parts, asked: Parts) -> Report:
    """trained: the runs, by model and seed
    asked:   the tests of those that did not diverge, by model, seed and length
    """
    seeds = {model: [seed for seed in config.seeds if whole(trained[f"{model}-{seed}"])] for model in config.models}
    best = {model: _best(config, model, seeds[model], asked) for model in config.models}
    bars = []
    if config.bars and "mamba" in config.models:
        seed = best["mamba"]
        worst = None if seed is None else min(_accuracies(config, "mamba", seed, asked))
        what = f"Mamba, the best of {len(config.seeds)} seeds, at each of {len(config.lengths_of('mamba'))} lengths"
        bars.append(Bar(what=what, ours=worst, bar=100.0, unit=" %"))
    tables = [_table(config, model, seeds[model], best[model], asked) for model in config.models]
    seconds = sum(part["cpu_seconds"] for part in trained.values())
    return Report(
        title="Induction heads: what followed the special token, up to a million tokens before",
        setting=(
            f"Two layers, pre-norm, no MLP; rows of {config.length} tokens, {config.batch_size} in a step, each read "
            "once, and the loss on the answer alone. The token to be named is the one that followed '=>', which stands "
            "at one random place of the row and again at its end. The last checkpoint of each run is asked at all "
            f"lengths, by {config.n_test} rows, or by so many that they hold {config.test_tokens:,} tokens; what is "
            "longer than is read at once is read in parts, the state carried from one to the next. Chance is 1 in 15, "
            f"6.7 %. Training took {seconds / 60:,.1f} minutes of processor time."
        ),
        tables=[*tables, _training(config, trained)],
        bars=bars,
        differences=_differences(config),
        figures={
            "best_seed": best,
            "trained": {name: dict(part) for name, part in trained.items()},
            "asked": {name: dict(part) for name, part in asked.items()},
        },
        plots=[
            drawn(
                "induction-heads",
                "Accuracy against length",
                partial(_draw, config=config, seeds=seeds, best=best, asked=asked),
            )
        ],
    )


def _accuracies(config: InductionHeadsSettings, model: str, seed: int, asked: Parts) -> list[float]:
    """In %, by length."""
    return [100 * asked[f"{model}-{seed}-{length}"]["accuracy"] for length in config.lengths_of(model)]


def _best(config: InductionHeadsSettings, model: str, seeds: Sequence[int], asked: Parts) -> int | None:
    """The one of these seeds with the highest mean over the lengths."""
    return max(seeds, key=lambda seed: statistics.fmean(_accuracies(config, model, seed, asked)), default=None)


def _table(config: InductionHeadsSettings, model: str, there: Sequence[int], best: int | None, asked: Parts) -> Table:
    rows = []
    by_seed = {seed: _accuracies(config, model, seed, asked) for seed in there}
    for i, length in enumerate(config.lengths_of(model)):
        theirs = published(config, model, length)
        rows.append(
            (
                f"{length:,}",
                "-" if theirs is None else f"{theirs:.1f}",
                *(f"{by_seed[seed][i]:.1f}" if seed in by_seed else "diverged" for seed in config.seeds),
                "-" if best is None else f"{asked[f'{model}-{best}-{length}']['rows']:,}",
            )
        )
    seeds = (f"seed {seed}" if seed != best or len(config.seeds) == 1 else f"seed {seed} *" for seed in config.seeds)
    note = "*: the seed with the highest mean over these lengths." if len(config.seeds) > 1 and best is not None else ""
    return Table(
        f"{NAMES[model]}: accuracy by length, %", ("tokens", "publ.", *seeds, "rows"), rows, (note,) if note else ()
    )


def _training(config: InductionHeadsSettings, trained: Parts) -> Table:
    rows = []
    for model in config.models:
        for seed in config.seeds:
            part = trained[f"{model}-{seed}"]
            (run,) = part["seeds"].values()
            course = [] if is_diverged(run) else run["course"]
            first = next((i for i, accuracy in enumerate(course, 1) if accuracy == 1.0), None)
            rows.append(
                (
                    f"{NAMES[model]}, seed {seed}",
                    f"{part['parameters']:,}",
                    told(run, lambda r: f"{r['steps']:,}"),
                    "-" if first is None else f"{first * config.look_every:,}",
                    told(run, lambda r: f"{100 * r['validation']:.1f}", "diverged"),
                    f"{part['cpu_seconds']:,.0f}",
                    ms_text(part),
                )
            )
    return Table(
        f"Training at {config.length} tokens",
        ("", "weights", "steps", "first 100 %", "validation, %", "CPU s", "ms"),
        rows,
        (f"first 100 %: the first look, every {config.look_every:,} steps, at which every answer was right.",),
    )


def _differences(config: InductionHeadsSettings) -> list[str]:
    steps = ", ".join(f"{n:,} ({NAMES[model]})" for model, n in zip(config.models, config.steps))
    rates = ", ".join(f"{MODELS[model][2]:g} ({NAMES[model]})" for model in config.models)
    lines = [
        "Published (Gu and Dao 2023, arXiv:2312.00752, appendix E.1): 8 rows in a step at a constant rate, the better "
        "of 2e-4 and 1e-3, 1e-3 for Mamba alone, without weight decay; 204,800 steps for Mamba and attention with "
        f"learned positions, 409,600 for rotary ones, 81,920 for H3. Here {config.batch_size} rows in a step and at "
        f"most {steps}; rates of {rates}, the gradient clipped to a norm of 1.",
        f"The rate rises over the first {100 * config.warmup:g}% of the steps and falls to 0 over the last "
        f"{100 * config.decay:g}%.",
        "How many rows the published tests had is not said.",
    ]
    if set(HISTORY) & set(config.models):
        lines.append(
            f"Attention is asked at lengths up to {config.attention_to:,}, by {config.attention_rows} "
            "rows at most: its time is quadratic in the length."
        )
    if "attention" in config.models:
        lines.append(
            f"The vectors of the learned positions beyond {config.length} stay what they were drawn as, since no row "
            "for training reaches them."
        )
    stopping = [NAMES[model] for model in config.models if model != GOES_ON]
    if config.stop_at is not None and stopping:
        lines.append(
            f"A run of {', '.join(stopping)} ends early once it named at least {config.stop_at:.1%} of its "
            f"{config.n_validation} validation answers in {config.stop_after} looks running, {config.look_every:,} "
            "steps apart; its rate has then not fallen."
        )
    if config.length != PUBLISHED_LENGTH:
        lines.append(f"Published models are trained at {PUBLISHED_LENGTH} tokens, these at {config.length}.")
    return lines


def _draw(
    drawing: Figure,
    config: InductionHeadsSettings,
    seeds: Mapping[str, Sequence[int]],
    best: Mapping[str, int | None],
    asked: Parts,
) -> None:
    axes = drawing.subplots()
    for i, model in enumerate(config.models):
        lengths = config.lengths_of(model)
        lost = " (a seed diverged)" if len(seeds[model]) < len(config.seeds) else ""
        if not seeds[model]:
            axes.plot([], [], color=f"C{i}", label=NAMES[model] + lost)
        for seed in seeds[model]:
            is_best = seed == best[model]
            axes.plot(
                lengths,
                _accuracies(config, model, seed, asked),
                marker="o" if is_best else None,
                markersize=4,
                color=f"C{i}",
                linewidth=1.6 if is_best else 0.6,
                label=NAMES[model] + lost if is_best else None,
            )
        theirs = [(n, value) for n in lengths if (value := published(config, model, n)) is not None]
        if theirs:
            axes.plot(*zip(*theirs), color=f"C{i}", linewidth=0.8, linestyle=":")
    axes.axvline(config.length, color="grey", linewidth=0.8, linestyle="--")
    doubling_axis(axes, sorted(config.lengths), "tokens (dashed: of training; dotted: published)")
    axes.tick_params(axis="x", labelrotation=60, labelsize=7)
    axes.set(ylabel="accuracy, %", ylim=(0, 103))
    axes.legend(fontsize=8)
