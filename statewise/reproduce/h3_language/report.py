"""What ``h3-language`` found: the table next to the published one, the order, the curves."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from statewise.mixers.projection import PUBLISHED_WIDTH, WEIGHT_STD
from statewise.reproduce.h3_language.models import LABELS, PUBLISHED, WITHOUT_MLP
from statewise.reproduce.h3_language.order import AS_PUBLISHED, EQUAL, REVERSED, chain, compare_order
from statewise.reproduce.h3_language.runs import H3LanguageSettings
from statewise.reproduce.outcomes import LOST, each, mean
from statewise.reproduce.page import told
from statewise.reproduce.report import Curve, Panel, Plot, Report, curves
from statewise.reproduce.settings import rate_name
from statewise.reproduce.training import is_diverged

MEANS = ("bits_per_byte", "tokens", "seconds", "tokens_per_second")
PUBLISHED_LAYERS, PUBLISHED_STEP = 12, 524_288
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")


class Found(NamedTuple):
    """text: sizes of it; models: of each its rate, its parameters, and what the runs of its rates and seeds gave"""

    text: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]

    def perplexities(self) -> dict[str, list[float]]:
        """On the test split, of every seed; without the models of which a seed diverged, or that had no rate to be
        trained at.
        """
        return {
            name: [run["perplexity"] for run in model["seeds"].values()]
            for name, model in self.models.items()
            if _is_whole(model)
        }


def _is_whole(model: Mapping[str, Any]) -> bool:
    return bool(model["seeds"]) and not any(map(is_diverged, model["seeds"].values()))


def report(config: H3LanguageSettings, found: Found) -> Report:
    ours, pairs = found.perplexities(), compare_order(PUBLISHED, found.perplexities())
    counts = Counter(pair.verdict for pair in pairs)
    order = [{**pair._asdict(), "verdict": pair.verdict} for pair in pairs]
    return told(
        "h3-language",
        {**_words(config, found), **_verdicts(config, ours, counts, len(order))},
        _rows(found),
        _rows(found),
        [{**pair, "better": LABELS[pair["better"]], "worse": LABELS[pair["worse"]]} for pair in order],
        figures={
            "text": found.text,
            "published": PUBLISHED,
            "models": found.models,
            "perplexities": ours,
            "order": order,
            "as_published": counts[AS_PUBLISHED],
            "equal": counts[EQUAL],
            "reversed": counts[REVERSED],
        },
        plots=_plots(config, found, ours),
    )


def _words(config: H3LanguageSettings, found: Found) -> dict[str, Any]:
    """What the page says: of what is not as published only that of the models that were trained."""
    kinds, rates = {name.removesuffix("-hybrid") for name in config.models}, config.learning_rates
    n_others, several = len(config.models) - 1, len(config.seeds) > 1
    beside = f", beside {NUMBERS[n_others]} other{'s' if n_others > 1 else ''}" if n_others else ""
    places = {"transformer": "learned", "transformer-rotary": "rotary"}
    there = [f"{LABELS[name]} ({kind})" for name, kind in places.items() if name in config.models]
    step_tokens = config.batch_size * config.length
    epochs = config.steps() * step_tokens / found.text["splits"]["train"]["tokens"]
    ends = (min(rates), max(rates)) if len(rates) > 1 else ()
    chosen = {LABELS[name]: model["learning_rate"] for name, model in found.models.items()}
    std, d_model, is_scaled = config.sizes.weight_std, config.d_model, config.weight_std is None
    weigh = f": at a width of {d_model} the {config.d_state} states of a channel weigh more than at {PUBLISHED_WIDTH}"
    read = f"The training text is read {epochs:.1f} times"
    return {
        **vars(config),
        "kinds": kinds,
        "title": f"H3 as a language model{beside}" if "h3" in config.models else "Language models as in H3's paper",
        "n_bytes": found.text["n_bytes"],
        "test_bytes": found.text["splits"]["test"]["bytes"],
        "n_tokens": config.steps() * step_tokens,
        "n_steps": config.steps(),
        "one_rate": rate_name(rates[0]) if len(rates) == 1 else "",
        "each_rate": [*map(rate_name, rates)],
        "at_an_end": [f"{name} ({rate_name(rate)})" for name, rate in chosen.items() if rate in ends],
        "tuned": ", ".join(map(rate_name, rates)) if len(rates) > 1 else "",
        "first": config.seeds[0],
        "tuning": "" if config.tuning_share == 1 else f" on {config.tuning_share:.0%} of the tokens",
        "positions": f"positions in {' and '.join(there)} alone" if there else "no positions",
        "millions": statistics.fmean(model["parameters"] for model in found.models.values()) / 1e6,
        "rates": "its own learning rate, the best of one list," if len(rates) > 1 else "the same rate",
        "n_seeds": f"{len(config.seeds)} seed{'s' if several else ''}",
        "hybrids": any("-hybrid" in name for name in config.models) and config.n_layers != PUBLISHED_LAYERS,
        "part": "larger" if config.n_layers < PUBLISHED_LAYERS else "smaller",
        "ssm": kinds & {"h3", "gss", "s4d"},
        "weigh": weigh if d_model < PUBLISHED_WIDTH else "",
        "scale": not kinds <= set(WITHOUT_MLP) and std != WEIGHT_STD,
        "std": std,
        "alike": f", by which their outputs vary as much at a width of {d_model}" if is_scaled else "",
        "bare": " and ".join(LABELS[name] for name in WITHOUT_MLP if name in kinds),
        "small_steps": step_tokens < PUBLISHED_STEP,
        "step_tokens": step_tokens,
        "read": read if epochs >= 1 else f"{epochs:.2%} of the text is trained on",
    }


def _rows(found: Found) -> list[dict[str, Any]]:
    """A row of each model, for the tables of perplexities."""
    rows = []
    for name, model in found.models.items():
        runs, rate = [*model["seeds"].values()], model["learning_rate"]
        seeds = each(runs, "perplexity")
        row = {"name": LABELS[name], "published": PUBLISHED.get(name), "ours": mean(seeds), "seeds": seeds}
        row |= {
            what: mean(each(runs, what), None) for what in ("bits_per_byte", "tokens", "seconds", "tokens_per_second")
        }
        row["spread"] = statistics.stdev(seeds) if len(runs) > 1 and _is_whole(model) else None
        row["tried"] = [LOST if is_diverged(r) else math.exp(r["validation_loss"]) for r in model["tuning"].values()]
        rows.append({**model, **row, "rate": None if rate is None else rate_name(rate)})
    return rows


def _verdicts(
    config: H3LanguageSettings, ours: Mapping[str, list[float]], counts: Mapping[str, int], n_pairs: int
) -> dict[str, Any]:
    """What the report says about the order."""
    several = len(config.seeds) if len(config.seeds) > 1 else 0
    verdicts = f"{counts[AS_PUBLISHED]} of {n_pairs} as published, {counts[EQUAL]} equal, {counts[REVERSED]} reversed"
    return {
        "verdicts": verdicts if several else "unknown, of one seed",
        "chain": chain(ours, LABELS),
        "published": " < ".join(f"{LABELS[name]} {value}" for name, value in PUBLISHED.items()),
        "several": several,
    }


def _plots(config: H3LanguageSettings, found: Found, ours: Mapping[str, list[float]]) -> list[Plot]:
    """The curves; and our perplexities, beside them these and the published ones as multiples of the Transformer's."""
    mean, each = (", mean of the seeds", ", each seed") if len(config.seeds) > 1 else ("", "")
    courses = []
    for name in ours:
        runs = [run["curve"] for run in found.models[name]["seeds"].values()]
        tokens = [step * config.batch_size * config.length for step, _ in runs[0]]
        losses = [math.exp(statistics.fmean(loss for _, loss in looks)) for looks in zip(*runs)]
        courses.append(Curve(tokens, losses, LABELS[name], {"marker": "."}))
    ranked = sorted(ours, key=lambda name: -statistics.fmean(ours[name]))
    base, panels = ours.get("transformer"), list[Panel]()
    for unit in (1.0, *([statistics.fmean(base)] if base else [])):
        dots = []
        for row, name in enumerate(ranked):
            values = [value / unit for value in ours[name]]
            dots.append(Curve(values, [row] * len(values), "ours, each seed", {"marker": "o", "ls": "", "color": "C0"}))
            dots.append(Curve([statistics.fmean(values)], [row], "mean", {"marker": "|", "ms": 16, "color": "C0"}))
        panels.append(Panel(dots, x="perplexity of a token, test", legend=not panels and not base))
    if base is not None:
        known = [(row, name) for row, name in enumerate(ranked) if name in PUBLISHED]
        ratios = [PUBLISHED[name] / PUBLISHED["transformer"] for _, name in known]
        style = {"marker": "D", "ls": "", "color": "C1", "fillstyle": "none"}
        dots = [*panels[1].curves, Curve(ratios, [row for row, _ in known], "published", style)]
        panels[1] = Panel(dots, x="as a multiple of the Transformer's")
    labels = {"yticks": range(len(ranked)), "yticklabels": [LABELS[name] for name in ranked]}
    panels[0].set.update(labels)
    perplexity = Panel(courses, log="y", x="tokens", y="perplexity, validation")
    return [
        curves("h3-language-curves", f"Validation perplexity while training{mean}", perplexity),
        curves("h3-language", f"Test perplexity{each}", *panels, width=9.5, height=4.2, sharey=True),
    ]
