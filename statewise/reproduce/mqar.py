"""Multi-query associative recall: accuracy against the size of the state, for four mixers at two lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from torch.utils import _pytree as pytree

from statewise.configuration.types import Count, Distinct, NonEmpty, OneOf, Positive, Seed, Share, Width, from_to
from statewise.data.synthetic_languages import MultiQueryRecallConfig, SyntheticLanguageConfig
from statewise.errors import DivergedError
from statewise.mixers.attention import Attention, AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.mixers.projection import WEIGHT_STD, weight_std_at
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.reproduce.claim import Claim
from statewise.reproduce.measure import n_parameters
from statewise.reproduce.outcomes import LOST
from statewise.reproduce.page import told
from statewise.reproduce.report import Curve, Panel, Report, curves
from statewise.reproduce.settings import BEFORE, Rates, Settings, rate_name
from statewise.reproduce.synthetic import look_every
from statewise.reproduce.training import Trial, is_diverged, load_checkpoint, read_looks, train_one
from statewise.reproduce.work import Job, Work
from statewise.training.config import BudgetConfig, OptimizerConfig, RunConfig, ScheduleConfig, TrainConfig
from statewise.training.report import Reporter
from statewise.training.tasks import open_task

NAMES = {"h3": "H3", "linear": "linear attention", "mamba2": "Mamba-2", "attention": "attention"}
# Width and mixer, from the smallest state to the largest. Attention and linear attention get learned positions
SIZES: dict[str, tuple[tuple[int, MixerConfig], ...]] = {
    "h3": tuple((d_model, H3Config(d_state=16, d_shift=8)) for d_model in (32, 64, 128)),
    "linear": tuple((d_model, LinearAttentionConfig(n_heads=1)) for d_model in (32, 64, 128)),
    "mamba2": tuple((d, Mamba2Config(d_state=n, d_head=32)) for d, n in ((32, 16), (64, 16), (64, 64))),
    "attention": tuple((d_model, AttentionConfig(n_heads=1, positions=None)) for d_model in (16, 32, 64)),
}
POSITIONED = ("linear", "attention")
Tried = Mapping["Cell", Mapping[float, Trial]]  # the runs of each cell by their rate


class Cell(NamedTuple):
    """A model in one of its sizes on the i-th rows."""

    model: str
    size: int
    i: int

    def name(self, config: MqarSettings) -> str:
        return f"{self.model}-{config.lengths[self.i]}-{config.pairs[self.i]}-{self.size}"


@dataclass(frozen=True, kw_only=True)
class MqarSettings(Settings):
    """models:   of "h3", "linear", "mamba2", "attention"; n_sizes: how many states of each, from the smallest
    lengths, pairs, epochs:   of the rows; how many keys and values are in one; how long is trained at most. A length
               may come again with other pairs
    vocab_size, n_train, n_test, random_non_queries:   of the language, see ``MultiQueryRecall``
    rates:     learning rates, tried one after the other by each model in each of its sizes at each length until a run
               has ``stop_at``; where none has, the run that was best on rows of its own counts
    weight_std: of the projections of H3 and of both attentions at the start; None: the published 0.02 at a width of
               768, and at another width so much that their outputs vary as much
    batch_size: rows in a step
    stop_at:   a run ends when its accuracy on 500 rows of their own is this at least
    workers:   processes that train side by side
    seed:      of every run
    """

    models: Distinct[Annotated[str, OneOf(SIZES)]] = tuple(SIZES)
    n_sizes: Annotated[int, from_to(1, 3)] = 3
    lengths: NonEmpty[Count] = (64, 128)
    pairs: NonEmpty[Count] = (4, 8)
    epochs: NonEmpty[Positive] = (24.0, 12.0)
    vocab_size: Width = 256
    n_train: Count = 20_000
    n_test: Count = 3_000
    random_non_queries: bool = False
    rates: Rates = (3e-3, 1e-2, 1e-3)
    weight_std: Positive | None = field(default=None, metadata={BEFORE: WEIGHT_STD})
    batch_size: Count = 64
    stop_at: Share = 0.99
    workers: Count = 2
    seed: Seed = 0

    def check(self) -> None:
        self.require_as_many("lengths", "pairs", "epochs")
        rows = f"lengths={self.lengths}, pairs={self.pairs}"
        twice = len(set(zip(self.lengths, self.pairs))) < len(self.lengths)
        self.require(not twice, f"{rows} has the same rows twice; give each length with each number of pairs once")
        whole = self.batch_size <= self.n_train
        self.require(whole, f"n_train={self.n_train}, batch_size={self.batch_size}; use at least a batch of rows")
        for i in range(len(self.lengths)):
            for rate in self.rates:
                run_config(self, Cell(self.models[0], 0, i), rate)  # refuses what no run could have

    def cells(self) -> Iterator[Cell]:
        for i in range(len(self.lengths)):
            yield from (Cell(model, size, i) for model in self.models for size in range(self.n_sizes))


def run_config(config: MqarSettings, cell: Cell, rate: float) -> RunConfig:
    """The training run of a cell at this rate."""
    d_model, mixer = SIZES[cell.model][cell.size]
    if isinstance(mixer, (H3Config, LinearAttentionConfig, AttentionConfig)):
        mixer = replace(mixer, weight_std=config.weight_std or weight_std_at(d_model))
    length = config.lengths[cell.i]
    return RunConfig(
        model=LanguageModelConfig(
            vocab_size=config.vocab_size,
            d_model=d_model,
            layers=(BlockConfig(mixer=mixer, norm="layer"),) * 2,
            norm="layer",
            max_positions=length if cell.model in POSITIONED else None,
        ),
        data=MultiQueryRecallConfig(
            length=length,
            n_pairs=config.pairs[cell.i],
            n_validation=min(500, config.n_test),
            **{name: getattr(config, name) for name in ("vocab_size", "random_non_queries", "n_train", "n_test")},
        ),
        train=TrainConfig(
            budget=BudgetConfig(epochs=config.epochs[cell.i], stop_at=config.stop_at),
            optimizer=OptimizerConfig(lr=rate),
            schedule=ScheduleConfig(warmup=0.1),
            reporting=look_every(config.n_train // config.batch_size, log_every=100),
            batch_size=config.batch_size,
            seed=config.seed,
        ),
    )


def state_size(config: RunConfig) -> int:
    """Numbers of the state of all layers: what ``initial_state`` holds, and of attention its keys and values for a row
    of the full length."""
    length = cast(SyntheticLanguageConfig, config.data).length
    model = cast(LanguageModel, config.model.build())
    total = 0
    for block, state in zip(model.blocks, model.initial_state(batch=1).layers):
        if isinstance(block.mixer, Attention):
            total += 2 * length * block.mixer.n_kv_heads * block.mixer.d_head
        else:
            total += sum(leaf.numel() for leaf in pytree.tree_leaves(state))
    return total


def train_and_test(run: RunConfig, folder: str, reporter: Reporter) -> dict[str, Any]:
    """A trial: trains the run, or continues it, and tests its best checkpoint.

    A run that diverged is a result: "diverged" says where, and nothing was tested.

    Errors: TrainingError if an evaluation failed for another reason; Stopped, with everything saved.
    """
    d_model = cast(LanguageModelConfig, run.model).d_model
    shared = {
        "state": state_size(run),
        "parameters": n_parameters(run.model),
        "d_model": d_model,
        "lr": run.train.optimizer.lr,
    }
    try:
        result = train_one(run, Path(folder), reporter)
    except DivergedError as error:
        return {**shared, "diverged": error.what}
    goal, course = run.train.budget.stop_at, read_looks(Path(folder))
    record = open_task(run).evaluate(load_checkpoint(run, Path(folder)), "test")
    return {
        **shared,
        "diverged": None,
        "steps": result.step,
        "stopped_early": goal is not None and result.validation is not None and result.validation >= goal,
        "training_seconds": course[-1]["seconds"],
        "course": [(line["step"], line["accuracy"]) for line in course],
        "validation_loss": course[-1]["loss"],
        **{name: record[name] for name in ("accuracy", "accuracy_of_examples", "loss", "chance")},
    }


def measure(config: MqarSettings, work: Work) -> Tried:
    """One rate after the other: for each of them those are trained that have not yet what they are asked for."""
    tried: dict[Cell, dict[float, Trial]] = {cell: {} for cell in config.cells()}
    work.begin(len(tried) * len(config.rates), at_most=True)
    for rate in config.rates:
        left = [cell for cell, runs in tried.items() if not any(run.get("stopped_early") for run in runs.values())]
        work.leave_out(len(tried) - len(left))
        parts = {f"{cell.name(config)}-rate-{rate_name(rate)}": cell for cell in left}
        jobs = {
            part: Job(train_and_test, (run_config(config, cell, rate), str(work.folder / f"run-{part}")))
            for part, cell in parts.items()
        }
        for part, found in work.parts(jobs).items():
            tried[parts[part]][rate] = found
    return tried


def report(config: MqarSettings, tried: Tried) -> Report:
    found = {cell: _best(runs) for cell, runs in tried.items()}
    by_rate = {c: {rate_name(r): run.get("accuracy") for r, run in runs.items()} for c, runs in tried.items()}
    lost = {
        c: {rate_name(r): run["diverged"] for r, run in runs.items() if is_diverged(run)} for c, runs in tried.items()
    }
    chances = sorted({run["chance"] for run in found.values() if not is_diverged(run)})
    of_all = "".join(f"{chance:.2%} of all values and " for chance in chances)
    tables = [
        (
            {"row_length": length, "row_pairs": pairs, "of_all": of_all, "of_a_row": 1 / pairs},
            [_row(cell, found[cell], by_rate[cell]) for cell in tried if cell.i == i],
        )
        for i, (length, pairs) in enumerate(zip(config.lengths, config.pairs))
    ]
    return told(
        "mqar",
        _words(config, found, lost),
        tables,
        figures={
            cell.name(config): {
                "model": cell.model,
                "length": config.lengths[cell.i],
                "pairs": config.pairs[cell.i],
                **run,
                "by_rate": by_rate[cell],
                "diverged_at": lost[cell],
            }
            for cell, run in found.items()
        },
        plots=[curves("mqar", "Accuracy against the size of the state", _panel(config, found))],
    )


def _row(cell: Cell, run: Trial, by_rate: Mapping[str, float | None]) -> dict[str, Any]:
    """A row of a table; a run that diverged has only its accuracy, a word."""
    rest = [(r, "diverged" if a is None else f"{a:.1%}") for r, a in by_rate.items() if r != rate_name(run["lr"])]
    others = ", ".join(map(" ".join, rest)) or None
    absent = dict.fromkeys(("accuracy_of_examples", "steps", "training_seconds"))
    early = "" if run.get("stopped_early") else " (all)"
    return {"name": NAMES[cell.model], "accuracy": LOST, **absent, **run, "others": others, "early": early}


def _best(runs: Mapping[float, Trial]) -> Trial:
    """The run that was best on rows of its own; of those that diverged only if all did."""
    whole = [run for run in runs.values() if not is_diverged(run)]
    if not whole:
        return next(iter(runs.values()))
    return max(whole, key=lambda run: max(accuracy for _, accuracy in run["course"]))


def _words(config: MqarSettings, found: Mapping[Cell, Trial], lost: Mapping[Cell, Mapping[str, str]]) -> dict[str, Any]:
    """What the page is filled in with."""
    first, *others = map(rate_name, config.rates)
    begin = [NAMES[model] for model in config.models if model != "mamba2"]
    at_an_end = []  # the models whose best rate is the lowest or the highest of all, and in how many rows of the tables
    for model in config.models if others else ():
        best = [run["lr"] for cell, run in found.items() if cell.model == model and not is_diverged(run)]
        if n := sum(rate in (min(config.rates), max(config.rates)) for rate in best):
            at_an_end.append(f"{NAMES[model]} in {n} of {len(best)} rows")
    positioned, rest = (
        " and ".join(NAMES[model] for model in config.models if (model in POSITIONED) == is_there)
        for is_there in (True, False)
    )
    return {
        **vars(config),
        "rows": [f"{n} with {p} pairs" for n, p in zip(config.lengths, config.pairs)],
        "plural": "" if config.epochs == (1,) else "s",
        "of_attention": "; of attention its keys and values at the full length" if "attention" in config.models else "",
        "first": first,
        "others": " and then ".join(others),
        "goal": 100 * config.stop_at,
        "whose": f"{', '.join(begin[:-1])} and {begin[-1]}" if len(begin) > 1 else "".join(begin),
        "given": begin and config.weight_std is not None,
        "scaled": begin and config.weight_std is None,
        "at_an_end": at_an_end,
        "positioned": f"{positioned}{f'; {rest}: none' if rest else ''}" if positioned else "",
        "short": not all(run["stopped_early"] for run in found.values() if not is_diverged(run)),
        "diverged": [f"{cell.name(config)} at {rate}" for cell, where in lost.items() for rate in where],
    }


def _panel(config: MqarSettings, found: Mapping[Cell, Trial]) -> Panel:
    lines = []
    for i, model in enumerate(config.models):
        for j, (length, pairs) in enumerate(zip(config.lengths, config.pairs)):
            runs = [run for cell, run in found.items() if cell[::2] == (model, j) and not is_diverged(run)]
            runs.sort(key=lambda run: run["state"])
            history = {"marker": "*", "markersize": 11, "linestyle": "none"}
            state = {"marker": "o", "markersize": 6, "linestyle": ("-", "--", ":", "-.")[j % 4]}
            is_history = model == "attention"
            style = {**(history if is_history else state), "fillstyle": "none" if j else "full", "color": f"C{i}"}
            label = f"{NAMES[model]}, length {length}, {pairs} pairs{' (history)' if is_history else ''}"
            lines.append(Curve([run["state"] for run in runs], [run["accuracy"] for run in runs], label, style))
    lost = [run["state"] for run in found.values() if is_diverged(run)]
    if lost:
        cross = {"marker": "x", "linestyle": "none", "color": "black"}
        lines.append(Curve(lost, [0.0] * len(lost), "diverged", cross))
    return Panel(lines, log="x", x="numbers in the state", y="test accuracy", set={"ylim": (0, 1.03)})


CLAIM = Claim(
    summary="MQAR: accuracy against state size for H3, linear attention, Mamba-2 and attention",
    duration="an hour and a half on 2 cores",
    source="Arora et al. 2023 (Zoology), arXiv:2312.04927, figure 2",
    settings=MqarSettings,
    quick="n_sizes=1 lengths=[32] pairs=[2] epochs=[1] rates=[1e-2] vocab_size=16 n_train=1280 n_test=128 workers=1",
    measure=measure,
    report=report,
)
