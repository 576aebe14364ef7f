"""H3 at work: how it stores a key and its value and recalls the one by the other, by hand and in a trained layer."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
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
from statewise.reproduce.report import Report, Table, drawn
from statewise.reproduce.report import old_table as table
from statewise.reproduce.settings import Settings
from statewise.reproduce.synthetic import look_every
from statewise.reproduce.training import train_one
from statewise.reproduce.work import Job, Work
from statewise.train.config import RunConfig
from statewise.train.report import Reporter
from statewise.train.run_folder import read_run

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

        Errors: CheckpointError where ``model`` is no run or has no checkpoint; ConfigError for another task, a model
                without H3, and settings that fit no run.
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
    training = look_every(  # not by the clock: the best of these is looked into
        config.n_train // BATCH_SIZE,
        epochs=config.epochs,
        batch_size=BATCH_SIZE,
        lr=config.lr,
        dynamics_lr_max=1e-3,
        warmup=0.1,
        seed=config.seed,
        save_minutes=0.5,
        keep_last=2,
        log_every=100,
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
    """The model and its training, beside the published ones."""
    model, train, mixers = cast(LanguageModelConfig, run.model), run.train, _h3_mixers(run)
    budget = " or ".join(
        f"{number:,.12g} {unit}{'' if number == 1 else 's'}"
        for number, unit in ((train.steps, "step"), (train.epochs, "epoch"), (train.minutes, "minute"))
        if number is not None
    )
    inside, outside = {block.dropout for block in model.blocks}, model.embedding_dropout
    dropout = f"dropout {outside:g} of the embedding and {_listed(inside)} in the layers"
    registers = _listed(mixer.d_state if mixer.d_shift is None else mixer.d_shift for mixer in mixers)
    return (
        f"{len(mixers)} H3 {'layer' if len(mixers) == 1 else 'layers'} of {len(model.blocks)}, with a register of "
        f"{registers} keys and N = {_listed(mixer.d_state for mixer in mixers)}; at most {budget} at a rate of "
        f"{train.lr:g} with {SCHEDULES[train.schedule]}, {dropout if any({outside, *inside}) else 'without dropout'}"
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
    layer, example = found["layer"] + 1, found["example"]
    n_layers = len(cast(LanguageModelConfig, run.model).layers)
    language = open_synthetic_language(cast(SyntheticLanguageConfig, run.data))
    keys = language.language.symbols[1 : language.vocab_size // 2]  # behind "."; then as many values, and "=>"
    begun = f"{trained['step']:,} steps in {trained['seconds']:,.0f} s" if trained else f"the run in {config.model}"
    steps = {
        "K": by_hand.K,
        "store the key: K' = shift(K)": by_hand.shifted,
        "V": by_hand.V,
        "store the value: K'V enters": by_hand.entering,
        "state": by_hand.state,
        "Q": by_hand.Q,
        "recall: Q reads": by_hand.output,
    }
    taps = {f"layer {layer}, taps of the shift SSM: {n}": s for n, s in found["shift_taps"].items() if n != "all"}
    scores = {"the model": found["test"], **taps}
    tables = [
        Table(
            f"By hand: {by_hand.text}, answer {by_hand.answer or 'none'}",
            ("", *by_hand.text),
            [(name, *(_row(tensor) for tensor in tensors)) for name, tensors in steps.items()],
            ("A letter or digit: its direction. a3: the product of both, in the state.",),
        ),
        table(
            "The lookup of K' = (0, 0, 1), V = (0.7, 0.2, 0.1)",
            [("", str), ("reads", lambda name: ", ".join(f"{x:.1f}" for x in read[name]))],
            read,
        ),
        table(
            "Trained: associative recall, test split",
            [
                ("", str),
                ("accuracy", lambda name: f"{scores[name]['accuracy']:.1%}"),
                ("nats", lambda name: f"{scores[name]['nats']:.3f}"),
            ],
            scores,
            [
                f"{begun}; published: 99.8 % for H3 after 200 epochs, with a vocabulary of 10. Chance is "
                f"{100 * language.chance:.3g} %, with one of {language.vocab_size}."
            ],
        ),
        _reads_table(found, keys),
        _head_table(found),
    ]
    given = "" if config.model is None else " The model was given: the settings of one to be trained were not used."
    reads = f"Layer {layer}: what the query of a key reads of pairs of each key"
    shown = f"Layer {layer}, trained, reads {' '.join(example['tokens'])}, answer {example['answer']}"
    draw_table = partial(draw_reads, table=found["reads"]["table"], keys=keys)
    plots = [
        ("by-hand", "a3...a? by hand", partial(draw_by_hand, found=by_hand), 10.0, 6.0),
        ("lookup", "K'V, and what two queries read", partial(draw_lookup, key=key, value=value), 9.0, 3.0),
        ("trained", shown, partial(draw_trained, example=example), 11.0, 13.0),
        ("reads", reads, draw_table, 5.0, 4.0),
        ("filters", "Filters of these heads", partial(draw_filters, found=found), 10.0, 4.0),
    ]
    return Report(
        title="H3 at work: store the key, store the value, recall",
        setting=(
            "First a layer whose weights are zeros and ones, step by step; then a model of "
            f"{n_layers} {'layer' if n_layers == 1 else 'layers'}, trained on associative recall, of which the layer "
            "is shown that costs most when it is left out. A head is left out by making what it gives to W_O zero."
            f"{given}"
        ),
        tables=tables,
        differences=(
            "The published model has two layers with a register of 64 keys and N = 64, is trained for 200 epochs at a "
            f"rate of 5e-4 with embedding dropout 0.1, and scores 99.8 %. Here: {described(run)}.",
            "The articles show the mechanism by hand. A trained layer spreads it over channels that share the work, "
            "with signs and scales of their own; the MLPs and, with several layers, the layer before take a part.",
            "The skips (D) of both systems are part of their first tap here.",
        ),
        figures={
            "by_hand": {"text": by_hand.text, "answer": by_hand.answer, "output": by_hand.output[-1].tolist()},
            "lookup": read,
            "trained": {**found, "training": trained},
        },
        plots=[drawn(name, title, draw, width=width, height=height) for name, title, draw, width, height in plots],
    )


def _row(tensor: Tensor) -> str:
    """A vector or a matrix of one-hot directions in letters: "a", "3", "a3 b5"; "." for nothing."""
    places = tensor.nonzero().tolist()
    if tensor.ndim == 2:
        words = [KEYS[k] + VALUES[v] for k, v in places]
    else:
        words = [(KEYS if len(tensor) == len(KEYS) else VALUES)[i] for (i,) in places]
    return " ".join(words) or "."


def _reads_table(found: Mapping[str, Any], keys: Sequence[str]) -> Table:
    reads = found["reads"]
    rows = zip(keys, reads["table"], reads["own_share"])
    note = (
        "Of what the layer gives to the stream for a stored pair, what tells its values apart: root mean square "
        "over the values and the places. own share: of the squares of a row, that of the key's own pairs; "
        f"{statistics.mean(reads['own_share']):.1%} on average, {1 / len(keys):.0%} without a lookup."
    )
    return Table(
        f"Layer {found['layer'] + 1}: what a query reads, all heads together",
        ("key that asks", *(f"pairs of {key}" for key in keys), "own share"),
        [(key, *(f"{x:.3f}" for x in row), f"{share:.1%}") for key, row, share in rows],
        (note,),
    )


def _head_table(found: Mapping[str, Any]) -> Table:
    cost = {head["head"]: head for head in found["heads"] if head["layer"] == found["layer"]}
    filters, heads = found["filters"], found["described"]
    stored, read = [head["stores"]["key"] for head in heads], [head["read_by"] for head in heads]
    agree = sum(key == other for key, other in zip(stored, read))
    by_chance = sum(stored.count(key) * read.count(key) for key in set(stored)) / len(stored)  # were the readers dealt
    columns = [
        ("", lambda i: f"head {heads[i]['head']}"),
        ("points lost", lambda i: f"{100 * cost[heads[i]['head']]['lost']:.1f}"),
        ("nats lost", lambda i: f"{cost[heads[i]['head']]['nats']:.3f}"),
        ("stores most", lambda i: f"{stored[i]} with {heads[i]['stores']['value']}"),
        ("read by", lambda i: read[i]),
        ("shift's largest tap", lambda i: str(filters["shift_largest"][i])),
        ("half reach", lambda i: f"{filters['half_reach'][i]:,}"),
        ("half-life", lambda i: f"{filters['half_life'][i]:,.0f}"),
    ]
    notes = (
        "stores most: the key and value whose product, entering the state, stands out; read by: the key at the end "
        "whose Q stands out. Half reach: the last step at which the diagonal SSM's filter is at least half "
        "of its largest tap; half-life: of its slowest pole, in steps.",
        f"{_agreement(agree, len(heads))} By chance, with these keys stored and read, {by_chance:.1f} would be.",
    )
    title = f"Layer {found['layer'] + 1}: the heads that cost most when they are left out"
    return table(title, columns, range(len(heads)), notes)


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
