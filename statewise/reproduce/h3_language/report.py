"""What ``h3-language`` found: the table beside the published one, the order, the curves."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from statewise.mixers.projection import PUBLISHED_WIDTH, WEIGHT_STD
from statewise.reproduce.h3_language.models import LABELS, PUBLISHED, WITHOUT_MLP
from statewise.reproduce.h3_language.order import AS_PUBLISHED, EQUAL, REVERSED, chain, compare_order
from statewise.reproduce.h3_language.settings import H3LanguageSettings
from statewise.reproduce.rates import rate_name
from statewise.reproduce.report import Plot, Report, drawn
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED_LAYERS, PUBLISHED_STEP = 12, 524_288
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


def make_report(config: H3LanguageSettings, text: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]) -> Report:
    ours = perplexities(models)
    pairs = compare_order(PUBLISHED, ours)
    counts = Counter(pair.verdict for pair in pairs)
    notes = [f"Ours: {chain(ours, LABELS)}."] if ours else []
    notes.append(f"Published: {' < '.join(f'{LABELS[name]} {value}' for name, value in PUBLISHED.items())}.")
    return Report(
        title=_title(config.models),
        setting=_setting(config, text),
        tables=[
            _results(models),
            _rates(config, models),
            Table(
                "The order of each two: "
                + (
                    f"{counts[AS_PUBLISHED]} of {len(pairs)} as published, {counts[EQUAL]} equal, "
                    f"{counts[REVERSED]} reversed"
                    if len(config.seeds) > 1
                    else "unknown, of one seed"
                ),
                ("better, as published", "worse", "ours: worse - better", "equal below", "verdict"),
                [
                    (
                        LABELS[p.better],
                        LABELS[p.worse],
                        f"{p.difference:+.2f}",
                        "-" if p.margin is None else f"{p.margin:.2f}",
                        p.verdict,
                    )
                    for p in pairs
                ],
                (*notes, _rule(config)),
            ),
        ],
        differences=_differences(config, text, models),
        figures={
            "text": text,
            "published": PUBLISHED,
            "models": models,
            "perplexities": ours,
            "order": [{**pair._asdict(), "verdict": pair.verdict} for pair in pairs],
            "as_published": counts[AS_PUBLISHED],
            "equal": counts[EQUAL],
            "reversed": counts[REVERSED],
        },
        plots=_plots(config, models, ours),
    )


def _title(models: Sequence[str]) -> str:
    """
    >>> _title(("h3", "transformer"))
    'H3 as a language model, beside one other'
    """
    if "h3" not in models:
        return "Language models as in H3's paper"
    n_others = len(models) - 1
    beside = f", beside {NUMBERS[n_others]} other{'s' if n_others > 1 else ''}" if n_others else ""
    return f"H3 as a language model{beside}"


def _differences(
    config: H3LanguageSettings, text: Mapping[str, Any], models: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """What is not as published, of the models that were trained."""
    counts = [model["parameters"] for model in models.values()]
    n_seeds, d_model, n_layers, d_state = len(config.seeds), config.d_model, config.n_layers, config.d_state
    rates = "its own learning rate, the best of one list," if len(config.learning_rates) > 1 else "the same rate"
    found = [
        "Published (arXiv:2212.14052): models of about 125 million parameters on OpenWebText, GPT-2's vocabulary. Here "
        f"they have {statistics.fmean(counts) / 1e6:.2g} million and the text is {config.source}, so that perplexities "
        "cannot be compared with the published ones, only their order and their ratios.",
        "Published: one figure for each model and no spread. Here each model has "
        f"{rates} and {n_seeds} seed{'s' if n_seeds > 1 else ''}.",
    ]
    there = {name.removesuffix("-hybrid") for name in config.models}
    if any(name.endswith("-hybrid") for name in config.models) and n_layers != PUBLISHED_LAYERS:
        part = "larger" if n_layers < PUBLISHED_LAYERS else "smaller"
        found.append(
            f"Two layers of a hybrid are attention, here 2 of {n_layers} and not of {PUBLISHED_LAYERS}: it is a {part} "
            "part of the model."
        )
    if there & {"h3", "gss", "s4d"}:
        weigh = ""
        if d_model < PUBLISHED_WIDTH:
            weigh = f": at a width of {d_model} the {d_state} states of a channel weigh more than at {PUBLISHED_WIDTH}"
        found.append(
            "The published models have the same width and MLPs four times as wide, and differ in their size. Here the "
            f"width of the MLP makes up for what the mixer has{weigh}."
        )
    std = config.sizes.weight_std
    if not there <= set(WITHOUT_MLP) and std != WEIGHT_STD:
        alike = f", by which their outputs vary as much at a width of {d_model}" if config.weight_std is None else ""
        found.append(
            "The projections of H3 and of attention, where there are any, and of the MLPs begin with a standard "
            f"deviation of {std:.3g}{alike}; published: {WEIGHT_STD} at {PUBLISHED_WIDTH}."
        )
    if "gss" in there:
        found.append(
            "The settings of GSS in the published table are not known in full: it has the sizes of its paper but "
            f"{d_state} states, and an MLP as the others do, though its gate is one already."
        )
    if "s4d" in there:
        found.append(
            "The settings of S4D in the published table are not known in full: it is S4D-Lin with a gated output."
        )
    bare = [LABELS[name] for name in WITHOUT_MLP if name in there]
    if bare:
        found.append(
            f"Not in the published table: {' and '.join(bare)}, here with RMSNorm and no MLP, as published elsewhere, "
            "and with more layers for it."
        )
    step_tokens = config.batch_size * config.length
    if step_tokens < PUBLISHED_STEP:
        found.append(
            f"A step here reads {step_tokens:,} tokens; one of the published recipe for the Pile {PUBLISHED_STEP:,} "
            "(256 windows of 2,048). Where tokens are few, many small steps learn more than few large ones."
        )
    epochs = config.steps() * step_tokens / text["splits"]["train"]["tokens"]
    read = f"The training text is read {epochs:.1f} times" if epochs >= 1 else f"{epochs:.2%} of the text is trained on"
    return [*found, f"{read}. Of each run the last checkpoint is tested."]


def perplexities(models: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """On the test split, of every seed; without the models of which a seed diverged, or that had no rate to be trained
    at.
    """
    return {
        name: [run["perplexity"] for run in model["seeds"].values()]
        for name, model in models.items()
        if _is_whole(model)
    }


def _is_whole(model: Mapping[str, Any]) -> bool:
    return bool(model["seeds"]) and all(run["diverged"] is None for run in model["seeds"].values())


def _setting(config: H3LanguageSettings, text: Mapping[str, Any]) -> str:
    splits = text["splits"]
    tuning = "" if config.tuning_share == 1 else f" on {config.tuning_share:.0%} of the tokens"
    rates = f"The learning rate is {config.learning_rates[0]:g}."
    if len(config.learning_rates) > 1:
        listed = ", ".join(rate_name(lr) for lr in config.learning_rates)
        rates = (
            f"The learning rate of each model is the best on the validation split of {listed}, with seed "
            f"{config.seeds[0]}{tuning}."
        )
    places = {"transformer": "learned", "transformer-rotary": "rotary"}
    there = [f"{LABELS[name]} ({kind})" for name, kind in places.items() if name in config.models]
    positions = f"positions in {' and '.join(there)} alone" if there else "no positions"
    return (
        f"{text['n_bytes']:,} bytes of text ({config.source}), of which {splits['test']['bytes']:,} are the test; one "
        f"BPE of {config.vocab_size:,} tokens for all, made from the training split. Each run: "
        f"{config.steps() * config.batch_size * config.length:,} tokens in {config.steps():,} steps of "
        f"{config.batch_size} windows of {config.length}, AdamW, cosine to a tenth, weight decay "
        f"{config.weight_decay:g}, no dropout, float32. {rates} All models are tested in windows of "
        f"{config.length} tokens, each half over the one before, from rest. Width "
        f"{config.d_model}, {config.n_layers} layers, pre-norm LayerNorm, MLPs with tanh GELU and tied head, if "
        f"nothing else is said; {positions}."
    )


def _results(models: Mapping[str, Mapping[str, Any]]) -> Table:
    rows = []
    for name, model in models.items():
        runs = list(model["seeds"].values())
        published = f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else "-"
        shared = (_rate(model), f"{model['parameters']:,}", model["sizes"])
        if not _is_whole(model):
            rows.append((LABELS[name], published, "diverged", "-", _seeds(runs) or "-", "-", *shared, "-", "-", "-"))
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
    note = "Perplexity of a token on the test split. Seconds and tokens/s are of training."
    return Table("Perplexity beside the published one", (*columns, "s", "tokens/s"), rows, (note,))


def _rate(model: Mapping[str, Any]) -> str:
    """That was chosen; "-" where the model diverged at all."""
    return "-" if model["learning_rate"] is None else rate_name(model["learning_rate"])


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
        rows.append((LABELS[name], *cells, _rate(model)))
        if len(config.learning_rates) > 1 and model["learning_rate"] in ends:
            at_an_end.append(f"{LABELS[name]} ({_rate(model)})")
    notes = (f"At an end of the list, so that a better one may lie beyond: {', '.join(at_an_end)}.",)
    columns = ("", *(rate_name(lr) for lr in config.learning_rates), "chosen")
    return Table("Perplexity on the validation split, by learning rate", columns, rows, notes if at_an_end else ())


def _rule(config: H3LanguageSettings) -> str:
    if len(config.seeds) < 2:
        return "With one seed the spread is unknown: the differences are no verdicts."
    return (
        "Two are called equal where their means differ by less than the seeds explain: t s sqrt(2 / n), s being the "
        f"pooled standard deviation of their n = {len(config.seeds)} seeds and t Student's 95 % point."
    )


def _plots(
    config: H3LanguageSettings, models: Mapping[str, Mapping[str, Any]], ours: Mapping[str, list[float]]
) -> list[Plot]:
    curves, dots = partial(_draw_curves, config, models, ours), partial(_draw_dots, ours)
    mean, each = (", mean of the seeds", ", each seed") if len(config.seeds) > 1 else ("", "")
    return [
        drawn("h3-language-curves", f"Validation perplexity while training{mean}", curves),
        drawn("h3-language", f"Test perplexity{each}", dots, width=9.5, height=4.2),
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
