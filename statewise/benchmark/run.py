"""One workload measured: times in turns, ratios against ours, peak memory from fresh processes."""

from __future__ import annotations

from typing import Any

from statewise.benchmark.case import OURS, OURS_WITHOUT_C, Missing, Workload
from statewise.benchmark.memory import peak_memory
from statewise.benchmark.timing import Progress, Times, time_case
from statewise.benchmark.workloads import WORKLOADS
from statewise.errors import ConfigError
from statewise.reproduce.hardware import environment


def find_workload(name: str) -> Workload:
    """Errors: ConfigError naming those that there are."""
    if name not in WORKLOADS:
        names = ", ".join(("bars", "ceilings", "errors", *WORKLOADS))
        raise ConfigError(f"benchmark {name!r} is unknown; use one of {names}")
    return WORKLOADS[name]


def run_workload(
    workload: Workload,
    *,
    quick: bool = False,
    seconds: float = 2.0,
    memory: bool = True,
    progress: Progress = lambda line: None,
) -> dict[str, Any]:
    """Every case: of each side ``milliseconds`` (a median), ``ratio`` (how many times ours), where it is measured
    ``mebibytes`` above inputs, or ``why`` it has none of them; and the hardware.

    quick: small sizes, one call of each side: whether everything runs, and no figure to trust
    """
    cases, found = workload.cases(quick), []
    while cases:
        case = cases.pop(0)  # with its inputs it is let go when it is done
        times = time_case(case, seconds=0.0 if quick else seconds, progress=progress)
        del case
        peaks = _peaks(workload, times, quick, progress) if memory and times.name in workload.memory else {}
        found.append(_record(times, peaks))
    return {"workload": workload.name, "quick": quick, "cases": found, "hardware": environment()}


def _peaks(workload: Workload, times: Times, quick: bool, progress: Progress) -> dict[str, float]:
    peaks = {}
    for side in times.milliseconds:
        progress(f"memory of {times.name}: {side}")
        try:
            peaks[side] = peak_memory(workload.name, times.name, side, quick=quick).peak / 2**20
        except (Missing, RuntimeError, OSError):  # it ran here, but not alone: its time stays
            continue
    return peaks


def _record(times: Times, peaks: dict[str, float]) -> dict[str, Any]:
    reference = next((times.milliseconds[side] for side in (OURS, OURS_WITHOUT_C) if side in times.milliseconds), None)
    sides: dict[str, dict[str, Any]] = {}
    for side, milliseconds in times.milliseconds.items():
        sides[side] = {"milliseconds": milliseconds}
        if reference is not None:
            sides[side]["ratio"] = milliseconds / reference
        if side in peaks:
            sides[side]["mebibytes"] = peaks[side]
    sides |= {side: {"why": why} for side, why in times.missing.items()}
    return {"name": times.name, "setting": times.setting, "length": times.length, "sides": sides}
