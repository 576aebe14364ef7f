"""H3's two synthetic languages: seven models on induction heads and associative recall, at the published settings."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

from statewise.configuration.types import Count, Distinct, Limit, NonEmpty, OneOf, Seed, Share
from statewise.data.synthetic_languages import LANGUAGES
from statewise.data.whole_batches import count_batches
from statewise.mixers.attention import AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.gss import GSSConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.mamba import MambaConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.s4d import S4DConfig
from statewise.models.block import BlockConfig
from statewise.models.hybrid import hybrid_layers
from statewise.models.language_model import LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.claim import Claim, Found
from statewise.reproduce.report import Bar, Curve, Panel, Report, Table, curves, findings, table
from statewise.reproduce.settings import BEFORE, Settings
from statewise.reproduce.synthetic import look_every
from statewise.reproduce.training import (
    Trial,
    each_told,
    is_diverged,
    lost_text,
    mean_text,
    ms_text,
    percent,
    trained,
    whole,
)  # fmt: skip
from statewise.reproduce.work import Job, Work
from statewise.train.config import RunConfig

# Fu et al. 2023 (H3), arXiv:2212.14052, table 2: accuracy in %
PUBLISHED = {
    "induction-head": {"s4d": 35.6, "gss": 6.8, "h3": 100.0, "attention": 100.0},
    "associative-recall": {"s4d": 86.0, "gss": 78.0, "h3": 99.8, "attention": 100.0},
}
MUST_SOLVE, LEAST = ("h3", "attention"), 97.0  # each seed, in %
MINUTES = 90.0  # of two cores, for one seed of everything; all seeds together take longer than one
D_MODEL, BATCH_SIZE, LR, DROPOUT = 32, 32, 5e-4, 0.1
ATTENTION = AttentionConfig(n_heads=1, positions=None, bias=True)
MIXERS: dict[str, MixerConfig] = {
    "s4d": S4DConfig(d_state=64, initialization="inv", n_systems=1, B="normal", learn_B=False),
    "gss": GSSConfig(),
    "h3": H3Config(d_state=64, d_head=1),
    "hybrid": H3Config(d_state=64, d_head=1),
    "attention": ATTENTION,
    "mamba": MambaConfig(),
    "mamba2": Mamba2Config(d_state=64, d_head=32),
}
NAMES = dict(zip(MIXERS, ("S4D", "GSS", "H3", "H3, then attention", "attention", "Mamba", "Mamba-2")))
TASKS = tuple(PUBLISHED)
# The published schedules: a cosine of 5e-4 down to 5e-5 after a warm-up from 1e-6, and straight lines up and down
SCHEDULES: dict[str, dict[str, Any]] = {
    "induction-head": {"schedule": "cosine", "lr_start_ratio": 1e-6 / LR, "lr_min_ratio": 0.1},
    "associative-recall": {"schedule": "linear", "lr_min_ratio": 0.0},  # which falls from the warm-up's end in any case
}
DIFFERENCES = """
- Published training and test rows are not held against each other; here no test row is trained on.
- The published code validates on the rows of its test and watches for the best epoch on them (ours: "watched"); here
  the epoch that was best on rows of their own reads the test.
- [gss] GSS has no published configuration for these tasks: this one is declared here (N = 64, gate of 4 d, bottleneck
  of d / 4).
- [s4d] S4D has one A for all channels and a normal B, which is not trained apart from C.
- [mamba] Mamba (N = 16), which came later, stands in the same block with the same MLP.
- [mamba2] Mamba-2 (N = 64, heads of 32), which came later, stands in the same block with the same MLP.
- [hybrid] The hybrid is one layer of H3, then one of attention without positions.
- [induction-head] Chance in induction-head is 1 in 18 ordinary tokens, 5.6 %; published: 5.0.
- [associative-recall] Chance in associative-recall is 1 in 4 values, 25 %; published: 25.0.
- [clip_norm] Gradients are clipped to a norm of {clip_norm:g}; published: not at all.
- [weight_decay_of] The matrices of maps alone decay; published: every parameter but the systems'.
- [branches] The Transformer has its dropout of 0.1 on each branch; published: on its attention's weights.
- [dropped] The last rows of an epoch that fill no batch are left out; published: they are one.
- [prefix] The cosine of induction-head begins where the warm-up ends; published: where it begins.
- [seeds] The seeds are of the parameters, the dropout and the order of the rows; all read the same rows (data.seed 0),
  so that their spread holds nothing of the data's.
"""
AS_PUBLISHED = ("clip_norm", "weight_decay_of", "dropout_of", "drop_last", "warmup_prefix")  # or not


@dataclass(frozen=True, kw_only=True)
class H3SyntheticsSettings(Settings):
    """models:  of "s4d", "gss", "h3", "hybrid", "attention", "mamba", "mamba2"
    tasks:    of "induction-head", "associative-recall"
    epochs:   one number for each task
    seeds:    of the parameters, the dropout and the order of the rows; trained one after the other
    n_train, n_validation, n_test: rows of each language; no row is in two of them
    stop_at, stop_after: a run ends once its accuracy on the validation rows was at least this after so many epochs
              running; stop_at=null: never before its last epoch
    clip_norm, weight_decay_of: as ``TrainConfig`` has them; the published code clips no gradient, and every parameter
              but the systems' decays
    dropout_of: what the Transformer's dropout of 0.1 drops: the "weights" of its attention, as published, or the
              "branches" before they join the residual stream
    drop_last, warmup_prefix: as ``TrainConfig`` has them; as published, the last 8 of 5,000 rows are a batch of their
              own, and the cosine begins under the warm-up
    workers:  processes that train side by side
    bars:     whether what the project asks of itself is in the report
    """

    models: Distinct[Annotated[str, OneOf(MIXERS)]] = tuple(MIXERS)
    tasks: Distinct[Annotated[str, OneOf(TASKS)]] = TASKS
    epochs: NonEmpty[Count] = (400, 200)
    seeds: Distinct[Seed] = (0, 1, 2)
    n_train: Count = 5000
    n_validation: Count = 500
    n_test: Count = 500
    stop_at: Share | None = 0.999
    stop_after: Count = 10
    clip_norm: Limit | None = None
    weight_decay_of: Literal["maps", "all"] = "all"
    dropout_of: Literal["weights", "branches"] = field(default="weights", metadata={BEFORE: "branches"})
    drop_last: bool = field(default=False, metadata={BEFORE: True})
    warmup_prefix: bool = field(default=False, metadata={BEFORE: True})
    workers: Count = 2
    bars: bool = True

    def check(self) -> None:
        self.require_as_many("tasks", "epochs")
        few = f"n_train={self.n_train} without the last rows is no batch; use at least {BATCH_SIZE}"
        self.require(self.n_train >= BATCH_SIZE or not self.drop_last, few)
        for seed in self.seeds:
            run_config(self, self.tasks[0], self.models[0], seed)  # refuses what no run could have


def is_everything(config: H3SyntheticsSettings) -> bool:
    """Whether all models learn both languages for as long and from as many rows as published."""
    full = H3SyntheticsSettings()
    return (
        set(config.models) == set(full.models)
        and dict(zip(config.tasks, config.epochs)) == dict(zip(full.tasks, full.epochs))
        and config.n_train >= full.n_train
        and all(getattr(config, name) == getattr(full, name) for name in AS_PUBLISHED)
    )


def run_config(config: H3SyntheticsSettings, task: str, model: str, seed: int) -> RunConfig:
    """The training run of a model on a task."""
    rows: dict[str, Any] = {"n_train": config.n_train, "n_validation": config.n_validation, "n_test": config.n_test}
    data = LANGUAGES[task](**rows)
    is_attention = model == "attention"
    layer = BlockConfig(mixer=MIXERS[model], mlp=MLPConfig(expand=4, activation="gelu_tanh"), norm="layer")
    if is_attention and config.dropout_of == "weights":
        layer = replace(layer, mixer=replace(ATTENTION, dropout=DROPOUT))
    elif is_attention:
        layer = replace(layer, dropout=DROPOUT)
    other = replace(layer, mixer=ATTENTION)  # of the hybrid
    return RunConfig(
        model=LanguageModelConfig(
            vocab_size=data.vocab_size,
            d_model=D_MODEL,
            layers=hybrid_layers(layer, other, n_layers=2, at=(1,) if model == "hybrid" else ()),
            norm="layer",
            embedding_dropout=0.1,
            max_positions=data.length if is_attention else None,
        ),
        data=data,
        train=look_every(
            count_batches(config.n_train, BATCH_SIZE, config.drop_last),
            epochs=config.epochs[config.tasks.index(task)],
            batch_size=BATCH_SIZE,
            lr=LR,
            dynamics_lr_max=1e-3,
            betas=(0.9, 0.999),
            weight_decay=0.1,
            warmup=0.1,
            **SCHEDULES[task],
            **{name: getattr(config, name) for name in ("weight_decay_of", "clip_norm", "drop_last")},
            **{name: getattr(config, name) for name in ("stop_at", "stop_after")},
            warmup_prefix=config.warmup_prefix or SCHEDULES[task]["schedule"] != "cosine",
            seed=seed,
        ),
    )


def trials(config: H3SyntheticsSettings, work: Work) -> dict[str, Job]:
    jobs = {}
    for part, task, model in ((f"{task}-{model}", task, model) for task in config.tasks for model in config.models):
        runs = {f"seed-{seed}": run_config(config, task, model, seed) for seed in config.seeds}
        jobs[part] = trained(work, part, runs)
    return jobs


def report(config: H3SyntheticsSettings, found: Found) -> Report:
    several = len(config.seeds) > 1
    cpu_seconds = sum(part["cpu_seconds"] for part in found.values())
    minutes = cpu_seconds / 2 / 60
    everything = f"all {len(config.seeds)} seeds of everything" if several else "everything"
    more = ", more than one seed takes" if several else ""
    bars = []
    for task in config.tasks:
        for model in (name for name in MUST_SOLVE if name in config.models):
            seeds = found[f"{task}-{model}"]["seeds"].values()
            ours = min(0.0 if is_diverged(seed) else 100 * seed["accuracy"] for seed in seeds)
            bars.append(Bar(what=f"{NAMES[model]}, {task}: every seed", ours=ours, bar=LEAST, unit=" %"))
    if is_everything(config) and (not several or minutes <= MINUTES):  # of one seed; more seeds only bound it
        what = f"minutes to spare of {MINUTES:g} on two cores, for {everything}{more}"
        bars.append(Bar(what=what, ours=MINUTES - minutes, bar=0.0))
    epochs = " and ".join(
        f"{n}{'' if i else ' epochs' if n > 1 else ' epoch'} of {task}"
        for i, (task, n) in enumerate(zip(config.tasks, config.epochs))
    )
    of_seeds = ", mean of the seeds and (thin) each" if several else ""
    return Report(
        title="H3's synthetic languages: what tells the models apart",
        setting=(
            f"Two layers of width {D_MODEL}, each with an MLP of {4 * D_MODEL}; {config.n_train:,} rows in batches of "
            f"{BATCH_SIZE}, at most {epochs}, the loss on every next token, the "
            f"accuracy that of the last. {config.n_validation} rows of their own are looked at after every epoch, the "
            f"{config.n_test} of the test once, by the model that was best on them; no row is in two of these sets."
            f"{_early(config)} Training with its validation took {cpu_seconds / 60:,.1f} minutes of processor time: "
            f"for {everything} that is listed {minutes:,.1f} minutes of two cores that share it{more}. The start of "
            "the processes and the tests are not in it."
        ),
        tables=[_table(config, task, found) for task in config.tasks],
        bars=bars if config.bars else [],
        differences=told_differences(config),
        figures={"cpu_seconds": cpu_seconds, "minutes_of_two_cores": minutes, "runs": found},  # of all seeds
        plots=[
            curves(
                "h3-synthetics",
                f"Accuracy on the validation rows{of_seeds}, epoch by epoch",
                *(_panel(config, task, found) for task in config.tasks),
                width=10.0,
            )
        ],
    )


def _early(config: H3SyntheticsSettings) -> str:
    """When a run ends before its last epoch, if any can."""
    if config.stop_at is None or config.stop_after >= max(config.epochs):
        return ""
    running = "after an epoch" if config.stop_after == 1 else f"after {config.stop_after} epochs running"
    return f" A run ends early once it names at least {config.stop_at:.1%} of its validation answers {running}."


def told_differences(config: H3SyntheticsSettings) -> list[str]:
    """In what these settings are not the published ones."""
    there, full = {*config.models, *config.tasks}, H3SyntheticsSettings()
    there |= {name for name in AS_PUBLISHED[:2] if getattr(config, name) != getattr(full, name)}
    there |= {"branches"} if config.dropout_of != full.dropout_of and "attention" in there else set()
    there |= {"dropped"} if config.drop_last and config.n_train % BATCH_SIZE else set()
    there |= {"prefix"} if config.warmup_prefix and "induction-head" in there else set()
    there |= {"seeds"} if len(config.seeds) > 1 else set()
    return findings(DIFFERENCES, **{**dict.fromkeys(there, True), "clip_norm": config.clip_norm})


def _table(config: H3SyntheticsSettings, task: str, found: Found) -> Table:
    def part(model: str) -> Trial:
        return found[f"{task}-{model}"]

    def each(model: str, text: Any, otherwise: str = "diverged") -> str:
        return each_told([*part(model)["seeds"].values()], text, otherwise)

    published = PUBLISHED[task]
    columns = [
        ("", NAMES.__getitem__),
        ("publ.", lambda m: f"{published[m]:.1f}" if m in published else "-"),
        ("ours", lambda m: mean_text([part(m)], 1)),
        ("test", lambda m: each(m, lambda s: percent(s["accuracy"]))),
        ("watched", lambda m: each(m, lambda s: percent(max(s["course"])))),
        ("epochs", lambda m: each(m, lambda s: f"{s['epochs']:.0f}", "-")),
        ("weights", lambda m: f"{part(m)['parameters']:,}"),
        ("CPU s", lambda m: f"{part(m)['cpu_seconds']:,.0f}"),
        ("ms", lambda m: ms_text(part(m))),
    ]
    notes = (
        "test: on the rows of its test. watched: the best epoch on the rows looked at after each, which is "
        "how the published figures were measured.",
        "CPU s: of training with validation, all seeds together. ms: of processor time, for a step of all seeds "
        "that were still training, on average."
        if len(config.seeds) > 1
        else "CPU s: of training with validation. ms: of processor time, for a step, on average.",
    )
    return table(f"{task}: accuracy of the last token, %", columns, config.models, notes)


def _panel(config: H3SyntheticsSettings, task: str, found: Found) -> Panel:
    lines = []
    for i, model in enumerate(config.models):
        part = found[f"{task}-{model}"]
        courses = [[100 * accuracy for accuracy in seed["course"]] for seed in whole(part)]
        longest = max(map(len, courses), default=0)
        held = [course + course[-1:] * (longest - len(course)) for course in courses]
        mean = [statistics.mean(values) for values in zip(*held)]
        label = NAMES[model] + lost_text(len(courses) < len(part["seeds"]))
        lines.append(Curve(range(1, longest + 1), mean, label, {"color": f"C{i}"}))
        thin = {"color": f"C{i}", "linewidth": 0.8, "alpha": 0.5}  # what one seed finds, the mean does not show
        lines += [Curve(range(1, len(c) + 1), c, None, thin) for c in courses if len(courses) > 1]
    published = [(i, PUBLISHED[task][m]) for i, m in enumerate(config.models) if m in PUBLISHED[task]]
    return Panel(
        curves=lines,
        title=task,
        x="epoch (dotted: published)",
        y="accuracy, %",
        levels=[(value, {"color": f"C{i}", "linestyle": ":"}) for i, value in published],
        legend=task == config.tasks[-1],
        set={"ylim": (0, 102)},
    )


CLAIM = Claim(
    summary="H3's two synthetic languages: seven models, three seeds each",
    duration="three hours on 2 cores",
    source="Fu et al. 2023 (H3), arXiv:2212.14052, table 2",
    settings=H3SyntheticsSettings,
    quick="epochs=[2,2] seeds=[0] n_train=330 n_validation=64 n_test=64 workers=1 bars=false",
    trials=trials,
    report=report,
)
