"""What ``h3-synthetics`` found: accuracies beside the published ones, and their course."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.reproduce.h3_synthetics.settings import BATCH_SIZE, D_MODEL, H3SyntheticsSettings, is_everything
from statewise.reproduce.report import Bar, Report, drawn
from statewise.reproduce.seeds_of_a_run import is_diverged, mean_text, ms_text, told, whole
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
MINUTES = 90.0  # of two cores, for one seed of everything; all seeds together take longer than one

# What is different, each with the models and the tasks that it is about; empty: with any
DIFFERENCES: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (),
        "Published training and test rows are not held against each other; here no test row is trained on.",
    ),
    (
        (),
        "The published code validates on the rows of its test and watches for the best epoch on them (ours: "
        '"watched"); here the epoch that was best on rows of their own reads the test.',
    ),
    (
        ("gss",),
        "GSS has no published configuration for these tasks: this one is declared here (N = 64, gate of 4 d, "
        "bottleneck of d / 4).",
    ),
    (("s4d",), "S4D has one A for all channels and a normal B, which is not trained apart from C."),
    (("mamba",), "Mamba (N = 16), which came later, stands in the same block with the same MLP."),
    (("mamba2",), "Mamba-2 (N = 64, heads of 32), which came later, stands in the same block with the same MLP."),
    (("hybrid",), "The hybrid is one layer of H3, then one of attention without positions."),
    (("induction-head",), "Chance in induction-head is 1 in 18 ordinary tokens, 5.6 %; published: 5.0."),
    (("associative-recall",), "Chance in associative-recall is 1 in 4 values, 25 %; published: 25.0."),
)


def make_report(config: H3SyntheticsSettings, found: Mapping[str, Mapping[str, Any]]) -> Report:
    n_seeds = len(config.seeds)
    cpu_seconds = sum(part["cpu_seconds"] for part in found.values())
    minutes = cpu_seconds / 2 / 60
    everything = "everything" if n_seeds == 1 else f"all {n_seeds} seeds of everything"
    more = "" if n_seeds == 1 else ", more than one seed takes"
    bars = []
    if config.bars:
        for task in config.tasks:
            for model in (name for name in MUST_SOLVE if name in config.models):
                ours = min(_accuracies(found[f"{task}-{model}"]))
                bars.append(Bar(what=f"{NAMES[model]}, {task}: every seed", ours=ours, bar=97.0, unit=" %"))
        if is_everything(config) and (n_seeds == 1 or minutes <= MINUTES):  # of one seed; more seeds only bound it
            what = f"minutes to spare of {MINUTES:g} on two cores, for {everything}{more}"
            bars.append(Bar(what=what, ours=MINUTES - minutes, bar=0.0))
    of_seeds = ", mean of the seeds and (thin) each" if n_seeds > 1 else ""
    tables = [_table(config, task, found) for task in config.tasks]
    return Report(
        title="H3's synthetic languages: what tells the models apart",
        setting=(
            f"Two layers of width {D_MODEL}, each with an MLP of {4 * D_MODEL}; {config.n_train:,} rows in batches of "
            f"{BATCH_SIZE}, at most {_epochs(config)}, the loss on every next token, the "
            f"accuracy that of the last. {config.n_validation} rows of their own are looked at after every epoch, the "
            f"{config.n_test} of the test once, by the model that was best on them; no row is in two of these sets."
            f"{_early(config)} Training with its validation took {cpu_seconds / 60:,.1f} minutes of processor time: "
            f"for {everything} that is listed {minutes:,.1f} minutes of two cores that share it{more}. The start of "
            "the processes and the tests are not in it."
        ),
        tables=tables,
        bars=bars,
        differences=told_differences(config),
        figures={
            "cpu_seconds": cpu_seconds,
            "minutes_of_two_cores": minutes,  # all seeds
            "runs": {name: dict(part) for name, part in found.items()},
        },
        plots=[
            drawn(
                "h3-synthetics",
                f"Accuracy on the validation rows{of_seeds}, epoch by epoch",
                partial(_draw, config=config, found=found),
                width=10.0,
            )
        ],
    )


def _epochs(config: H3SyntheticsSettings) -> str:
    """
    >>> _epochs(H3SyntheticsSettings())
    '400 epochs of induction-head and 200 of associative-recall'
    """
    return " and ".join(
        f"{n}{'' if i else ' epochs' if n > 1 else ' epoch'} of {task}"
        for i, (task, n) in enumerate(zip(config.tasks, config.epochs))
    )


def _early(config: H3SyntheticsSettings) -> str:
    """When a run ends before its last epoch, if any can."""
    if config.stop_at is None or config.stop_after >= max(config.epochs):
        return ""
    running = "after an epoch" if config.stop_after == 1 else f"after {config.stop_after} epochs running"
    leaves = "; it then leaves the stack of seeds it is trained in" if len(config.seeds) > 1 else ""
    return f" A run ends early once it names at least {config.stop_at:.1%} of its validation answers {running}{leaves}."


def told_differences(config: H3SyntheticsSettings) -> list[str]:
    """In what these settings are not the published ones."""
    there = {*config.models, *config.tasks}
    found = [text for about, text in DIFFERENCES if there.issuperset(about)]
    full = H3SyntheticsSettings()
    if config.clip_norm != full.clip_norm:
        found.append(f"Gradients are clipped to a norm of {config.clip_norm:g}; published: not at all.")
    if config.weight_decay_of != full.weight_decay_of:
        found.append("The matrices of maps alone decay; published: every parameter but the systems'.")
    if config.dropout_of != full.dropout_of and "attention" in config.models:
        found.append("The Transformer has its dropout of 0.1 on each branch; published: on its attention's weights.")
    if config.drop_last and config.n_train % BATCH_SIZE:
        found.append("The last rows of an epoch that fill no batch are left out; published: they are one.")
    if config.warmup_prefix and "induction-head" in config.tasks:
        found.append("The cosine of induction-head begins where the warm-up ends; published: where it begins.")
    if len(config.seeds) > 1:
        found.append(
            "The seeds are of the parameters, the dropout and the order of the rows; all read the same rows (data.seed "
            "0), so that their spread holds nothing of the data's."
        )
    return found


def _accuracies(part: Mapping[str, Any]) -> list[float]:
    """Of each seed; one that diverged has learned nothing."""
    return [0.0 if is_diverged(seed) else 100 * seed["accuracy"] for seed in part["seeds"].values()]


def _table(config: H3SyntheticsSettings, task: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for model in config.models:
        part = found[f"{task}-{model}"]
        seeds, published = part["seeds"].values(), PUBLISHED[task].get(model)
        rows.append(
            (
                NAMES[model],
                "-" if published is None else f"{published:.1f}",
                mean_text([part], 1),
                " ".join(told(seed, lambda s: f"{100 * s['accuracy']:.1f}", "diverged") for seed in seeds),
                " ".join(told(seed, lambda s: f"{100 * max(s['course']):.1f}", "diverged") for seed in seeds),
                " ".join(told(seed, lambda s: f"{s['epochs']:.0f}") for seed in seeds),
                f"{part['parameters']:,}",
                f"{part['cpu_seconds']:,.0f}",
                ms_text(part),
            )
        )
    return Table(
        f"{task}: accuracy of the last token, %",
        ("", "publ.", "ours", "test", "watched", "epochs", "weights", "CPU s", "ms"),
        rows,
        (
            "test: on the rows of its test. watched: the best epoch on the rows looked at after each, which is "
            "how the published figures were measured.",
            "CPU s: of training with validation, all seeds together. ms: of processor time, for a step of all seeds "
            "that were still training, on average."
            if len(config.seeds) > 1
            else "CPU s: of training with validation. ms: of processor time, for a step, on average.",
        ),
    )


def _draw(drawing: Figure, config: H3SyntheticsSettings, found: Mapping[str, Mapping[str, Any]]) -> None:
    panels = drawing.subplots(1, len(config.tasks), squeeze=False)[0]
    for axes, task in zip(panels, config.tasks):
        for i, model in enumerate(config.models):
            part = found[f"{task}-{model}"]
            courses = [seed["course"] for seed in whole(part)]
            lost = " (a seed diverged)" if len(courses) < len(part["seeds"]) else ""
            longest = max(map(len, courses), default=0)
            held = [course + course[-1:] * (longest - len(course)) for course in courses]
            mean = [100 * statistics.mean(values) for values in zip(*held)]
            axes.plot(range(1, longest + 1), mean, label=NAMES[model] + lost, color=f"C{i}")
            # What one seed finds and another does not, the mean does not show.
            for course in courses if len(courses) > 1 else ():
                axes.plot(range(1, len(course) + 1), [100 * a for a in course], color=f"C{i}", linewidth=0.8, alpha=0.5)
            published = PUBLISHED[task].get(model)
            if published is not None:
                axes.axhline(published, color=f"C{i}", linewidth=0.8, linestyle=":")
        axes.set(title=task, xlabel="epoch (dotted: published)", ylabel="accuracy, %", ylim=(0, 102))
        axes.grid(alpha=0.3)
    panels[-1].legend(fontsize=8)
