"""H3 at work: how it stores a key and its value and recalls the one by the other, by hand and in a trained layer."""

from __future__ import annotations

import operator
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

import torch
from torch import Tensor

from statewise.checkpoints import load, resolve
from statewise.configuration.types import Count, Depth, EvenWidth, Natural, Positive, Seed, Width, at_least
from statewise.data.base import absolute
from statewise.data.synthetic_languages import AssociativeRecallConfig, SyntheticLanguageConfig, open_synthetic_language
from statewise.errors import ConfigError
from statewise.mixers.h3 import H3Config
from statewise.models.block import BlockConfig
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.models.mlp import MLPConfig
from statewise.reproduce.claim import Claim
from statewise.reproduce.h3_at_work.by_hand import KEYS, VALUES, lookup, trace
from statewise.reproduce.h3_at_work.findings import findings
from statewise.reproduce.h3_at_work.pictures import draw_by_hand, draw_filters, draw_lookup, draw_reads, draw_trained
from statewise.reproduce.page import told
from statewise.reproduce.report import Report, drawn
from statewise.reproduce.settings import Settings
from statewise.reproduce.synthetic import look_every
from statewise.reproduce.training import train_one
from statewise.reproduce.work import Job, Work
from statewise.training.config import BudgetConfig, OptimizerConfig, RunConfig, ScheduleConfig, TrainConfig
from statewise.training.report import Reporter
from statewise.training.run_folder import read_run

BATCH_SIZE = 32
SCHEDULES = {"cosine": "a cosine", "linear": "a straight line down", "wsd": "a constant rate that falls at the end"}


@dataclass(frozen=True, kw_only=True)
class H3AtWorkSettings(Settings):
    """text:     for the layer that is set by hand: keys a-d, values 1-5, and dots; it ends with a key
    model:    a training run of a model with H3 on associative recall to look into; None: one is trained
    d_model, n_layers, d_state, d_shift, d_head:   of the model that is trained
    epochs, lr, n_train:   how
    max_rows: of the test split, to measure on
    example:  the row of the test split that is shown
    seed:     of the run
    """

    text: str = "a3b5.c1.a?"
    model: str | None = None
    d_model: Width = 32
    n_layers: Depth = 1
    d_state: EvenWidth = 16
    d_shift: Count | None = 4
    d_head: Count = 1
    epochs: Count = 24
    lr: Positive = 1e-2
    n_train: Annotated[int, at_least(BATCH_SIZE)] = 5000
    max_rows: Count = 500
    example: Natural = 0
    seed: Seed = 0

    def check(self) -> None:
        asks = trace(self.text).text[-1] in KEYS
        self.require(asks, f"text={self.text!r} asks for nothing; end it with a key, one of {', '.join(KEYS)}")
        if self.model is not None:
            object.__setattr__(self, "model", absolute(self.model))
        n_test = cast(SyntheticLanguageConfig, self.run().data).n_test
        self.require(
            self.example < min(self.max_rows, n_test),
            f"example={self.example} is none of the rows that are read: max_rows={self.max_rows}, and the test split "
            f"has {n_test}; use a number from 0 and below both",
        )

    def run(self) -> RunConfig:
        """The run of the model that is looked into.

        Errors: CheckpointError if ``model`` is not a run or has no checkpoint; ConfigError for another task, a model
                without H3, and settings that do not fit the run.
        """
        return run_config(self) if self.model is None else _given(Path(self.model))


def run_config(config: H3AtWorkSettings) -> RunConfig:
    """The published width 32 and MLP for the task; one layer and short systems, which learn it much sooner."""
    config.require(
        config.d_model % config.d_head == 0,
        f"d_model={config.d_model} is not a multiple of d_head={config.d_head}; change either",
    )
    data = AssociativeRecallConfig(n_train=config.n_train)
    mixer = H3Config(d_state=config.d_state, d_shift=config.d_shift, d_head=config.d_head)
    layer = BlockConfig(mixer=mixer, mlp=MLPConfig(expand=4, activation="gelu_tanh"), norm="layer")
    layers, vocab_size = (layer,) * config.n_layers, data.vocab_size
    model = LanguageModelConfig(vocab_size=vocab_size, d_model=config.d_model, layers=layers, norm="layer")
    looks = config.n_train // BATCH_SIZE  # not by the clock: the best of these is looked into
    training = TrainConfig(
        budget=BudgetConfig(epochs=config.epochs),
        optimizer=OptimizerConfig(lr=config.lr, dynamics_lr_max=1e-3),
        schedule=ScheduleConfig(warmup=0.1),
        reporting=look_every(looks, save_minutes=0.5, keep_last=2, log_every=100),
        batch_size=BATCH_SIZE,
        seed=config.seed,
    )
    return RunConfig(model=model, data=data, train=training)


def _given(folder: Path) -> RunConfig:
    """Errors: CheckpointError where there is no run, or no checkpoint in it; ConfigError for another task, or a model
    without H3."""
    run = read_run(folder)
    if not isinstance(run.data, AssociativeRecallConfig):
        raise ConfigError(
            f"{folder} was not trained on associative recall; give a run of the preset associative-recall"
        )
    if not _h3_mixers(run):
        raise ConfigError(f"the model in {folder} has no H3 layer to look into; give one that has")
    resolve(folder, "best")
    return run


def _h3_mixers(run: RunConfig) -> list[H3Config]:
    blocks = cast(LanguageModelConfig, run.model).blocks
    return [block.mixer for block in blocks if isinstance(block.mixer, H3Config)]


def described(run: RunConfig) -> str:
    """The model and its training, next to the published ones."""
    model, train, mixers = cast(LanguageModelConfig, run.model), run.train, _h3_mixers(run)
    ends = train.budget
    budget = " or ".join(
        f"{number:,.12g} {unit}{'' if number == 1 else 's'}"
        for number, unit in ((ends.steps, "step"), (ends.epochs, "epoch"), (ends.minutes, "minute"))
        if number is not None
    )
    inside, outside = {block.dropout for block in model.blocks}, model.embedding_dropout
    dropout = f"dropout {outside:g} of the embedding and {_listed(inside)} in the layers"
    registers = _listed(mixer.d_state if mixer.d_shift is None else mixer.d_shift for mixer in mixers)
    return (
        f"{len(mixers)} H3 {'layer' if len(mixers) == 1 else 'layers'} of {len(model.blocks)}, with a register of "
        f"{registers} keys and N = {_listed(mixer.d_state for mixer in mixers)}; at most {budget} at a rate of "
        f"{train.optimizer.lr:g} with {SCHEDULES[train.schedule.kind]}, "
        f"{dropout if any({outside, *inside}) else 'without dropout'}"
    )


def _listed(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in sorted(set(numbers)))


class Found(NamedTuple):
    run: RunConfig
    training: Mapping[str, Any]  # nothing of a model that was given
    inside: Mapping[str, Any]  # as ``findings``


def measure(config: H3AtWorkSettings, work: Work) -> Found:
    run, folder = config.run(), work.folder / "run" if config.model is None else Path(config.model)
    work.begin(2)
    jobs = {
        "train": Job(train_model, (run, str(folder)) if config.model is None else (None, "")),
        "inside": Job(look_inside, (config, run, str(folder))),
    }
    return Found(run, *work.parts(jobs).values())


def train_model(run: RunConfig | None, folder: str, reporter: Reporter) -> dict[str, Any]:
    """None: the model is trained."""
    if run is None:
        return {}
    result = train_one(run, Path(folder), reporter)
    return {"step": result.step, "seconds": result.seconds, "validation": result.validation}


def look_inside(config: H3AtWorkSettings, run: RunConfig, folder: str, reporter: Reporter) -> dict[str, Any]:
    model = cast(LanguageModel, load(resolve(Path(folder), "best")))
    split = open_synthetic_language(cast(SyntheticLanguageConfig, run.data)).split("test")
    return findings(model, split, max_rows=config.max_rows, example=config.example)


def report(config: H3AtWorkSettings, results: Found) -> Report:
    run, trained, found = results
    by_hand = trace(config.text)
    key, value = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.7, 0.2, 0.1])
    queries = {"Q = K'": key, "Q orthogonal to K'": torch.tensor([0.0, 1.0, 0.0])}
    read = {name: lookup(key, value, query).tolist() for name, query in queries.items()}
    layer, example, reads = found["layer"] + 1, found["example"], found["reads"]
    language = open_synthetic_language(cast(SyntheticLanguageConfig, run.data))
    keys = language.language.symbols[1 : language.vocab_size // 2]  # behind "."; then as many values, and "=>"
    steps = {
        "K": by_hand.K,
        "store the key: K' = shift(K)": by_hand.shifted,
        "V": by_hand.V,
        "store the value: K'V enters": by_hand.entering,
        "state": by_hand.state,
        "Q": by_hand.Q,
        "recall: Q reads": by_hand.output,
    }
    scores = {"the model": found["test"]}
    scores |= {f"layer {layer}, taps of the shift SSM: {n}": s for n, s in found["shift_taps"].items() if n != "all"}
    heads = _heads(found)
    stored, readers = [head["stores"]["key"] for head in heads], [head["read_by"] for head in heads]
    n_layers = len(cast(LanguageModelConfig, run.model).layers)
    shown = f"Layer {layer}, trained, reads {' '.join(example['tokens'])}, answer {example['answer']}"
    draw_table = partial(draw_reads, table=reads["table"], keys=keys)
    plots = [
        ("by-hand", "a3...a? by hand", partial(draw_by_hand, found=by_hand), 10.0, 6.0),
        ("lookup", "K'V, and what two queries read", partial(draw_lookup, key=key, value=value), 9.0, 3.0),
        ("trained", shown, partial(draw_trained, example=example), 11.0, 13.0),
        ("reads", f"Layer {layer}: what the query of a key reads of pairs of each key", draw_table, 5.0, 4.0),
        ("filters", "Filters of these heads", partial(draw_filters, found=found), 10.0, 4.0),
    ]
    return told(
        "h3-at-work",
        {
            "model": config.model,
            "n_layers": n_layers,
            "layers": "layer" if n_layers == 1 else "layers",
            "by_hand": by_hand.text,
            "answer": by_hand.answer or "none",
            "begun": f"{trained['step']:,} steps in {trained['seconds']:,.0f} s"
            if trained
            else f"the run in {config.model}",
            "chance": 100 * language.chance,
            "vocab_size": language.vocab_size,
            "layer": layer,
            "pairs_of": [f"pairs of {key}" for key in keys],
            "own_share": statistics.mean(reads["own_share"]),
            "even_share": 1 / len(keys),
            "agreement": _agreement(sum(map(operator.eq, stored, readers)), len(heads)),
            "by_chance": sum(map(readers.count, stored)) / len(stored),  # were the readers dealt
            "described": described(run),
        },
        [{"name": name, "steps": [*map(_row, tensors)]} for name, tensors in steps.items()],
        [{"name": name, "read": ", ".join(f"{x:.1f}" for x in values)} for name, values in read.items()],
        [{"name": name, **one} for name, one in scores.items()],
        [
            {"key": key, "reads": row, "share": share}
            for key, row, share in zip(keys, reads["table"], reads["own_share"])
        ],
        heads,
        figures={
            "by_hand": {"text": by_hand.text, "answer": by_hand.answer, "output": by_hand.output[-1].tolist()},
            "lookup": read,
            "trained": {**found, "training": trained},
        },
        plots=[drawn(name, title, draw, width=width, height=height) for name, title, draw, width, height in plots],
    )


def _heads(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the table says of each head that is shown."""
    cost = {head["head"]: head for head in found["heads"] if head["layer"] == found["layer"]}
    filters = {name: found["filters"][name] for name in ("shift_largest", "half_reach", "half_life")}
    return [
        {**head, **cost[head["head"]], **{name: values[i] for name, values in filters.items()}}
        for i, head in enumerate(found["described"])
    ]


def _row(tensor: Tensor) -> str:
    """A vector or a matrix of one-hot directions in letters: "a", "3", "a3 b5"; "." for nothing."""
    names = KEYS if len(tensor) == len(KEYS) else VALUES
    return " ".join(KEYS[p[0]] + VALUES[p[1]] if len(p) == 2 else names[p[0]] for p in tensor.nonzero().tolist()) or "."


def _agreement(agree: int, of: int) -> str:
    """How many heads are read by what they store.

    >>> _agreement(1, 4), _agreement(0, 1)
    ('1 of these 4 heads is read by the key that it stores.', 'This head is not read by the key that it stores.')
    """
    if of == 1:
        return f"This head is {'' if agree else 'not '}read by the key that it stores."
    verbs = "is read by the key that it stores" if agree == 1 else "are read by the key that they store"
    return f"{agree} of these {of} heads {verbs}."


CLAIM = Claim(
    summary="H3 stores a key, its value, and recalls it: by hand, and inside a trained layer, as heat maps",
    duration="a minute or two",
    source="Fu et al. 2023 (H3), arXiv:2212.14052, table 2, and the articles that draw its trace",
    settings=H3AtWorkSettings,
    quick="d_model=16 d_state=8 epochs=1 n_train=320 max_rows=64",
    measure=measure,
    report=report,
)
