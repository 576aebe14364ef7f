"""Peak memory of one side of a case above its inputs, from a process of its own."""

from __future__ import annotations

import ctypes
import gc
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import torch

from statewise.benchmark.case import Action, Missing, n_bytes
from statewise.native import reused

STATUS = Path("/proc/self/status")


@dataclass(frozen=True)
class Peak:
    """Bytes: the most held at one time above the inputs; those of them that are outputs."""

    peak: int
    outputs: int

    @property
    def above_outputs(self) -> int:
        return max(0, self.peak - self.outputs)


def peak_memory(workload: str, case: str, side: str, *, quick: bool = False, threads: int | None = None) -> Peak:
    """Runs the side once in a fresh process, after once in small so that what is loaded on first use does not count.

    When quick it runs in this process, where earlier work may hide what it takes.

    Errors:  Missing where the side cannot run.
    """
    asked = (workload, case, side, quick, torch.get_num_threads() if threads is None else threads)
    if quick:
        found = _measure_in_this_process(*asked)
    else:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found = pool.submit(_measure_in_this_process, *asked).result()
    if isinstance(found, str):
        raise Missing(found)
    return Peak(*found)


def _measure_in_this_process(workload: str, case: str, side: str, quick: bool, threads: int) -> tuple[int, int] | str:
    from statewise.benchmark.workloads import WORKLOADS

    torch.set_num_threads(threads)
    try:
        WORKLOADS[workload].case(case, True).sides[side]()()
        action = WORKLOADS[workload].case(case, quick).sides[side]()
    except Missing as reason:
        return str(reason)
    return raised_by(action)


def raised_by(action: Action) -> tuple[int, int]:
    """How far one call raises the most memory that this process has held, and the bytes of what it gives."""
    gc.collect()
    _give_back()
    before = _forget_the_most()
    outputs = action()
    return max(0, _most() - before), n_bytes(outputs)


def _give_back() -> None:
    """Free memory that an allocator keeps would hide what is allocated next."""
    reused.let_go()
    if sys.platform == "linux":
        ctypes.CDLL(None).malloc_trim(0)


def _forget_the_most() -> int:
    """Begin to watch; the bytes held now, or where the system cannot begin again, the most so far."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
        return _field("VmRSS")
    except OSError:
        return _most()


def _most() -> int:
    if STATUS.exists():
        return _field("VmHWM")
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _field(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
