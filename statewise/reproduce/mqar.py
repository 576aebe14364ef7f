"""Multi-query associative recall: accuracy against the size of the state, for four mixers at two lengths."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from torch.utils import _pytree as pytree

from statewise.checkpoints import load, resolve
from statewise.data.synthetic_languages import SyntheticLanguageConfig
from statewise.errors import ConfigError
from statewise.mixers.attention import Attention, AttentionConfig
from statewise.mixers.base import MixerConfig
from statewise.mixers.h3 import H3Config
from statewise.mixers.linear_attention import LinearAttentionConfig
from statewise.mixers.mamba2 import Mamba2Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report, drawn
from statewise.reproduce.work import Stopped, Work
from statewise.reproduce.workers import Job
from statewise.train.config import RunConfig, TrainConfig
from statewise.train.loop import train
from statewise.train.metrics import read_metrics
from statewise.train.report import Reporter
from statewise.train.run_folder import METRICS_FILE, RUN_FILE
from statewise.train.tasks import open_task
from statewise.train.tasks.base import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NAMES = {"h3": "H3", "linear": "linear attention", "mamba2": "Mamba-2", "attention": "attention"}
# Width and mixer, from the smallest state to the largest. Attention and linear attention get learned positions
SIZES: dict[str, tuple[tuple[int, MixerConfig], ...]] = {
    "h3": tuple((d_model, H3Config(d_state=16, d_shift=8)) for d_model in (32, 64, 128)),
    "linear": tuple((d_model, LinearAttentionConfig(n_heads=1)) for d_model in (32, 64, 128)),
    "mamba2": (
        (32, Mamba2Config(d_state=16, d_head=32)),
        (64, Mamba2Config(d_state=16, d_head=32)),
        (64, Mamba2Config(d_state=64, d_head=32)),
    ),
    "attention": tuple((d_model, AttentionConfig(n_heads=1, positions=None)) for d_model in (16, 32, 64)),
}
POSITIONED = ("linear", "attention")


@dataclass(frozen=True, kw_only=True)
class MqarSettings:
    """models:   of "h3", "linear", "mamba2", "attention"; n_sizes: how many states of each, from the smallest
    lengths, pairs, epochs:   of the rows; how many keys and values are in one; how long is trained at most
    vocab_size, n_train, n_test, random_non_queries:   of the language, see ``MultiQueryRecall``
    rates:     learning rates to choose from: each model is trained with each of them at the first length and the
               second size (if there is one) for ``tuning`` of its epochs, and has the one with the least loss on the
               validation rows in all of its runs
    batch_size: rows in a step
    stop_at:   a run ends when its accuracy on 500 rows of their own is above it
    workers:   processes that train side by side
    seed:      of every run
    """

    models: tuple[str, ...] = ("h3", "linear", "mamba2", "attention")
    n_sizes: int = 3
    lengths: tuple[int, ...] = (64, 128)
    pairs: tuple[int, ...] = (4, 8)
    epochs: tuple[float, ...] = (24, 12)
    vocab_size: int = 256
    n_train: int = 20_000
    n_test: int = 3_000
    random_non_queries: bool = False
    rates: tuple[float, ...] = (3e-3, 1e-2)
    tuning: float = 0.25
    batch_size: int = 64
    stop_at: float = 0.99
    workers: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        unknown = [name for name in self.models if name not in SIZES]
        if unknown or not self.models or len(set(self.models)) < len(self.models):
            raise ConfigError(f"MqarSettings.models={self.models}; use some of {', '.join(SIZES)}, each once")
        if not 1 <= self.n_sizes <= 3:
            raise ConfigError(f"MqarSettings.n_sizes={self.n_sizes}; use 1 to 3")
        if not self.lengths or not len(self.lengths) == len(self.pairs) == len(self.epochs):
            raise ConfigError(
                f"MqarSettings: lengths={self.lengths}, pairs={self.pairs}, epochs={self.epochs}; give one of each for "
                "every length"
            )
        if not self.rates or len(set(self.rates)) < len(self.rates) or not 0 < self.tuning <= 1:
            raise ConfigError(
                f"MqarSettings.rates={self.rates}, tuning={self.tuning}; give at least one rate, each once, and a "
                "fraction above 0 and at most 1"
            )
        if self.workers < 1 or not 0 < self.stop_at <= 1:
            raise ConfigError("MqarSettings: workers is at least 1, and stop_at is above 0 and at most 1")
        for length, pairs in zip(self.lengths, self.pairs):
            self.language(length, pairs)

    def language(self, length: int, pairs: int) -> SyntheticLanguageConfig:
        return SyntheticLanguageConfig(
            task="mqar",
            vocab_size=self.vocab_size,
            length=length,
            n_pairs=pairs,
            random_non_queries=self.random_non_queries,
            n_train=self.n_train,
            n_validation=min(500, self.n_test),
            n_test=self.n_test,
        )


def quick() -> MqarSettings:
    return MqarSettings(
        n_sizes=1,
        lengths=(32,),
        pairs=(2,),
        epochs=(1,),
        rates=(1e-2,),
        vocab_size=16,
        n_train=1280,
        n_test=128,
        workers=1,
    )


def run_config(config: MqarSettings, model: str, size: int, length: int, rate: float) -> RunConfig:
    """The training run of a model in one of its sizes at a length."""
    d_model, mixer = SIZES[model][size]
    layer = BlockConfig(mixer=mixer, norm="layer")
    i = config.lengths.index(length)
    return RunConfig(
        model=LanguageModelConfig(
            vocab_size=config.vocab_size,
            d_model=d_model,
            layers=(layer, layer),
            norm="layer",
            max_positions=length if model in POSITIONED else None,
        ),
        data=config.language(length, config.pairs[i]),
        train=TrainConfig(
            epochs=config.epochs[i],
            batch_size=config.batch_size,
            lr=rate,
            warmup=0.1,
            seed=config.seed,
            evaluate_every=max(1, config.n_train // config.batch_size),
            evaluate_minutes=None,
            save_minutes=2.0,
            keep_last=1,
            log_every=100,
        ),
    )


def state_size(config: RunConfig) -> int:
    """Numbers of the state of all layers: what ``initial_state`` holds, and of attention its keys and values for a row
    of the full length."""
    length = cast(SyntheticLanguageConfig, config.data).resolved("length")
    model = cast(LanguageModel, config.model.build())
    total = 0
    for block, state in zip(model.blocks, model.initial_state(batch=1).layers):
        if isinstance(block.mixer, Attention):
            total += 2 * length * block.mixer.n_kv_heads * block.mixer.d_head
        else:
            total += sum(leaf.numel() for leaf in pytree.tree_leaves(state))
    return total


class _Reached(Exception):
    """The accuracy that ends a run was reached, and is saved."""


class _UntilReached(Reporter):
    """Passes everything on, and ends the run once a checkpoint has the accuracy: the first to have it is the best so
    far, and so is saved."""

    def __init__(self, reporter: Reporter, stop_at: float) -> None:
        self.reporter, self.stop_at = reporter, stop_at
        self.reached = False

    def begin(self, task: Any) -> None:
        self.reporter.begin(task)

    def event(self, record: Mapping[str, Any]) -> None:
        self.reporter.event(record)
        if record["kind"] == "evaluation":
            self.reached = record["accuracy"] > self.stop_at
        elif record["kind"] == "checkpoint" and self.reached:
            raise _Reached

    def progress(self, fraction: float, record: Mapping[str, Any]) -> None:
        self.reporter.progress(fraction, record)

    def close(self) -> None:
        self.reporter.close()


def train_and_test(run: RunConfig, folder: str, stop_at: float, reporter: Reporter) -> dict[str, Any]:
    """A part: trains the run, or goes on with it, until it has the accuracy or is at its end; then tests its best."""
    path = Path(folder)
    if not _has_reached(path, stop_at):
        try:
            result = train(run, path, resume=(path / RUN_FILE).exists(), reporter=_UntilReached(reporter, stop_at))
        except _Reached:
            pass
        else:
            if result.signal is not None:
                raise Stopped(result.signal)
    course = [line for line in read_metrics(path / METRICS_FILE) if line["kind"] == "evaluation"]
    model = load(resolve(path, "best"))
    record = open_task(run).evaluate(model, "test")
    return {
        "state": state_size(run),
        "parameters": sum(p.numel() for p in model.parameters()),
        "d_model": cast(LanguageModelConfig, run.model).d_model,
        "lr": run.train.lr,
        "steps": course[-1]["step"],
        "stopped_early": _has_reached(path, stop_at),
        "training_seconds": course[-1]["seconds"],
        "course": [(line["step"], line["accuracy"]) for line in course],
        "validation_loss": course[-1]["loss"],
        **{name: record[name] for name in ("accuracy", "accuracy_of_examples", "loss", "chance")},
    }


def _has_reached(folder: Path, stop_at: float) -> bool:
    file = folder / METRICS_FILE
    lines = read_metrics(file) if file.exists() else []
    return any(line["kind"] == "evaluation" and line["accuracy"] > stop_at for line in lines)


def run(config: MqarSettings, work: Work) -> Report:
    n_runs = len(config.models) * config.n_sizes * len(config.lengths)
    work.begin(n_runs + (len(config.models) * len(config.rates) if len(config.rates) > 1 else 0))
    rates = dict.fromkeys(config.models, config.rates[0])
    tuned: dict[str, dict[str, Any]] = {}
    if len(config.rates) > 1:
        tuned = work.parts(_tuning(config, work), n_workers=config.workers)
        for model in config.models:
            rates[model] = min(config.rates, key=lambda rate: tuned[f"rate-{model}-{rate:g}"]["validation_loss"])
    jobs = {}
    for length in config.lengths:
        for model in config.models:
            for size in range(config.n_sizes):
                part = f"{model}-{length}-{size}"
                jobs[part] = _job(config, work, part, run_config(config, model, size, length, rates[model]))
    return _report(config, work.parts(jobs, n_workers=config.workers), tuned)


def _tuning(config: MqarSettings, work: Work) -> dict[str, Job]:
    jobs, size = {}, min(1, config.n_sizes - 1)
    for model in config.models:
        for rate in config.rates:
            run = run_config(config, model, size, config.lengths[0], rate)
            short = replace(run, train=replace(run.train, epochs=config.tuning * config.epochs[0]))
            part = f"rate-{model}-{rate:g}"
            jobs[part] = _job(config, work, part, short)
    return jobs


def _job(config: MqarSettings, work: Work, part: str, run: RunConfig) -> Job:
    return Job(train_and_test, (run, str(work.folder / f"run-{part}"), config.stop_at))


def _report(
    config: MqarSettings, found: Mapping[str, Mapping[str, Any]], tuned: Mapping[str, Mapping[str, Any]]
) -> Report:
    """tuned: the short runs that the rates were chosen by, none if there was one rate."""
    tables, figures = [], {part: dict(run) for part, run in tuned.items()}
    for length, pairs in zip(config.lengths, config.pairs):
        rows = []
        for model in config.models:
            for size in range(config.n_sizes):
                part = found[f"{model}-{length}-{size}"]
                figures[f"{model}-{length}-{size}"] = {"model": model, "length": length, "pairs": pairs, **part}
                rows.append(
                    (
                        f"{NAMES[model]}, width {part['d_model']}",
                        f"{part['state']:,}",
                        f"{part['accuracy']:.1%}",
                        f"{part['accuracy_of_examples']:.1%}",
                        f"{part['parameters']:,}",
                        f"{part['lr']:g}",
                        f"{part['steps']:,}{'' if part['stopped_early'] else ' (all)'}",
                        f"{part['training_seconds']:,.0f}",
                    )
                )
        chance = next(iter(found.values()))["chance"]
        tables.append(
            Table(
                f"Length {length}, {pairs} pairs: test accuracy by state",
                ("", "state", "accuracy", "whole rows", "parameters", "rate", "steps", "s"),
                rows,
                (
                    f"Chance is {chance:.2%} of all values and {1 / pairs:.1%} among those of the row. State: numbers "
                    "of all layers; of attention its keys and values at the full length. Published as a plot, without "
                    "figures.",
                ),
            )
        )
    return Report(
        title="MQAR: what a state of so many numbers recalls",
        setting=(
            f"Two layers without MLP, pre-norm; vocabulary {config.vocab_size}, {config.n_train:,} rows for training, "
            f"{config.n_test:,} for the test, the loss at the queries. Lengths "
            f"{', '.join(f'{n} with {p} pairs' for n, p in zip(config.lengths, config.pairs))}; at most "
            f"{', '.join(f'{e:g}' for e in config.epochs)} epochs of batches of {config.batch_size}, ended at "
            f"{config.stop_at:.0%} on rows of their own; one seed."
        ),
        tables=tables,
        differences=(
            "Published (Arora et al. 2023, Zoology, arXiv:2312.04927, figure 2): vocabulary 8,192, 100,000 rows, "
            "64 epochs, batches of 512, widths of 64 to 512, lengths of 64 to 512, the best of four rates from 1e-4 to "
            "1e-2, weight decay 0.1, a cosine. Here a budget of about three minutes of one core a run.",
            f"One rate for each model, as the table has it, of {', '.join(f'{rate:g}' for rate in config.rates)}: the "
            f"one with the least validation loss after {config.tuning:.0%} of the epochs, at length "
            f"{config.lengths[0]} and one size.",
            "The steps between pairs and queries hold the token 0. (random_non_queries=true draws them: with a small "
            "vocabulary they then repeat keys of the row.)",
            "H3 has a register of 8 keys and N = 16 here (64 and 64 in its paper), so that its state is the smaller; "
            "attention and linear attention have learned positions, the other two none.",
            "An accuracy short of the end may be one that more training would raise: a run that was not ended early "
            "says what this budget gives, not what the state can hold.",
        ),
        figures=figures,
        plots=[drawn("mqar", "Accuracy against the size of the state", partial(_draw, config=config, found=found))],
    )


def _draw(drawing: Figure, config: MqarSettings, found: Mapping[str, Mapping[str, Any]]) -> None:
    axes = drawing.subplots()
    styles = ("-", "--", ":", "-.")
    for i, model in enumerate(config.models):
        for j, length in enumerate(config.lengths):
            parts = sorted(
                (found[f"{model}-{length}-{size}"] for size in range(config.n_sizes)), key=lambda part: part["state"]
            )
            is_history = model == "attention"
            axes.plot(
                [part["state"] for part in parts],
                [part["accuracy"] for part in parts],
                marker="*" if is_history else "o",
                markersize=11 if is_history else 6,
                linestyle="none" if is_history else styles[j % len(styles)],
                fillstyle="full" if j == 0 else "none",
                color=f"C{i}",
                label=f"{NAMES[model]}, length {length}" + (" (history)" if is_history else ""),
            )
    axes.set_xscale("log")
    axes.set(xlabel="numbers in the state", ylabel="test accuracy", ylim=(0, 1.03))
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)


REPRODUCTION = Reproduction(
    summary="MQAR: accuracy against state size for H3, linear attention, Mamba-2 and attention",
    duration="an hour on 2 cores",
    full=MqarSettings,
    quick=quick,
    run=run,
)
