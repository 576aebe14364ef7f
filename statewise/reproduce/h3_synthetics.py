"""H3's two synthetic languages: seven models on induction heads and associative recall, at the published settings."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
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
from statewise.reproduce.outcomes import each, label, row_of
from statewise.reproduce.page import told
from statewise.reproduce.report import Bar, Curve, Panel, Report, curves
from statewise.reproduce.settings import BEFORE, Settings
from statewise.reproduce.synthetic import look_every
from statewise.reproduce.training import trained
from statewise.reproduce.work import Job, Work
from statewise.training.config import BudgetConfig, OptimizerConfig, RunConfig, ScheduleConfig, TrainConfig

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
SCHEDULES = {
    "induction-head": ScheduleConfig(kind="cosine", warmup=0.1, start_ratio=1e-6 / LR, min_ratio=0.1),
    # Which falls from the warm-up's end in any case
    "associative-recall": ScheduleConfig(kind="linear", warmup=0.1, min_ratio=0.0),
}
AS_PUBLISHED = ("clip_norm", "weight_decay_of", "dropout_of", "drop_last", "warmup_prefix")  # or not


@dataclass(frozen=True, kw_only=True)
class H3SyntheticsSettings(Settings):
    """models:  of "s4d", "gss", "h3", "hybrid", "attention", "mamba", "mamba2"
    tasks:    of "induction-head", "associative-recall"
    epochs:   one number for each task
    seeds:    of the parameters, the dropout and the order of the rows; trained side by side, as one stack
    n_train, n_validation, n_test: rows of each language; no row is in two of them
    stop_at, stop_after: a run ends once its accuracy on the validation rows was at least this after this many epochs
        running; stop_at=null: never before its last epoch
    clip_norm, weight_decay_of: as ``OptimizerConfig`` has them; the published code clips no gradient, and every
              parameter but the systems' decays
    dropout_of: what the Transformer's dropout of 0.1 drops: the "weights" of its attention, as published, or the
              "branches" before they join the residual stream
    drop_last, warmup_prefix: as ``TrainConfig`` and its schedule have them; as published, the last 8 of 5,000 rows are
              a batch of their own, and the cosine begins under the warm-up
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
        few = f"n_train={self.n_train} without the last rows does not fill a batch; use at least {BATCH_SIZE}"
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
    schedule, is_attention = SCHEDULES[task], model == "attention"
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
        train=TrainConfig(
            budget=BudgetConfig(
                epochs=config.epochs[config.tasks.index(task)], stop_at=config.stop_at, stop_after=config.stop_after
            ),
            optimizer=OptimizerConfig(
                lr=LR,
                dynamics_lr_max=1e-3,
                betas=(0.9, 0.999),
                weight_decay=0.1,
                weight_decay_of=config.weight_decay_of,
                clip_norm=config.clip_norm,
            ),
            schedule=replace(schedule, warmup_prefix=config.warmup_prefix or schedule.kind != "cosine"),
            reporting=look_every(count_batches(config.n_train, BATCH_SIZE, config.drop_last)),
            batch_size=BATCH_SIZE,
            drop_last=config.drop_last,
            seed=seed,
        ),
    )


def trials(config: H3SyntheticsSettings, work: Work) -> dict[str, Job]:
    return {
        f"{task}-{model}": trained(
            work, f"{task}-{model}", {f"seed-{seed}": run_config(config, task, model, seed) for seed in config.seeds}
        )
        for task, model in product(config.tasks, config.models)
    }


def report(config: H3SyntheticsSettings, found: Found) -> Report:
    several = len(config.seeds) > 1
    cpu_seconds = sum(part["cpu_seconds"] for part in found.values())
    minutes = cpu_seconds / 2 / 60
    everything = f"all {len(config.seeds)} seeds of everything" if several else "everything"
    more = ", more than one seed takes" if several else ""
    bars = []
    for task, model in product(config.tasks, MUST_SOLVE):
        if model in config.models:
            ours = 100 * min(each(found[f"{task}-{model}"]["seeds"].values(), "accuracy", 0.0))  # type: ignore[arg-type]
            bars.append(Bar(what=f"{NAMES[model]}, {task}: every seed", ours=ours, bar=LEAST, unit=" %"))
    if is_everything(config) and (not several or minutes <= MINUTES):  # of one seed; more seeds only bound it
        what = f"minutes to spare of {MINUTES:g} on two cores, for {everything}{more}"
        bars.append(Bar(what=what, ours=MINUTES - minutes, bar=0.0))
    (first, n), *others = zip(config.tasks, config.epochs)
    epochs = [f"{n} epoch{'s' if n > 1 else ''} of {first}", *(f"{n} of {task}" for task, n in others)]
    values = {"cpu_minutes": cpu_seconds / 60, "minutes": minutes, "everything": everything, "more": more}
    values |= {"epochs_of": " and ".join(epochs), "D_MODEL": D_MODEL, "hidden": 4 * D_MODEL, "BATCH_SIZE": BATCH_SIZE}
    of_seeds = ", mean of the seeds and (thin) each" if several else ""
    title = f"Accuracy on the validation rows{of_seeds}, epoch by epoch"
    rows = {
        task: [row_of(NAMES[m], [found[f"{task}-{m}"]], PUBLISHED[task].get(m)) for m in config.models]
        for task in config.tasks
    }
    return told(
        "h3-synthetics",
        {**differs(config), **values},
        [({"task": task}, rows[task]) for task in config.tasks],
        bars=bars if config.bars else [],
        figures={"cpu_seconds": cpu_seconds, "minutes_of_two_cores": minutes, "runs": found},  # of all seeds
        plots=[
            curves("h3-synthetics", title, *(_panel(config, task, rows[task]) for task in config.tasks), width=10.0)
        ],
    )


def differs(config: H3SyntheticsSettings) -> dict[str, Any]:
    """What the page says of these settings, and which of its sentences hold."""
    full, several = H3SyntheticsSettings(), len(config.seeds) > 1
    return {
        **vars(config),
        "clipped": config.clip_norm != full.clip_norm,
        "maps": config.weight_decay_of != full.weight_decay_of,
        "branches": config.dropout_of != full.dropout_of and "attention" in config.models,
        "dropped": config.drop_last and config.n_train % BATCH_SIZE,
        "prefix": config.warmup_prefix and "induction-head" in config.tasks,
        "several": several,
        "early": config.stop_at is not None and config.stop_after < max(config.epochs),
        "plural": "s" if config.stop_after > 1 else "",
    }


def _panel(config: H3SyntheticsSettings, task: str, rows: Sequence[Mapping[str, Any]]) -> Panel:
    lines, levels = [], []
    for i, row in enumerate(rows):
        color = {"color": f"C{i}"}
        courses = [[100 * accuracy for accuracy in run["course"]] for run in row["whole"]]
        longest = max(map(len, courses), default=0)
        held = [course + course[-1:] * (longest - len(course)) for course in courses]
        middle = [statistics.mean(values) for values in zip(*held)]
        lines.append(Curve(range(1, longest + 1), middle, label(row), color))
        thin = {**color, "linewidth": 0.8, "alpha": 0.5}  # what one seed finds, the mean does not show
        lines += [Curve(range(1, len(c) + 1), c, None, thin) for c in courses if len(courses) > 1]
        if row["published"] is not None:
            levels.append((row["published"], {**color, "linestyle": ":"}))
    x, is_last = "epoch (dotted: published)", task == config.tasks[-1]
    axes: dict[str, Any] = {"x": x, "y": "accuracy, %", "set": {"ylim": (0, 102)}}
    return Panel(lines, title=task, levels=levels, legend=is_last, **axes)


CLAIM = Claim(
    summary="H3's two synthetic languages: seven models, three seeds each",
    duration="three hours on 2 cores",
    source="Fu et al. 2023 (H3), arXiv:2212.14052, table 2",
    settings=H3SyntheticsSettings,
    quick="epochs=[2,2] seeds=[0] n_train=330 n_validation=64 n_test=64 workers=1 bars=false",
    trials=trials,
    report=report,
)
