"""``reproduce h3-synthetics``, but on the very rows of H3's published code: is it the rows, or the code, that differ?

    git clone https://github.com/HazyResearch/safari
    python experiments/h3_on_published_rows.py safari runs/published-rows --task associative-recall --model h3 --seeds 8

Its 5,000 rows are learned, and its 500 test rows watched and tested, as published: the accuracy that ends a run and the
one that is told are of the same rows. Everything else is that of the reproduction. Stopped, it goes on from where it
was by the same command. Needs einops, as the checkout's modules do.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
from published_h3_synthetics import ROWS, TASKS, TEST_ROWS, open_checkout

from statewise.data.synthetic_languages import LanguageSplit, Rows
from statewise.reproduce.files import write_json
from statewise.reproduce.h3_synthetics import MIXERS, H3SyntheticsSettings, run_config
from statewise.reproduce.training import is_diverged, train_and_test
from statewise.reproduce.work import Stopped
from statewise.training.report import make_reporter

NAMES = {"induction-head": "induction_head", "associative-recall": "assoc_recall"}


def published_rows(checkout: Path, task: str) -> dict[str, Rows]:
    """Of each split; the validation rows are those of the test."""
    sizes = TASKS[NAMES[task]]
    module = open_checkout(checkout)("src.dataloaders.synthetics")
    data = module.ICLDataModule(ROWS, TEST_ROWS, sizes["vocab_size"], sizes["input_seq_len"], NAMES[task], seed=0)
    data.setup()
    train, test = (as_rows(*(t.numpy() for t in data.dataset[name].tensors)) for name in ("train", "test"))
    return {"train": train, "validation": test, "test": test}


def as_rows(inputs: np.ndarray, targets: np.ndarray) -> Rows:
    """The answer is due at the last input, and stands after the last earlier place of the same token."""
    last = inputs.shape[1] - 1
    sources = last - (inputs[:, last - 1 :: -1] == inputs[:, -1:]).argmax(1)[:, None]
    return Rows(inputs, targets[:, -1:], np.full_like(sources, last), sources)


def use(rows: dict[str, Rows]) -> None:
    """From now on these are the rows of every language's splits."""

    def chosen(self: LanguageSplit, numbers: np.ndarray) -> Rows:
        return Rows(*(array[np.asarray(numbers, np.int64)] for array in rows[self.name]))

    LanguageSplit.rows = chosen  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path, help="of github.com/HazyResearch/safari")
    parser.add_argument("folder", type=Path, help="of the runs")
    parser.add_argument("--task", choices=NAMES, default="associative-recall")
    parser.add_argument("--model", choices=MIXERS, default="h3")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--epochs", type=int, help="by default the task's")
    parser.add_argument("--out", type=Path, help="a JSON file for what was found")
    arguments = parser.parse_args()

    use(published_rows(arguments.checkout.resolve(), arguments.task))
    epochs = arguments.epochs or TASKS[NAMES[arguments.task]]["epochs"]
    config = H3SyntheticsSettings(
        models=(arguments.model,), tasks=(arguments.task,), epochs=(epochs,), seeds=tuple(range(arguments.seeds))
    )
    runs = {f"seed-{seed}": run_config(config, arguments.task, arguments.model, seed) for seed in config.seeds}
    try:
        part = train_and_test(runs, str(arguments.folder), make_reporter())
    except Stopped:
        sys.exit("stopped; the same command goes on from here")
    for name, seed in part["seeds"].items():
        lost = is_diverged(seed)
        print(name, "-" if lost else f"{100 * seed['accuracy']:.1f} in epoch {1 + int(np.argmax(seed['course']))}")
    if arguments.out is not None:
        record = {"task": arguments.task, "model": arguments.model, "epochs": epochs, **part}
        write_json(arguments.out, record)


if __name__ == "__main__":
    main()
