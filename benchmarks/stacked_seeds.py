"""Steps a second of several seeds: stacked in one process, and in two worker processes.

    python benchmarks/stacked_seeds.py [PRESET ...]

Whole steps (batches, forward, backward, clipping, AdamW) of four seeds of each preset, three ways in turns, the median
of the rounds:

    stacked          one process, two threads, the four seeds as one stacked model
    workers          two processes, one thread each, two seeds each, one step after the other
    stacked workers  two processes, one thread each, two seeds stacked in each
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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

USERS = ("digits", "acsf1", "co2", "associative-recall", "selective-copying")
WAYS = {"stacked": (True, 1), "workers": (False, 2), "stacked workers": (True, 2)}  # stacked, processes


def work(preset: str, seeds: list[int], stacked: bool, threads: int, seconds: float, begin: Any, found: Any) -> None:
    """The seed-steps a second of one process."""
    torch.set_num_threads(threads)
    run = assign(PRESETS[preset](), [f"train.seed={seeds[0]}", "train.check_memory=false"], types=run_types())
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        runs = seeds_and_rates(run, len(seeds))
        states = {n: RunState(stack.enter_context(open_run(folder / n, r, resume=False))) for n, r in runs.items()}
        if stacked:
            step = Stack([Member(n, s, RandomNumbers(torch.device("cpu"))) for n, s in states.items()]).update
        else:
            losses = {n: loss_function(state) for n, state in states.items()}

            def step() -> None:
                for n, state in states.items():
                    update(state, learning_rate(state), losses[n], losses[n])

        step()
        begin.wait()
        begun, steps = time.perf_counter(), 0
        while (passed := time.perf_counter() - begun) < seconds or steps < 2:
            step()
            steps += 1
        found.put(steps * len(seeds) / passed)


def measure(preset: str, way: str, seconds: float) -> float:
    stacked, n = WAYS[way]
    context = multiprocessing.get_context("spawn")
    begin, found = context.Barrier(n), context.Queue()
    each = 4 // n
    processes = [
        context.Process(
            target=work, args=(preset, list(range(i * each, (i + 1) * each)), stacked, 2 // n, seconds, begin, found)
        )
        for i in range(n)
    ]
    for process in processes:
        process.start()
    total = sum(found.get() for _ in processes)
    for process in processes:
        process.join()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=USERS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    for preset in options.presets:
        rates: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(options.rounds):
            for way, of_way in rates.items():
                of_way.append(measure(preset, way, options.seconds))
        medians = {way: statistics.median(of_way) for way, of_way in rates.items()}
        gains = {f"{way} / workers": medians[way] / medians["workers"] for way in ("stacked", "stacked workers")}
        print(json.dumps({"preset": preset} | {k: round(v, 3) for k, v in (medians | gains).items()}), flush=True)


if __name__ == "__main__":
    main()
