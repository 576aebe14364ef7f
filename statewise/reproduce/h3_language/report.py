"""What ``h3-language`` found: the table beside the published one, the order, the curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.reproduce.h3_language.models import LABELS, PUBLISHED
from statewise.reproduce.h3_language.order import AS_PUBLISHED, EQUAL, REVERSED, chain, compare_order
from statewise.reproduce.h3_language.settings import H3LanguageSettings
from statewise.reproduce.report import Plot, Report, drawn
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIFFERENCES = (
    "Published (arXiv:2212.14052): models of about 125 million parameters on OpenWebText, GPT-2's vocabulary. Here "
    "everything is a hundred times smaller and the text is another, so that perplexities cannot be compared with the "
    "published ones, only their order and their ratios.",
    "Published: one figure for each model and no spread. Here each model has its own learning rate, the best of one "
    "list, and {n_seeds} seeds.",
    "Two layers of a hybrid are attention, here 2 of {n_layers} and not of 12: it is a larger part of the model.",
    "The published models have the same width and MLPs four times as wide, and differ in their size. Here the width of "
    "the MLP makes up for what the mixer has: at a width of {d_model} the {d_state} states of a channel weigh more "
    "than at 768, and the MLPs of H3 and GSS are narrower for it. GSS has an MLP as the others do, though its gate is "
    "one already.",
    "The settings of GSS and S4D in the published table are not known in full. S4D is S4D-Lin with a gated output, GSS "
    "has the sizes of its paper but {d_state} states.",
    "Mamba and Mamba-2 are not in the published table. They come as their papers have them: RMSNorm, no MLP and about "
    "twice the layers.",
    "A step here reads {step_tokens:,} tokens; one of the published recipe for the Pile 524,288 (256 windows of "
    "2,048). With so few tokens in all, many small steps learn more than few large ones.",
    "The training text is read {epochs:.1f} times. Of each run the last checkpoint is tested.",
)


def make_report(config: H3LanguageSettings, text: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> Report:
    ours = perplexities(models)
    pairs = compare_order(PUBLISHED, ours)
    epochs = config.steps() * config.batch_size * config.length / text["splits"]["train"]["tokens"]
    sizes = {name: getattr(config, name) for name in ("n_layers", "d_model", "d_state")}
    sizes |= {"epochs": epochs, "step_tokens": config.batch_size * config.length, "n_seeds": len(config.seeds)}
    n_equal = sum(pair.verdict == EQUAL for pair in pairs)
    n_reversed = sum(pair.verdict == REVERSED for pair in pairs)
    notes = [f"Ours: {chain(ours, LABELS)}."] if ours else []
    notes.append(f"Published: {' < '.join(f'{LABELS[name]} {value}' for name, value in PUBLISHED.items())}.")
    return Report(
        title="H3 as a language model, beside seven others",
        setting=_setting(config, text),
        tables=[
            _results(models),
            _rates(config, models),
            Table(
                f"The order of each two: {len(pairs) - n_equal - n_reversed} of {len(pairs)} as published, "
                f"{n_equal} equal, {n_reversed} reversed",
                ("better, as published", "worse", "ours: worse - better", "equal below", "verdict"),
                [
                    (LABELS[p.better], LABELS[p.worse], f"{p.difference:+.2f}", f"{p.margin:.2f}", p.verdict)
                    for p in pairs
                ],
                (*notes, _rule(config)),
            ),
        ],
        differences=[text.format(**sizes) for text in DIFFERENCES],
        figures={
            "text": text,
            "published": PUBLISHED,
            "models": models,
            "perplexities": ours,
            "order": [{**pair._asdict(), "verdict": pair.verdict} for pair in pairs],
            "as_published": sum(pair.verdict == AS_PUBLISHED for pair in pairs),
            "equal": n_equal,
            "reversed": n_reversed,
        },
        plots=_plots(config, models, ours),
    )


def perplexities(models: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """On the test split, of every seed; without the models of which a seed diverged."""
    return {
        name: [run["perplexity"] for run in model["seeds"].values()]
        for name, model in models.items()
        if all(run["diverged"] is None for run in model["seeds"].values())
    }


def _setting(config: H3LanguageSettings, text: Mapping[str, Any]) -> str:
    splits = text["splits"]
    tuning = "" if config.tuning_share == 1 else f" on {config.tuning_share:.0%} of the tokens"
    return (
        f"{text['n_bytes']:,} bytes of text ({config.source}), of which {splits['test']['bytes']:,} are the test; one "
        f"BPE of {config.vocab_size:,} tokens for all, made from the training split. Each run: "
        f"{config.steps() * config.batch_size * config.length:,} tokens in {config.steps():,} steps of "
        f"{config.batch_size} windows of {config.length}, AdamW, cosine to a tenth, weight decay "
        f"{config.weight_decay:g}, no dropout, float32. The learning rate of each model is the best on the validation "
        f"split of {', '.join(f'{lr:g}' for lr in config.learning_rates)}, with seed {config.seeds[0]}{tuning}. All "
        f"models are tested in windows of {config.length} tokens, each half over the one before, from rest. Width "
        f"{config.d_model}, {config.n_layers} layers, pre-norm LayerNorm, MLPs with tanh GELU, tied head, positions in "
        "the Transformer alone (learned, if nothing else is said)."
    )


def _results(models: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for name, model in models.items():
        runs = list(model["seeds"].values())
        published = f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else "-"
        shared = (f"{model['learning_rate']:g}", f"{model['parameters']:,}", model["sizes"])
        if any(run["diverged"] is not None for run in runs):
            rows.append((LABELS[name], published, "diverged", "-", _seeds(runs), "-", *shared, "-", "-", "-"))
            continue
        found, bits = ([run[what] for run in runs] for what in ("perplexity", "bits_per_byte"))
        spread = f"{statistics.stdev(found):.2f}" if len(found) > 1 else "-"
        seconds, speed = (statistics.fmean(run[what] for run in runs) for what in ("seconds", "tokens_per_second"))
        rows.append(
            (
                LABELS[name],
                published,
                f"{statistics.fmean(found):.2f}",
                spread,
                _seeds(runs),
                f"{statistics.fmean(bits):.4f}",
                *shared,
                f"{runs[0]['tokens']:,}",
                f"{seconds:,.0f}",
                f"{speed:,.0f}",
            )
        )
    columns = ("", "published", "ours", "s.d.", "each seed", "bits/byte", "rate", "parameters", "sizes", "tokens")
    note = "Perplexity of a token on the test split. Seconds and tokens/s are of training, in the process of a worker."
    return Table("Perplexity beside the published one", (*columns, "s", "tokens/s"), rows, (note,))


def _seeds(runs: list[Mapping[str, Any]]) -> str:
    return " ".join("diverged" if run["diverged"] is not None else f"{run['perplexity']:.2f}" for run in runs)


def _rates(config: H3LanguageSettings, models: Mapping[str, Mapping[str, Any]]) -> Table:
    rows, at_an_end = [], []
    ends = (min(config.learning_rates), max(config.learning_rates))
    for name, model in models.items():
        cells = [
            "diverged" if run["diverged"] is not None else f"{math.exp(run['validation_loss']):.2f}"
            for run in model["tuning"].values()
        ]
        rows.append((LABELS[name], *cells, f"{model['learning_rate']:g}"))
        if len(config.learning_rates) > 1 and model["learning_rate"] in ends:
            at_an_end.append(f"{LABELS[name]} ({model['learning_rate']:g})")
    notes = (f"At an end of the list, so that a better one may lie beyond: {', '.join(at_an_end)}.",)
    columns = ("", *(f"{lr:g}" for lr in config.learning_rates), "chosen")
    return Table("Perplexity on the validation split, by learning rate", columns, rows, notes if at_an_end else ())


def _rule(config: H3LanguageSettings) -> str:
    if len(config.seeds) < 2:
        return "With one seed the spread is not known, and no two are called equal."
    return (
        "Two are called equal where their means differ by less than the seeds explain: t s sqrt(2 / n), s being the "
        f"pooled standard deviation of their n = {len(config.seeds)} seeds and t Student's 95 % point."
    )


def _plots(
    config: H3LanguageSettings, models: Mapping[str, Mapping[str, Any]], ours: Mapping[str, list[float]]
) -> list[Plot]:
    curves, dots = partial(_draw_curves, config, models, ours), partial(_draw_dots, ours)
    return [
        drawn("h3-language-curves", "Validation perplexity while training, mean of the seeds", curves),
        drawn("h3-language", "Test perplexity, each seed", dots, width=9.5, height=4.2),
    ]


def _draw_curves(
    config: H3LanguageSettings,
    models: Mapping[str, Mapping[str, Any]],
    ours: Mapping[str, list[float]],
    drawing: Figure,
) -> None:
    axes = drawing.subplots()
    for name in ours:
        curves = [run["curve"] for run in models[name]["seeds"].values()]
        tokens = [step * config.batch_size * config.length for step, _ in curves[0]]
        losses = [statistics.fmean(loss for _, loss in looks) for looks in zip(*curves)]
        axes.plot(tokens, [math.exp(loss) for loss in losses], marker=".", label=LABELS[name])
    axes.set_yscale("log")
    axes.set_xlabel("tokens")
    axes.set_ylabel("perplexity, validation")
    axes.grid(alpha=0.3, which="both")
    axes.legend(fontsize=8)


def _draw_dots(ours: Mapping[str, list[float]], drawing: Figure) -> None:
    """Left our perplexities; right the same and the published ones as multiples of the Transformer's."""
    ranked = sorted(ours, key=lambda name: -statistics.fmean(ours[name]))
    base = ours.get("transformer")
    panels = drawing.subplots(1, 1 if base is None else 2, sharey=True, squeeze=False)[0]
    for axes, unit in zip(panels, (1.0, statistics.fmean(base) if base else 1.0)):
        for row, name in enumerate(ranked):
            values = [value / unit for value in ours[name]]
            axes.plot(values, [row] * len(values), "o", color="C0", alpha=0.6, label="" if row else "ours, each seed")
            axes.plot([statistics.fmean(values)], [row], "|", color="C0", markersize=16, label="" if row else "mean")
        axes.grid(alpha=0.3)
    panels[0].set_yticks(range(len(ranked)), [LABELS[name] for name in ranked])
    panels[0].set_xlabel("perplexity of a token, test")
    if base is not None:
        shown = [(row, name) for row, name in enumerate(ranked) if name in PUBLISHED]
        ratios = [PUBLISHED[name] / PUBLISHED["transformer"] for _, name in shown]
        panels[1].plot(ratios, [row for row, _ in shown], "D", color="C1", fillstyle="none", label="published")
        panels[1].set_xlabel("as a multiple of the Transformer's")
    panels[-1].legend(fontsize=8)
