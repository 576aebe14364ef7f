"""Induction heads: trained at 256 tokens, asked at up to a million, the state carried through them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import torch

from statewise.configuration.types import Count, Distinct, NonEmpty, OneOf, Ratio
from statewise.data.synthetic_languages import LongInductionHeadConfig, SyntheticLanguageConfig, open_synthetic_language
from statewise.errors import InputError
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.models.block import BlockConfig
from statewise.models.evaluation_mode import evaluation_mode
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.reproduce.claim import Claim
from statewise.reproduce.outcomes import LOST, label, row_of
from statewise.reproduce.page import told
from statewise.reproduce.report import Bar, Curve, Panel, Report, curves
from statewise.reproduce.synthetic import SyntheticSettings
from statewise.reproduce.training import Trial, load_checkpoint, trained, whole
from statewise.reproduce.work import Job, Work
from statewise.training import read_run
from statewise.training.config import RunConfig, ScheduleConfig
from statewise.training.report import Reporter

# Gu and Dao 2023 (Mamba), arXiv:2312.00752, table 11: accuracy in % at 2^6, 2^7, ... tokens, trained at 2^8
PUBLISHED_LENGTH = 256
PUBLISHED = {
    "mamba": (100.0,) * 15,
    "h3": (100.0, 100.0, 100.0, 80.9, 39.5, 23.8, 14.8, 8.2, 5.9, 6.6, 8.2, 4.7, 8.2, 6.3, 7.4),
    "attention": (100.0, 99.6, 100.0, 58.6, 26.6, 18.8, 9.8, 10.9, 7.8),
    "rotary": (100.0, 100.0, 100.0, 83.6, 31.3, 18.4, 8.6, 9.0, 5.5),
}
NAMES = {"mamba": "Mamba", "h3": "H3", "attention": "attention, learned positions", "rotary": "attention, rotary"}
HISTORY = ("attention", "rotary")  # what they hold of the past grows with it
# Width, mixer and learning rate of each: the published widths, and rates from short trials for Mamba and H3
MODELS: dict[str, tuple[int, MixerConfig, float]] = {
    "mamba": (64, MambaConfig(), 2e-3),
    "h3": (128, H3Config(), 1e-3),
    "attention": (128, AttentionConfig(n_heads=8, positions=None), 2e-4),
    "rotary": (128, AttentionConfig(n_heads=8), 2e-4),
}
GOES_ON = "mamba"  # what it names beyond the length of its rows still gets better when all answers at that are right
LENGTHS = tuple(2**i for i in range(6, 21))
TOKENS_AT_ONCE = 2**14
Parts = Mapping[str, Trial]


@dataclass(frozen=True, kw_only=True)
class InductionHeadsSettings(SyntheticSettings):
    """models:  of "mamba", "h3", "attention" (a learned vector for each position) and "rotary"
    steps:    at most, one number for each model
    length:   of the rows for training, in tokens with the answer
    lengths:  of the rows for the tests
    attention_to, attention_rows: attention is asked at lengths up to this, by no more rows than that: the time that it
              takes is quadratic in the length
    warmup, decay: fractions of the steps in which the learning rate rises and falls; between them it is constant
    stop_at:  of any model but Mamba
    n_test, test_tokens: each length has ``n_test`` rows, or so many that they hold ``test_tokens`` tokens if those are
              fewer, and one at least
    """

    models: Distinct[Annotated[str, OneOf(MODELS)]] = tuple(MODELS)
    steps: NonEmpty[Count] = (32_768, 16_384, 16_384, 16_384)
    length: Count = 256
    lengths: Distinct[Count] = LENGTHS
    attention_to: Count = 2**14
    attention_rows: Count = 64
    batch_size: Count = 8
    warmup: Ratio = 0.01
    decay: Ratio = 0.1
    stop_at: Ratio | None = 1.0
    stop_after: Count = 4
    look_every: Count = 512
    test_tokens: Count = 2**24

    def check(self) -> None:
        self.require_as_many("models", "steps")
        for model in self.models:
            self.require(
                bool(self.lengths_of(model)),
                f"lengths={self.lengths} has none up to attention_to={self.attention_to} for {model!r}; give shorter "
                "ones, or leave it out of models",
            )
            run_config(self, model, self.seeds[0])  # refuses what no run could have
            for length in self.lengths_of(model):
                asked_config(self, model, length)

    def lengths_of(self, model: str) -> tuple[int, ...]:
        """Where this model is asked, from the shortest."""
        return tuple(sorted(n for n in self.lengths if model not in HISTORY or n <= self.attention_to))

    def n_rows(self, model: str, length: int) -> int:
        """For the test at this length."""
        at_most = min(self.n_test, self.attention_rows) if model in HISTORY else self.n_test
        return max(1, min(at_most, self.test_tokens // length))


def published(config: InductionHeadsSettings, model: str, length: int) -> float | None:
    """The figure for this model and length, where there is one.

    >>> published(InductionHeadsSettings(), "h3", 512)
    80.9
    """
    row = PUBLISHED[model] if config.length == PUBLISHED_LENGTH else ()
    return {2 ** (6 + i): value for i, value in enumerate(row)}.get(length)


def asked_config(config: InductionHeadsSettings, model: str, length: int) -> SyntheticLanguageConfig:
    """The language whose test split the model is asked at this length."""
    n_rows = config.n_rows(model, length)
    return LongInductionHeadConfig(test_length=length, n_test=n_rows)


def run_config(config: InductionHeadsSettings, model: str, seed: int) -> RunConfig:
    """The training run of a model."""
    d_model, mixer, lr = MODELS[model]
    steps = config.steps[config.models.index(model)]
    data = config.language("long-induction-head", steps, length=config.length)
    positions = max(config.length, *config.lengths_of(model)) if model == "attention" else None
    schedule = ScheduleConfig(kind="wsd", warmup=config.warmup, decay=config.decay, min_ratio=0.0)
    return RunConfig(
        model=LanguageModelConfig(
            vocab_size=data.vocab_size,
            d_model=d_model,
            layers=(BlockConfig(mixer=mixer),) * 2,
            max_positions=positions,
        ),
        data=data,
        train=config.training(seed, steps, schedule, may_stop=model != GOES_ON, lr=lr),
    )


def ask(
    model: LanguageModel,
    data: SyntheticLanguageConfig,
    *,
    tokens_at_once: int = TOKENS_AT_ONCE,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Any]:
    """How many of the answers of the test split the model names, each the one that follows its row's last token.

    progress: called with the fraction that has been read, after each chunk

    Cost:    O(length) time. Memory for ``tokens_at_once`` tokens: several short rows together, or a part of a long one,
             the state being carried from part to part. (Attention's holds all of the row so far.)
    Errors:  InputError for less than one token at once.
    """
    if tokens_at_once < 1:
        raise InputError(f"tokens_at_once={tokens_at_once} is too few; use at least 1")
    split = open_synthetic_language(data).split("test")
    length, device, right, done = split.shape[0], model.embedding.weight.device, 0, 0
    with evaluation_mode(model), torch.no_grad():
        for drawn in split.in_parts(rows_at_once=max(1, tokens_at_once // length)):
            inputs = torch.from_numpy(drawn.inputs).to(device)
            chunks = inputs.split(max(1, tokens_at_once // len(inputs)), 1)
            state = model.initial_state(len(inputs)) if len(chunks) > 1 else None
            for chunk in chunks:
                features, state = model.features(chunk, state)
                done += chunk.numel()
                if progress is not None:
                    progress(done / (len(split) * length))
            named = model.head(features[:, -1]).argmax(-1).cpu()
            right += int((named == torch.from_numpy(drawn.answers[:, 0])).sum())
    return {"accuracy": right / len(split), "right": right, "rows": len(split)}


def ask_checkpoint(folder: str, data: SyntheticLanguageConfig, reporter: Reporter) -> dict[str, Any]:
    """A trial: the last checkpoint of a run, asked at one length."""
    model = cast(LanguageModel, load_checkpoint(read_run(Path(folder)), Path(folder), "latest"))
    begun = time.monotonic()
    found = ask(model, data, progress=lambda fraction: reporter.progress(fraction, {}))
    return {**found, "seconds": time.monotonic() - begun}


def measure(config: InductionHeadsSettings, work: Work) -> tuple[Parts, Parts]:
    """The runs, by model and seed, and the tests of those that did not diverge, by model, seed and length."""
    training: dict[str, Job] = {}
    asking: dict[str, dict[str, Job]] = {}  # of each run
    for name, model, seed in ((f"{model}-{seed}", model, seed) for model in config.models for seed in config.seeds):
        training[name] = trained(work, name, {"seed": run_config(config, model, seed)})
        folder = str(work.folder / f"run-{name}" / "seed")
        asking[name] = {
            f"{name}-{n}": Job(ask_checkpoint, (folder, asked_config(config, model, n)))
            for n in config.lengths_of(model)
        }
    n_asked = sum(map(len, asking.values()))
    work.begin(len(training) + n_asked, at_most=True)
    found = work.parts(training)
    asked = {part: job for name, jobs in asking.items() if whole(found[name]) for part, job in jobs.items()}
    work.leave_out(n_asked - len(asked))
    return found, work.parts(asked)


def report(config: InductionHeadsSettings, found: tuple[Parts, Parts]) -> Report:
    training, asked = found
    right: dict[str, dict[int, list[float]]] = {}
    rows, tables, best = [], [], {}
    for model in config.models:
        runs = {seed: row_of(f"{NAMES[model]}, seed {seed}", [training[f"{model}-{seed}"]]) for seed in config.seeds}
        lengths = config.lengths_of(model)
        right[model] = {
            seed: [100 * asked[f"{model}-{seed}-{n}"]["accuracy"] for n in lengths]
            for seed, row in runs.items()
            if row["whole"]
        }
        best[model] = max(right[model], key=lambda seed: statistics.fmean(right[model][seed]), default=None)
        tables.append(_accuracies(config, model, right[model], best[model], asked))
        for row in runs.values():
            looks = [i for run in row["whole"] for i, accuracy in enumerate(run["course"], 1) if accuracy == 1.0]
            rows.append({**row, "first": looks[0] * config.look_every if looks else None})
    stopping = [NAMES[model] for model in config.models if model != GOES_ON and config.stop_at is not None]
    return told(
        "induction-heads",
        {
            **vars(config),
            "minutes": sum(part["cpu_seconds"] for part in training.values()) / 60,
            "at_most": [f"{n:,} ({NAMES[model]})" for model, n in zip(config.models, config.steps)],
            "rates": [f"{MODELS[model][2]:g} ({NAMES[model]})" for model in config.models],
            "rises": 100 * config.warmup,
            "falls": 100 * config.decay,
            "history": set(HISTORY) & set(config.models),
            "stopping": stopping,
            "another": config.length != PUBLISHED_LENGTH,
        },
        tables,
        rows,
        bars=_bars(config, right["mamba"], best["mamba"]) if config.bars and "mamba" in right else [],
        figures={"best_seed": best, "trained": training, "asked": asked},
        plots=[curves("induction-heads", "Accuracy against length", _panel(config, right, best))],
    )


def _bars(config: InductionHeadsSettings, right: Mapping[int, list[float]], best: int | None) -> list[Bar]:
    what = f"Mamba, the best of {len(config.seeds)} seeds, at each of {len(config.lengths_of('mamba'))} lengths"
    return [Bar(what=what, ours=None if best is None else min(right[best]), bar=100.0, unit=" %")]


def _accuracies(
    config: InductionHeadsSettings, model: str, right: Mapping[int, list[float]], best: int | None, asked: Parts
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A table's values, and its rows."""
    starred = best if len(config.seeds) > 1 else None
    seeds = [f"seed {seed}{' *' if seed == starred else ''}" for seed in config.seeds]
    rows = [
        {
            "tokens": n,
            "published": published(config, model, n),
            "right": [right[seed][i] if seed in right else LOST for seed in config.seeds],
            "rows": None if best is None else asked[f"{model}-{best}-{n}"]["rows"],
        }
        for i, n in enumerate(config.lengths_of(model))
    ]
    return {"name": NAMES[model], "seeds_of": seeds, "starred": starred is not None}, rows


def _panel(
    config: InductionHeadsSettings, right: Mapping[str, Mapping[int, Sequence[float]]], best: Mapping[str, int | None]
) -> Panel:
    lines = []
    for i, (model, by_seed) in enumerate(right.items()):
        lengths, color = config.lengths_of(model), {"color": f"C{i}"}
        name = label({"name": NAMES[model], "lost": len(by_seed) < len(config.seeds)})
        lines += [] if by_seed else [Curve((), (), name, color)]
        for seed, values in by_seed.items():
            thick = {"marker": "o", "markersize": 4, "linewidth": 1.6}
            is_best = seed == best[model]
            lines.append(
                Curve(lengths, values, name if is_best else None, color | (thick if is_best else {"linewidth": 0.6}))
            )
        theirs = {n: value for n in lengths if (value := published(config, model, n)) is not None}
        lines.append(Curve([*theirs], [*theirs.values()], None, {**color, "linewidth": 0.8, "linestyle": ":"}))
    lines.append(Curve([config.length] * 2, (0, 100), None, {"color": "grey", "linewidth": 0.8, "linestyle": "--"}))
    x = "tokens (dashed: of training; dotted: published)"
    return Panel(lines, ticks=sorted(config.lengths), x=x, y="accuracy, %", set={"ylim": (0, 103)})


CLAIM = Claim(
    summary="induction heads: Mamba, H3 and attention, trained at 256 tokens and asked at up to a million",
    duration="two and a half hours on 2 cores",
    source="Gu and Dao 2023 (Mamba), arXiv:2312.00752, table 11",
    settings=InductionHeadsSettings,
    quick='models=["mamba","h3"] steps=[1500,500] seeds=[0] length=32 lengths=[32,64,128,256,1024,4096] batch_size=16 '
    "look_every=100 n_validation=64 n_test=64 test_tokens=65536 workers=1 bars=false",
    measure=measure,
    report=report,
)
