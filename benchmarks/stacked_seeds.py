"""Steps a second of several seeds trained side by side, against the same seeds one after the other.

    python benchmarks/stacked_seeds.py --threads 1

Whole steps (batches, forward, backward, clipping, AdamW) of runs on digits, pixel by pixel, with 32 channels; in turns,
the fastest of each. Prediction, written before the first run: at a batch of 4 the time goes between operations, and
eight seeds cost 2 to 3 times as much as one (a gain of 3 to 4; of three seeds 2); at the preset's batch of 32 it goes
in them, and the gain is 1.3 (three seeds) to 1.5 (eight).
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import torch

from statewise.configuration import assign
from statewise.train.course import learning_rate
from statewise.train.presets import PRESETS
from statewise.train.run_folder import open_run
from statewise.train.run_state import RunState
from statewise.train.stack import Member, Stack
from statewise.train.stack_folder import seeds_and_rates
from statewise.train.stacked_dropout import RandomNumbers
from statewise.train.tasks import run_types
from statewise.train.update import loss_function, update


def measure(n_seeds: int, batch_size: int, rounds: int, folder: Path) -> dict[str, float]:
    """The fastest step of each, in milliseconds for all seeds, and their ratio."""
    fields = ["model.d_model=32", f"train.batch_size={batch_size}"]
    runs = seeds_and_rates(assign(PRESETS["digits"](), fields, types=run_types()), n_seeds)
    with ExitStack() as stack:
        states = {
            (where, name): RunState(stack.enter_context(open_run(folder / where / name, run, resume=False)))
            for where in ("stacked", "alone")
            for name, run in runs.items()
        }
        stacked = Stack([Member(name, states["stacked", name], RandomNumbers(torch.device("cpu"))) for name in runs])
        alone = [(states["alone", name], loss_function(states["alone", name])) for name in runs]
        best = {"stacked": float("inf"), "alone": float("inf")}
        for _ in range(rounds):
            begun = time.perf_counter()
            stacked.update()
            middle = time.perf_counter()
            for state, loss_of in alone:
                update(state, learning_rate(state), loss_of, loss_of)
            best["alone"] = min(best["alone"], time.perf_counter() - middle)
            best["stacked"] = min(best["stacked"], middle - begun)
    return {
        "seeds": n_seeds,
        "batch_size": batch_size,
        "stacked_ms": 1e3 * best["stacked"],
        "alone_ms": 1e3 * best["alone"],
        "steps_per_second_of_each_stacked": 1 / best["stacked"],
        "steps_per_second_of_each_alone": 1 / best["alone"],
        "gain": best["alone"] / best["stacked"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for batch_size in (4, 32):
        for n_seeds in (3, 8):
            with tempfile.TemporaryDirectory() as folder:
                record = measure(n_seeds, batch_size, options.rounds, Path(folder))
            print(json.dumps({name: round(value, 3) for name, value in record.items()}), flush=True)


if __name__ == "__main__":
    main()
