"""What ``h3-language`` found: the table beside the published one, the order, the curves."""

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
from statewise.reproduce.report import Curve, Panel, Plot, Report, Table, curves, table, told
from statewise.reproduce.settings import rate_name
from statewise.reproduce.training import is_diverged

PUBLISHED_LAYERS, PUBLISHED_STEP = 12, 524_288
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
PAGE = """
# {title}

{n_bytes:,} bytes of text ({source}), of which {test_bytes:,} are the test; one BPE of {vocab_size:,} tokens for all, made
from the training split. Each run: {n_tokens:,} tokens in {n_steps:,} steps of {batch_size} windows of {length}, AdamW,
cosine to a tenth, weight decay {weight_decay:g}, no dropout, float32.

[one_rate] The learning rate is {one_rate}.

[tuned] The learning rate of each model is the best on the validation split of {tuned}, with seed {first}{tuning}.

All models are tested in windows of {length} tokens, each half over the one before, from rest. Width {d_model}, {n_layers}
layers, pre-norm LayerNorm, MLPs with tanh GELU and tied head, if nothing else is said; {positions}.

- Published: models of about 125 million parameters on OpenWebText, GPT-2's vocabulary. Here they have {millions:.2g}
  million and the text is {source}, so that perplexities cannot be compared with the published ones, only their order
  and their ratios.
- Published: one figure for each model and no spread. Here each model has {rates} and {n_seeds}.
- [hybrids] Two layers of a hybrid are attention, here 2 of {n_layers} and not of 12: it is a {part}
  part of the model.
- [ssm] The published models have the same width and MLPs four times as wide, and differ in their size. Here the
  width of the MLP makes up for what the mixer has{weigh}.
- [scale] The projections of H3 and of attention, where there are any, and of the MLPs begin with a standard deviation
  of {std:.3g}{alike}; published: 0.02 at 768.
- [gss] The settings of GSS in the published table are not known in full: it has the sizes of its paper but {d_state}
  states, and an MLP as the others do, though its gate is one already.
- [s4d] The settings of S4D in the published table are not known in full: it is S4D-Lin with a gated output.
- [bare] Not in the published table: {bare}, here with RMSNorm and no MLP, as published elsewhere, and with more
  layers for it.
- [small_steps] A step here reads {step_tokens:,} tokens; one of the published recipe for the Pile 524,288
  (256 windows of 2,048). Where tokens are few, many small steps learn more than few large ones.
- {read}. Of each run the last checkpoint is tested.
"""


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
        PAGE,
        _words(config, found),
        tables=[_results(found), _rates(config, found), _order(config, ours, order, counts)],
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
    std, d_model, is_scaled = config.sizes.weight_std, config.d_model, config.weight_std is None
    weigh = f": at a width of {d_model} the {config.d_state} states of a channel weigh more than at {PUBLISHED_WIDTH}"
    read = f"The training text is read {epochs:.1f} times"
    return {
        **vars(config),
        **dict.fromkeys(kinds, True),
        "title": f"H3 as a language model{beside}" if "h3" in config.models else "Language models as in H3's paper",
        "n_bytes": found.text["n_bytes"],
        "test_bytes": found.text["splits"]["test"]["bytes"],
        "n_tokens": config.steps() * step_tokens,
        "n_steps": config.steps(),
        "one_rate": rate_name(rates[0]) if len(rates) == 1 else "",
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


def _results(found: Found) -> Table:
    rows = []
    for name, model in found.models.items():
        runs = [*model["seeds"].values()]
        seeds = each(runs, "perplexity")
        means = {
            what: mean(each(runs, what), None) for what in ("bits_per_byte", "tokens", "seconds", "tokens_per_second")
        }
        row = {"name": LABELS[name], "published": PUBLISHED.get(name), "ours": mean(seeds), "seeds": seeds, **means}
        row["spread"] = statistics.stdev(seeds) if len(runs) > 1 and _is_whole(model) else None
        rows.append({**model, **row, "rate": _rate(model)})
    return table(
        "Perplexity beside the published one",
        " | published | ours | s.d. | each seed | bits/byte | rate | parameters | sizes | tokens | s | tokens/s",
        "{name} | {published:.1f} | {ours:.2f} | {spread:.2f} | {seeds:.2f} | {bits_per_byte:.4f} | {rate} | "
        "{parameters:,} | {sizes} | {tokens:,.0f} | {seconds:,.0f} | {tokens_per_second:,.0f}",
        rows,
        ["Perplexity of a token on the test split. Seconds and tokens/s are of training."],
    )


def _rate(model: Mapping[str, Any]) -> str | None:
    """That was chosen; None where the model diverged at all."""
    return None if model["learning_rate"] is None else rate_name(model["learning_rate"])


def _rates(config: H3LanguageSettings, found: Found) -> Table:
    rates = config.learning_rates
    models = [{**model, "name": LABELS[name], "chosen": _rate(model)} for name, model in found.models.items()]
    for model in models:
        model["tried"] = [LOST if is_diverged(r) else math.exp(r["validation_loss"]) for r in model["tuning"].values()]
    ends = (min(rates), max(rates)) if len(rates) > 1 else ()
    at_an_end = ", ".join(f"{model['name']} ({model['chosen']})" for model in models if model["learning_rate"] in ends)
    return table(
        "Perplexity on the validation split, by learning rate",
        " | ".join(("", *map(rate_name, rates), "chosen")),
        " | ".join(("{name}", *(f"{{tried[{i}]:.2f}}" for i in range(len(rates))), "{chosen}")),
        models,
        [f"At an end of the list, so that a better one may lie beyond: {at_an_end}."] if at_an_end else [],
    )


def _order(
    config: H3LanguageSettings, ours: Mapping[str, list[float]], order: list[dict[str, Any]], counts: Mapping[str, int]
) -> Table:
    title, rule = "unknown, of one seed", "With one seed the spread is unknown: the differences are no verdicts."
    if (n := len(config.seeds)) > 1:
        title = (
            f"{counts[AS_PUBLISHED]} of {len(order)} as published, {counts[EQUAL]} equal, {counts[REVERSED]} reversed"
        )
        rule = (
            "Two are called equal where their means differ by less than the seeds explain: t s sqrt(2 / n), s being the "
            f"pooled standard deviation of their n = {n} seeds and t Student's 95 % point."
        )
    published = " < ".join(f"{LABELS[name]} {value}" for name, value in PUBLISHED.items())
    return table(
        f"The order of each two: {title}",
        "better, as published | worse | ours: worse - better | equal below | verdict",
        "{better} | {worse} | {difference:+.2f} | {margin:.2f} | {verdict}",
        [{**pair, "better": LABELS[pair["better"]], "worse": LABELS[pair["worse"]]} for pair in order],
        [*([f"Ours: {chain(ours, LABELS)}."] if ours else []), f"Published: {published}.", rule],
    )


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
