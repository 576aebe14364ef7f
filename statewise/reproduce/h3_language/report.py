"""What ``h3-language`` found: the table beside the published one, the order, the curves."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from statewise.mixers.projection import PUBLISHED_WIDTH, WEIGHT_STD
from statewise.reproduce.h3_language.models import LABELS, PUBLISHED, WITHOUT_MLP
from statewise.reproduce.h3_language.order import AS_PUBLISHED, EQUAL, REVERSED, chain, compare_order
from statewise.reproduce.report import Curve, Panel, Plot, Report, Table, curves, findings, table
from statewise.reproduce.settings import rate_name
from statewise.reproduce.training import Trial, each_told, is_diverged

if TYPE_CHECKING:
    from statewise.reproduce.h3_language.claim import H3LanguageSettings

PUBLISHED_LAYERS, PUBLISHED_STEP = 12, 524_288
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
DIFFERENCES = f"""
- Published: models of about 125 million parameters on OpenWebText, GPT-2's vocabulary. Here they have {{millions:.2g}}
  million and the text is {{source}}, so that perplexities cannot be compared with the published ones, only their order
  and their ratios.
- Published: one figure for each model and no spread. Here each model has {{rates}} and {{n_seeds}}.
- [hybrids] Two layers of a hybrid are attention, here 2 of {{n_layers}} and not of {PUBLISHED_LAYERS}: it is a {{part}}
  part of the model.
- [ssm] The published models have the same width and MLPs four times as wide, and differ in their size. Here the
  width of the MLP makes up for what the mixer has{{weigh}}.
- [scale] The projections of H3 and of attention, where there are any, and of the MLPs begin with a standard deviation
  of {{std:.3g}}{{alike}}; published: {WEIGHT_STD} at {PUBLISHED_WIDTH}.
- [gss] The settings of GSS in the published table are not known in full: it has the sizes of its paper but {{d_state}}
  states, and an MLP as the others do, though its gate is one already.
- [s4d] The settings of S4D in the published table are not known in full: it is S4D-Lin with a gated output.
- [bare] Not in the published table: {{bare}}, here with RMSNorm and no MLP, as published elsewhere, and with more
  layers for it.
- [small_steps] A step here reads {{step_tokens:,}} tokens; one of the published recipe for the Pile {PUBLISHED_STEP:,}
  (256 windows of 2,048). Where tokens are few, many small steps learn more than few large ones.
- {{read}}. Of each run the last checkpoint is tested.
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
    ours, several = found.perplexities(), len(config.seeds) > 1
    pairs = compare_order(PUBLISHED, ours)
    counts = Counter(pair.verdict for pair in pairs)
    verdicts = (
        f"{counts[AS_PUBLISHED]} of {len(pairs)} as published, {counts[EQUAL]} equal, {counts[REVERSED]} reversed"
    )
    rule = "With one seed the spread is unknown: the differences are no verdicts."
    if several:
        rule = (
            "Two are called equal where their means differ by less than the seeds explain: t s sqrt(2 / n), s being "
            f"the pooled standard deviation of their n = {len(config.seeds)} seeds and t Student's 95 % point."
        )
    notes = [f"Ours: {chain(ours, LABELS)}."] if ours else []
    notes.append(f"Published: {' < '.join(f'{LABELS[name]} {value}' for name, value in PUBLISHED.items())}.")
    columns = [
        ("better, as published", lambda p: LABELS[p.better]),
        ("worse", lambda p: LABELS[p.worse]),
        ("ours: worse - better", lambda p: f"{p.difference:+.2f}"),
        ("equal below", lambda p: "-" if p.margin is None else f"{p.margin:.2f}"),
        ("verdict", lambda p: p.verdict),
    ]
    order: Table = table(
        f"The order of each two: {verdicts if several else 'unknown, of one seed'}", columns, pairs, [*notes, rule]
    )
    n_others = len(config.models) - 1
    beside = f", beside {NUMBERS[n_others]} other{'s' if n_others > 1 else ''}" if n_others else ""
    return Report(
        title=f"H3 as a language model{beside}" if "h3" in config.models else "Language models as in H3's paper",
        setting=_setting(config, found.text),
        tables=[_results(found), _rates(config, found), order],
        differences=_differences(config, found),
        figures={
            "text": found.text,
            "published": PUBLISHED,
            "models": found.models,
            "perplexities": ours,
            "order": [{**pair._asdict(), "verdict": pair.verdict} for pair in pairs],
            "as_published": counts[AS_PUBLISHED],
            "equal": counts[EQUAL],
            "reversed": counts[REVERSED],
        },
        plots=_plots(config, found, ours),
    )


def _differences(config: H3LanguageSettings, found: Found) -> list[str]:
    """What is not as published, of the models that were trained."""
    kinds = {name.removesuffix("-hybrid") for name in config.models}
    bare = [LABELS[name] for name in WITHOUT_MLP if name in kinds]
    step_tokens, several = config.batch_size * config.length, len(config.seeds) > 1
    epochs = config.steps() * step_tokens / found.text["splits"]["train"]["tokens"]
    std, d_model, is_scaled = config.sizes.weight_std, config.d_model, config.weight_std is None
    weigh = f": at a width of {d_model} the {config.d_state} states of a channel weigh more than at {PUBLISHED_WIDTH}"
    read = f"The training text is read {epochs:.1f} times"
    return findings(
        DIFFERENCES,
        millions=statistics.fmean(model["parameters"] for model in found.models.values()) / 1e6,
        source=config.source,
        rates="its own learning rate, the best of one list," if len(config.learning_rates) > 1 else "the same rate",
        n_seeds=f"{len(config.seeds)} seed{'s' if several else ''}",
        hybrids=any("-hybrid" in name for name in config.models) and config.n_layers != PUBLISHED_LAYERS,
        n_layers=config.n_layers,
        part="larger" if config.n_layers < PUBLISHED_LAYERS else "smaller",
        ssm=kinds & {"h3", "gss", "s4d"},
        weigh=weigh if d_model < PUBLISHED_WIDTH else "",
        scale=not kinds <= set(WITHOUT_MLP) and std != WEIGHT_STD,
        std=std,
        alike=f", by which their outputs vary as much at a width of {d_model}" if is_scaled else "",
        d_state=config.d_state,
        bare=" and ".join(bare),
        small_steps=step_tokens < PUBLISHED_STEP,
        step_tokens=step_tokens,
        read=read if epochs >= 1 else f"{epochs:.2%} of the text is trained on",
        **dict.fromkeys(kinds, True),
    )


def _setting(config: H3LanguageSettings, text: Mapping[str, Any]) -> str:
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
        f"{text['n_bytes']:,} bytes of text ({config.source}), of which {text['splits']['test']['bytes']:,} are the "
        f"test; one BPE of {config.vocab_size:,} tokens for all, made from the training split. Each run: "
        f"{config.steps() * config.batch_size * config.length:,} tokens in {config.steps():,} steps of "
        f"{config.batch_size} windows of {config.length}, AdamW, cosine to a tenth, weight decay "
        f"{config.weight_decay:g}, no dropout, float32. {rates} All models are tested in windows of "
        f"{config.length} tokens, each half over the one before, from rest. Width "
        f"{config.d_model}, {config.n_layers} layers, pre-norm LayerNorm, MLPs with tanh GELU and tied head, if "
        f"nothing else is said; {positions}."
    )


def _results(found: Found) -> Table:
    def runs(name: str) -> list[Trial]:
        return [*found.models[name]["seeds"].values()]

    def mean(what: str, form: str) -> Any:
        def text(name: str) -> str:
            whole = _is_whole(found.models[name])
            return format(statistics.fmean(run[what] for run in runs(name)), form) if whole else "-"

        return text

    def ours(name: str) -> str:
        return mean("perplexity", ".2f")(name) if _is_whole(found.models[name]) else "diverged"

    def spread(name: str) -> str:
        known = _is_whole(found.models[name]) and len(runs(name)) > 1
        return f"{statistics.stdev(run['perplexity'] for run in runs(name)):.2f}" if known else "-"

    columns = [
        ("", LABELS.__getitem__),
        ("published", lambda name: f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else "-"),
        ("ours", ours),
        ("s.d.", spread),
        ("each seed", lambda name: each_told(runs(name), lambda r: f"{r['perplexity']:.2f}", "diverged") or "-"),
        ("bits/byte", mean("bits_per_byte", ".4f")),
        ("rate", lambda name: _rate(found.models[name])),
        ("parameters", lambda name: f"{found.models[name]['parameters']:,}"),
        ("sizes", lambda name: found.models[name]["sizes"]),
        ("tokens", mean("tokens", ",.0f")),
        ("s", mean("seconds", ",.0f")),
        ("tokens/s", mean("tokens_per_second", ",.0f")),
    ]
    note = "Perplexity of a token on the test split. Seconds and tokens/s are of training."
    return table("Perplexity beside the published one", columns, found.models, [note])


def _rate(model: Mapping[str, Any]) -> str:
    """That was chosen; "-" where the model diverged at all."""
    return "-" if model["learning_rate"] is None else rate_name(model["learning_rate"])


def _rates(config: H3LanguageSettings, found: Found) -> Table:
    rows, at_an_end = [], []
    for name, model in found.models.items():
        cells = [
            "diverged" if is_diverged(r) else f"{math.exp(r['validation_loss']):.2f}" for r in model["tuning"].values()
        ]
        rows.append((LABELS[name], *cells, _rate(model)))
        ends = (min(config.learning_rates), max(config.learning_rates))
        if len(config.learning_rates) > 1 and model["learning_rate"] in ends:
            at_an_end.append(f"{LABELS[name]} ({_rate(model)})")
    note = f"At an end of the list, so that a better one may lie beyond: {', '.join(at_an_end)}."
    columns = ("", *(rate_name(lr) for lr in config.learning_rates), "chosen")
    return Table("Perplexity on the validation split, by learning rate", columns, rows, (note,) if at_an_end else ())


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
        panels.append(Panel(curves=dots, x="perplexity of a token, test", legend=not panels and not base))
    if base is not None:
        known = [(row, name) for row, name in enumerate(ranked) if name in PUBLISHED]
        ratios = [PUBLISHED[name] / PUBLISHED["transformer"] for _, name in known]
        style = {"marker": "D", "ls": "", "color": "C1", "fillstyle": "none"}
        dots = [*panels[1].curves, Curve(ratios, [row for row, _ in known], "published", style)]
        panels[1] = Panel(curves=dots, x="as a multiple of the Transformer's")
    labels = {"yticks": range(len(ranked)), "yticklabels": [LABELS[name] for name in ranked]}
    panels[0].set.update(labels)
    perplexity = Panel(curves=courses, log="y", x="tokens", y="perplexity, validation")
    return [
        curves("h3-language-curves", f"Validation perplexity while training{mean}", perplexity),
        curves("h3-language", f"Test perplexity{each}", *panels, width=9.5, height=4.2, sharey=True),
    ]
