"""H3 at work: how it stores a key and its value and recalls the one by the other, by hand and in a trained layer."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from statewise.checkpoints import load, resolve
from statewise.data.synthetic_languages import SyntheticLanguageConfig, open_synthetic_language
from statewise.models.language_model import LanguageModel, LanguageModelConfig
from statewise.reproduce.h3_at_work.by_hand import KEYS, VALUES, lookup, trace
from statewise.reproduce.h3_at_work.findings import findings
from statewise.reproduce.h3_at_work.pictures import draw_by_hand, draw_filters, draw_lookup, draw_reads, draw_trained
from statewise.reproduce.h3_at_work.settings import H3AtWorkSettings, described, quick
from statewise.reproduce.registry import Reproduction
from statewise.reproduce.report import Report, drawn
from statewise.reproduce.work import Stopped, Work
from statewise.train.config import RunConfig
from statewise.train.loop import train
from statewise.train.run_folder import RUN_FILE
from statewise.train.tasks.base import Table

RUN = "run"  # the folder of the training run within the reproduction's


def run(config: H3AtWorkSettings, work: Work) -> Report:
    run = config.run()
    work.begin(2)
    trained = work.part("train", partial(_train, run, work) if config.model is None else dict)
    folder = work.folder / RUN if config.model is None else Path(config.model)
    found = work.part("inside", partial(_inside, config, run, folder))
    return _report(config, run, trained, found)


def _train(run: RunConfig, work: Work) -> dict[str, Any]:
    folder = work.folder / RUN
    result = train(run, folder, resume=(folder / RUN_FILE).exists(), reporter=work.training())
    if result.signal is not None:
        raise Stopped(result.signal)
    return {"step": result.step, "seconds": result.seconds, "validation": result.validation}


def _inside(config: H3AtWorkSettings, run: RunConfig, folder: Path) -> dict[str, Any]:
    model = cast(LanguageModel, load(resolve(folder, "best")))
    split = open_synthetic_language(cast(SyntheticLanguageConfig, run.data)).split("test")
    return findings(model, split, max_rows=config.max_rows, example=config.example)


def _report(config: H3AtWorkSettings, run: RunConfig, trained: Mapping[str, Any], found: Mapping[str, Any]) -> Report:
    by_hand = trace(config.text)
    key, value = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.7, 0.2, 0.1])
    queries = {"Q = K'": key, "Q orthogonal to K'": torch.tensor([0.0, 1.0, 0.0])}
    read = {name: lookup(key, value, query).tolist() for name, query in queries.items()}
    test, layer, example = found["test"], found["layer"], found["example"]
    n_layers = len(cast(LanguageModelConfig, run.model).layers)
    language = open_synthetic_language(cast(SyntheticLanguageConfig, run.data))
    keys = language.language.symbols[1 : language.vocab_size // 2]  # behind "."; then as many values, and "=>"
    begun = f"{trained['step']:,} steps in {trained['seconds']:,.0f} s" if trained else f"the run in {config.model}"
    figures = {
        "by_hand": {"text": by_hand.text, "answer": by_hand.answer, "output": by_hand.output[-1].tolist()},
        "lookup": read,
        "trained": {**found, "training": dict(trained)},
    }
    text = [
        (name, *(_row(tensor) for tensor in steps))
        for name, steps in (
            ("K", by_hand.K),
            ("store the key: K' = shift(K)", by_hand.shifted),
            ("V", by_hand.V),
            ("store the value: K'V enters", by_hand.entering),
            ("state", by_hand.state),
            ("Q", by_hand.Q),
            ("recall: Q reads", by_hand.output),
        )
    ]
    tables = [
        Table(
            f"By hand: {by_hand.text}, answer {by_hand.answer or 'none'}",
            ("", *by_hand.text),
            text,
            ("A letter or digit: its direction. a3: the product of both, in the state.",),
        ),
        Table(
            "The lookup of K' = (0, 0, 1), V = (0.7, 0.2, 0.1)",
            ("", "reads"),
            [(name, ", ".join(f"{x:.1f}" for x in values)) for name, values in read.items()],
        ),
        Table(
            "Trained: associative recall, test split",
            ("", "accuracy", "nats"),
            [
                ("the model", f"{test['accuracy']:.1%}", f"{test['nats']:.3f}"),
                *(
                    (f"layer {layer + 1}, taps of the shift SSM: {name}", f"{s['accuracy']:.1%}", f"{s['nats']:.3f}")
                    for name, s in found["shift_taps"].items()
                    if name != "all"
                ),
            ],
            (
                f"{begun}; published: 99.8 % for H3 after 200 epochs, with a vocabulary of 10. Chance is "
                f"{100 * language.chance:.3g} %, with one of {language.vocab_size}.",
            ),
        ),
        _reads_table(found, keys),
        _head_table(found),
    ]
    return Report(
        title="H3 at work: store the key, store the value, recall",
        setting=(
            "First a layer whose weights are zeros and ones, step by step; then a model of "
            f"{n_layers} {'layer' if n_layers == 1 else 'layers'}, trained on associative recall, of which the layer "
            "is shown that costs most when it is left out. A head is left out by making what it gives to W_O zero."
            + ("" if config.model is None else " The model was given: the settings of one to be trained were not used.")
        ),
        tables=tables,
        differences=(
            "The published model has two layers with a register of 64 keys and N = 64, is trained for 200 epochs at a "
            "rate of 5e-4 with embedding dropout 0.1, and scores 99.8 %. "
            f"Here: {described(run)}.",
            "The articles show the mechanism by hand. A trained layer spreads it over channels that share the work, "
            "with signs and scales of their own; the MLPs and, with several layers, the layer before take a part.",
            "The skips (D) of both systems are part of their first tap here.",
        ),
        figures=figures,
        plots=[
            drawn("by-hand", "a3...a? by hand", partial(draw_by_hand, found=by_hand), width=10, height=6),
            drawn(
                "lookup",
                "K'V, and what two queries read",
                partial(draw_lookup, key=key, value=value),
                width=9,
                height=3,
            ),
            drawn(
                "trained",
                f"Layer {layer + 1}, trained, reads {' '.join(example['tokens'])}, answer {example['answer']}",
                partial(draw_trained, example=example),
                width=11,
                height=13,
            ),
            drawn(
                "reads",
                f"Layer {layer + 1}: what the query of a key reads of pairs of each key",
                partial(draw_reads, table=found["reads"]["table"], keys=keys),
                width=5,
                height=4,
            ),
            drawn("filters", "Filters of these heads", partial(draw_filters, found=found), width=10, height=4),
        ],
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
    own = statistics.mean(reads["own_share"])
    return Table(
        f"Layer {found['layer'] + 1}: what a query reads, all heads together",
        ("key that asks", *(f"pairs of {key}" for key in keys), "own share"),
        [
            (key, *(f"{x:.3f}" for x in row), f"{share:.1%}")
            for key, row, share in zip(keys, reads["table"], reads["own_share"])
        ],
        (
            "Of what the layer gives to the stream for a stored pair, what tells its values apart: root mean square "
            "over the values and the places. own share: of the squares of a row, that of the key's own pairs; "
            f"{own:.1%} on average, {1 / len(keys):.0%} without a lookup.",
        ),
    )


def _head_table(found: Mapping[str, Any]) -> Table:
    lost = {(head["layer"], head["head"]): head for head in found["heads"]}
    filters = found["filters"]
    rows = []
    for i, head in enumerate(found["described"]):
        cost = lost[found["layer"], head["head"]]
        rows.append(
            (
                f"head {head['head']}",
                f"{100 * cost['lost']:.1f}",
                f"{cost['nats']:.3f}",
                f"{head['stores']['key']} with {head['stores']['value']}",
                head["read_by"],
                str(filters["shift_largest"][i]),
                f"{filters['half_reach'][i]:,}",
                f"{filters['half_life'][i]:,.0f}",
            )
        )
    agree = sum(head["stores"]["key"] == head["read_by"] for head in found["described"])
    return Table(
        f"Layer {found['layer'] + 1}: the heads that cost most when they are left out",
        ("", "points lost", "nats lost", "stores most", "read by", "shift's largest tap", "half reach", "half-life"),
        rows,
        (
            "stores most: the key and value whose product, entering the state, stands out; read by: the key at the end "
            "whose Q stands out. Half reach: the last step at which the diagonal SSM's filter is at least half "
            "of its largest tap; half-life: of its slowest pole, in steps.",
            f"{_agreement(agree, len(rows))} By chance, with these keys stored and read, {_by_chance(found):.1f} "
            "would be.",
        ),
    )


def _by_chance(found: Mapping[str, Any]) -> float:
    """How many heads would be read by what they store, were the keys that read dealt anew among them."""
    stored = [head["stores"]["key"] for head in found["described"]]
    read = [head["read_by"] for head in found["described"]]
    return sum(stored.count(key) * read.count(key) for key in set(stored)) / len(stored)


def _agreement(agree: int, of: int) -> str:
    """How many heads are read by what they store.

    >>> _agreement(1, 4), _agreement(0, 1)
    ('1 of these 4 heads is read by the key that it stores.', 'This head is not read by the key that it stores.')
    """
    if of == 1:
        return f"This head is {'' if agree else 'not '}read by the key that it stores."
    verbs = "is read by the key that it stores" if agree == 1 else "are read by the key that they store"
    return f"{agree} of these {of} heads {verbs}."


REPRODUCTION = Reproduction(
    summary="H3 stores a key, its value, and recalls it: by hand, and inside a trained layer, as heat maps",
    duration="a minute or two",
    full=H3AtWorkSettings,
    quick=quick,
    run=run,
)
