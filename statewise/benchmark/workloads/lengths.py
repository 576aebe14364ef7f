"""What a token costs by the length of its sequence: the scan and SSD, with and without gradients."""

from __future__ import annotations

from dataclasses import replace

from statewise.benchmark.case import OURS, Case, Workload, case_name
from statewise.benchmark.workloads import scan, ssd


def cases(quick: bool) -> list[Case]:
    """Those of the two workloads that are ours alone."""
    found = []
    for kind, here in (("scan", scan), ("SSD", ssd)):
        long = {case_name(f"L={length:,}", gradients) for length in here.LONG for gradients in (False, True)}
        found += [
            replace(case, name=f"{kind}, {case.name}", sides={OURS: case.sides[OURS]})
            for case in here.cases(quick)
            if case.name in long
        ]
    return found


WORKLOAD = Workload(
    name="lengths",
    summary="scan and SSD at 4,096 to 131,072 steps, by themselves: the cost of a token",
    cases=cases,
)
