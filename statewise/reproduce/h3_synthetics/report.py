"""What ``h3-synthetics`` found: accuracies beside the published ones, and their course."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.reproduce.h3_synthetics.settings import BATCH_SIZE, D_MODEL, H3SyntheticsSettings
from statewise.reproduce.report import Bar, Report, drawn
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {
    "s4d": "S4D",
    "gss": "GSS",
    "h3": "H3",
    "hybrid": "H3, then attention",
    "attention": "attention",
    "mamba": "Mamba",
    "mamba2": "Mamba-2",
}
# Fu et al. 2023, arXiv:2212.14052, table 2: accuracy in %
PUBLISHED = {
    "induction-head": {"s4d": 35.6, "gss": 6.8, "h3": 100.0, "attention": 100.0},
    "associative-recall": {"s4d": 86.0, "gss": 78.0, "h3": 99.8, "attention": 100.0},
}
MUST_SOLVE = ("h3", "attention")
MINUTES = 90.0  # of two cores, for one seed of everything


def make_report(config: H3SyntheticsSettings, found: Mapping[str, Mapping[str, Any]]) -> Report:
    n_seeds = len(config.seeds)
    cpu_seconds = sum(part["cpu_seconds"] for part in found.values())
    minutes = cpu_seconds / n_seeds / 2 / 60
    bars = []
    if config.bars:
        for task in config.tasks:
            for model in (name for name in MUST_SOLVE if name in config.models):
                ours = min(_accuracies(found[f"{task}-{model}"]))
                bars.append(Bar(what=f"{NAMES[model]}, {task}: every seed", ours=ours, bar=97.0, unit=" %"))
        bars.append(
            Bar(
                what=f"minutes to spare of {MINUTES:g} on two cores, for one seed of everything",
                ours=MINUTES - minutes,
                bar=0.0,
            )
        )
    tables = [_table(config, task, found) for task in config.tasks]
    early = (
        ""
        if config.stop_at is None
        else (
            f" A run ends early once it names at least {config.stop_at:.1%} of its validation answers after "
            f"{config.stop_after} epochs running; it then leaves the stack of seeds it is trained in."
        )
    )
    return Report(
        title="H3's synthetic languages: what tells the models apart",
        setting=(
            f"Two layers of width {D_MODEL}, each with an MLP of {4 * D_MODEL}; {config.n_train:,} rows in batches of "
            f"{BATCH_SIZE}, at most {' and '.join(map(str, config.epochs))} epochs, the loss on every next token, the "
            f"accuracy that of the last. {config.n_validation} rows of their own are looked at after every epoch, the "
            f"{config.n_test} of the test once, by the model as it was at its end; no row is in two of these sets."
            f"{early} All models and seeds took {cpu_seconds / 60:,.0f} minutes of one core: for one seed of "
            f"everything {minutes:,.0f} minutes of two cores."
        ),
        tables=tables,
        bars=bars,
        differences=(
            "Published training and test rows are not held against each other; here no test row is trained on. The "
            "last rows of an epoch that fill no batch are left out.",
            "The cosine begins where the warm-up ends. Gradients are clipped to a norm of 1, and weight decay is for "
            "matrices alone: neither is published for these runs.",
            "The Transformer has its dropout of 0.1 on each branch, not on the weights of its attention; its learned "
            "positions are added to the embedding.",
            "GSS has no published configuration for these tasks: this one is declared here (N = 64, gate of 4 d, "
            "bottleneck of d / 4). S4D has one A for all channels and a normal B, which is not trained apart from C.",
            "Mamba (N = 16) and Mamba-2 (N = 64, heads of 32), which came later, stand in the same block with the "
            "same MLP. The hybrid is one layer of H3, then one of attention without positions.",
            "Chance is 1 in 18 ordinary tokens (5.6 %) and 1 in 4 values (25 %); published: 5.0 and 25.0.",
        ),
        figures={
            "cpu_seconds": cpu_seconds,
            "minutes_of_two_cores_for_one_seed": minutes,
            "runs": {name: dict(part) for name, part in found.items()},
        },
        plots=[
            drawn(
                "h3-synthetics",
                "Accuracy on the validation rows, mean of the seeds, epoch by epoch",
                partial(_draw, config=config, found=found),
                width=10.0,
            )
        ],
    )


def _accuracies(part: Mapping[str, Any]) -> list[float]:
    return [100 * seed["accuracy"] for seed in part["seeds"].values()]


def _table(config: H3SyntheticsSettings, task: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for model in config.models:
        part = found[f"{task}-{model}"]
        ours, published = _accuracies(part), PUBLISHED[task].get(model)
        rows.append(
            (
                NAMES[model],
                "-" if published is None else f"{published:.1f}",
                f"{statistics.mean(ours):.1f}",
                " ".join(f"{one:.1f}" for one in ours),
                " ".join(f"{seed['epochs']:.0f}" for seed in part["seeds"].values()),
                f"{part['parameters']:,}",
                f"{part['cpu_seconds']:,.0f}",
                f"{part['ms_per_step']:.1f}",
            )
        )
    return Table(
        f"{task}: accuracy of the last token, %",
        ("", "publ.", "ours", "seeds", "epochs", "weights", "CPU s", "ms"),
        rows,
        (
            f"CPU s: of all {len(config.seeds)} seeds together, with validation. ms: of one core, for a step of "
            "all seeds that were still training, on average.",
        ),
    )


def _draw(drawing: Figure, config: H3SyntheticsSettings, found: Mapping[str, Mapping[str, Any]]) -> None:
    panels = drawing.subplots(1, len(config.tasks), squeeze=False)[0]
    for axes, task in zip(panels, config.tasks):
        for i, model in enumerate(config.models):
            courses = [seed["course"] for seed in found[f"{task}-{model}"]["seeds"].values()]
            longest = max(map(len, courses))
            held = [course + course[-1:] * (longest - len(course)) for course in courses]
            mean = [100 * statistics.mean(values) for values in zip(*held)]
            axes.plot(range(1, longest + 1), mean, label=NAMES[model], color=f"C{i}")
            published = PUBLISHED[task].get(model)
            if published is not None:
                axes.axhline(published, color=f"C{i}", linewidth=0.8, linestyle=":")
        axes.set(title=task, xlabel="epoch (dotted: published)", ylabel="accuracy, %", ylim=(0, 102))
        axes.grid(alpha=0.3)
    panels[-1].legend(fontsize=8)
