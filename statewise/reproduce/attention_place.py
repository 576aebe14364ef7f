"""How many layers of a hybrid are attention, and where: language models of one size, one place after another."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from statewise.configuration import types as t
from statewise.reproduce.claim import Claim
from statewise.reproduce.h3_language.models import build_config, describe, kind_and_places, n_parameters
from statewise.reproduce.h3_language.runs import H3LanguageSettings, make_tokenizer, train_and_test
from statewise.reproduce.outcomes import LOST
from statewise.reproduce.page import told
from statewise.reproduce.report import Curve, Panel, Report, curves
from statewise.reproduce.settings import Settings
from statewise.reproduce.training import is_diverged
from statewise.reproduce.work import Job, Work

Found = Mapping[str, Any]
EVERY = ("none", *map(str, range(8)), "1+5", "0+1", "3+4", "6+7", "0+7", "1+3+5+7", "0+1+2+3+4+5+6+7")


def _usual() -> H3LanguageSettings:
    return H3LanguageSettings(models=("h3-hybrid",), tokens=1_000_000, learning_rates=(4e-3,), seeds=(0,))


@dataclass(frozen=True, kw_only=True)
class AttentionPlaceSettings(Settings):
    """kind:  of the other layers
    places:   which layers are attention, counted from 0, as "1+5"; "none" for no attention
    seeds:    one run each at every place
    language: text, sizes and training, as ``reproduce h3-language`` has them; of its rates the first is taken, and its
              models, seeds and workers are not
    workers:  processes that train, each with its share of the cores
    """

    kind: Literal["h3", "gss", "s4d"] = "h3"
    places: t.Distinct[Annotated[str, t.NOT_EMPTY]] = EVERY
    seeds: t.Distinct[t.Seed] = (0,)
    language: H3LanguageSettings = field(default_factory=_usual)
    workers: t.Count = 2

    def check(self) -> None:
        for place in self.places:
            build_config(self.name(place), self.language.sizes)

    def name(self, place: str) -> str:
        return f"{self.kind}@{place}"


def measure(config: AttentionPlaceSettings, work: Work) -> Found:
    """The text, then every place with every seed."""
    language = config.language
    work.begin(1 + len(config.places) * len(config.seeds))
    text = work.part("text", lambda: make_tokenizer(language.source, language.vocab_size, work.folder))
    rate, folder = language.learning_rates[0], str(work.folder.absolute())
    jobs = {
        f"{place}-seed-{seed}": Job(train_and_test, (language, folder, config.name(place), rate, seed, 1.0))
        for place in config.places
        for seed in config.seeds
    }
    return {"text": text, **work.parts(jobs)}


def report(config: AttentionPlaceSettings, found: Found) -> Report:
    rows: list[dict[str, Any]] = []
    sizes = config.language.sizes
    for place in config.places:
        runs = [found[f"{place}-seed-{seed}"] for seed in config.seeds]
        lost = any(map(is_diverged, runs))
        bits = [] if lost else [run["bits_per_byte"] for run in runs]
        model = build_config(config.name(place), sizes)
        rows.append(
            {
                "place": place,
                "n": len(kind_and_places(config.name(place), sizes.n_layers)[1]),
                "bits": LOST if lost else statistics.fmean(bits),
                "spread": statistics.stdev(bits) if len(bits) > 1 else None,
                "perplexity": None if lost else statistics.fmean(run["perplexity"] for run in runs),
                "parameters": n_parameters(model),
                "sizes": describe(place, model),
                "cpu": None if lost else statistics.fmean(run["cpu_seconds"] for run in runs),
            }
        )
    whole = [row for row in rows if row["bits"] != LOST]
    best = min(whole, key=lambda row: float(row["bits"]), default=None)
    values = {**vars(config.language), **vars(config), "n_tokens": config.language.steps() * _step(config.language)}
    values |= {"best": best["place"] if best else "none of them", "rate": config.language.learning_rates[0]}
    return told("attention-place", values, rows, figures={"runs": found}, plots=[_plot(whole)])


def _step(language: H3LanguageSettings) -> int:
    return language.batch_size * language.length


def _plot(rows: list[dict[str, Any]]) -> Any:
    """Bits against the place of the one layer, and against how many there are."""
    one = [row for row in rows if row["n"] == 1]
    lines = [Curve([int(row["place"]) for row in one], [row["bits"] for row in one], "one layer", {"marker": "o"})]
    levels = [(row["bits"], {"linestyle": "--", "color": "0.5"}) for row in rows if row["n"] == 0]
    several = Curve(
        [row["n"] for row in rows], [row["bits"] for row in rows], None, {"marker": "o", "linestyle": "none"}
    )
    panels = [
        Panel(
            lines, title="one layer of attention, and none (dashed)", x="its place", y="bits per byte", levels=levels
        ),
        Panel([several], title="at each place", x="layers of attention", y="bits per byte"),
    ]
    return curves("attention-place", "Bits per byte by number and place", *panels, width=8.5, height=3.8)


CLAIM = Claim(
    summary="the number and the place of a hybrid's attention layers: bits per byte of small language models",
    duration="an hour on 2 cores",
    settings=AttentionPlaceSettings,
    quick='workers=1 places=["none","1","0+2"] language.vocab_size=512 language.d_model=32 '
    "language.n_layers=4 language.n_heads=2 language.d_state=8 language.tolerance=0.1 language.tokens=8192 "
    "language.length=64 language.batch_size=8 language.evaluations=2 language.evaluate_tokens=2048 "
    "language.test_tokens=4096",
    measure=measure,
    report=report,
)
