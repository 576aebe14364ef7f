"""Cases that run on several ranks: functions, all of them in one set of processes for each world size.

    @case(2, 4)                                     a case of a module called distributed_cases_*.py
    def something_equals_something(place): ...      runs on every rank of the default process group (gloo)

Each case is a test of its own in test_distributed.py: it fails where it raised on some rank, and what it returned
(picklable) is there by rank. All ranks run the same cases in the same order, the worlds one after the other. A process
in which everything is imported is forked into the ranks, so that no rank imports anything.

    python distributed_harness.py FOLDER            runs all cases, and leaves FOLDER/<world>/<case>.<rank>
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from forked_programs import ran

WORLDS = (2, 4)
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}  # the ranks are forked, and there may be more of them than GPUs
PATIENCE = 300.0  # seconds without another case's end; on a quiet machine all of them take a few
TOGETHER = timedelta(seconds=240)  # before a rank gives the others up
CASES: dict[str, tuple[Callable[[Place], Any], tuple[int, ...]]] = {}


@dataclass(frozen=True)
class Place:
    """Where a case runs. ``folder`` is shared by all ranks, cases and worlds; a case makes what it needs in it."""

    rank: int
    size: int
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """Of a case: what each rank returned, or the traceback of the first one that raised; CPU seconds of all ranks."""

    returned: list[Any]
    failure: str | None
    seconds: float


def case(*worlds: int) -> Callable[[Callable[[Place], Any]], Callable[[Place], Any]]:
    """Registers a function as a case for these world sizes."""

    def register(function: Callable[[Place], Any]) -> Callable[[Place], Any]:
        assert function.__name__ not in CASES, f"there are two cases called {function.__name__}"
        CASES[function.__name__] = (function, worlds)
        return function

    return register


def load_cases() -> dict[str, tuple[Callable[[Place], Any], tuple[int, ...]]]:
    """All cases there are, in the order of their modules and within them."""
    this = sys.modules["distributed_harness"] = sys.modules[__name__]  # also when it is run as a program
    for path in sorted(Path(__file__).parent.glob("distributed_cases_*.py")):
        importlib.import_module(path.stem)
    return this.CASES


def outcome_of(folder: Path, world: int, name: str) -> Outcome:
    """What the program left of a case."""
    found = [folder / str(world) / f"{name}.{rank}" for rank in range(world)]
    records = [pickle.loads(path.read_bytes()) if path.exists() else None for path in found]
    failures = [text for record in records if record is not None and (text := record[1]) is not None]
    if not failures and None in records:
        failures = [f"{name} did not end on rank {records.index(None)}"]
    first = min(failures, key=lambda text: any(w in text for w in ("closed by peer", "Timed out")), default=None)
    seconds = sum(record[2] for record in records if record is not None)
    return Outcome([None if record is None else record[0] for record in records], first, seconds)


def run_program(folder: Path) -> None:
    """Runs this file as a program, unless another worker of pytest-xdist does or did so: then waits for it."""
    import fcntl

    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (folder / "done").exists():
            return
        environment = {**os.environ, **NO_GPU, "OMP_NUM_THREADS": "1", "STATEWISE_CACHE": str(folder / "cache")}
        root = str(Path(__file__).parents[1])
        environment["PYTHONPATH"] = os.pathsep.join(
            [root, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        )
        result = ran([__file__, folder], env=environment)
        (folder / "done").write_text(result.stdout + result.stderr)


def main(folder: Path) -> None:
    import torch
    import torch._dynamo  # so that no rank imports it

    from statewise.training.distributed import several

    torch.set_num_threads(1)
    # The groups of a mesh have threads that wake a hundred times a second, for as long as there is a process
    several.lay_out = cache(several.lay_out)
    cases = load_cases()
    for world in WORLDS:
        left = [name for name, (_, worlds) in cases.items() if world in worlds]
        (folder / str(world)).mkdir(exist_ok=True)
        attempt = 0
        while left:  # once, unless a case fails: the ranks behind it are then no longer in step
            spawn(folder, world, left, attempt)
            n_done = next((i for i, name in enumerate(left) if outcome_of(folder, world, name).failure), len(left))
            left, attempt = left[n_done + 1 :], attempt + 1


def spawn(folder: Path, world: int, names: list[str], attempt: int) -> None:
    """Forks the ranks; when one has failed, or none of them gets anywhere, ends the others."""
    children = set()
    for rank in range(world):
        child = os.fork()
        if child == 0:
            os._exit(run_rank(folder, rank, world, names, attempt))
        children.add(child)
    end, n_before = time.monotonic() + PATIENCE, 0
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child == 0:
            time.sleep(0.05)
        children.discard(child)
        n_ended = len(os.listdir(folder / str(world)))
        if n_ended > n_before:
            end, n_before = time.monotonic() + PATIENCE, n_ended
        if status or time.monotonic() > end:
            time.sleep(1.0 if status else 0.0)  # the others say what they met
            for other in children:
                os.kill(other, signal.SIGKILL)
            end = time.monotonic() + PATIENCE


def run_rank(folder: Path, rank: int, world: int, names: list[str], attempt: int) -> int:
    import torch.distributed as dist

    store = f"file://{folder}/store-{world}-{attempt}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world, timeout=TOGETHER)
    place = Place(rank, world, folder)
    for name in names:
        returned, failure, begun = None, None, time.process_time()
        try:
            returned = CASES[name][0](place)
            dist.barrier()
        except BaseException:
            failure = f"on rank {rank}: {traceback.format_exc()}"
        (folder / str(world) / f"{name}.{rank}").write_bytes(
            pickle.dumps((returned, failure, time.process_time() - begun))
        )
        if failure is not None:
            return 1
    dist.destroy_process_group()
    return 0


def run_killed(folder: Path, n_ranks: int, kills: list[tuple[int, str, int]]) -> Any:
    """A run of distributed_killed.py under torchrun, with these ranks killed at these steps; what it printed last."""
    program = Path(__file__).parent / "distributed_killed.py"
    environment = {**os.environ, **NO_GPU, "OMP_NUM_THREADS": "1", "STATEWISE_CACHE": str(folder / "cache")}
    environment["PYTHONPATH"] = os.pathsep.join([str(program.parents[1]), str(program.parent)])
    result = ran([program, folder, str(n_ranks), json.dumps(kills)], env=environment)
    assert result.returncode == 0, result.stderr[-4000:]
    return json.loads(result.stdout.splitlines()[-1])


if __name__ == "__main__":
    main(Path(sys.argv[1]))
