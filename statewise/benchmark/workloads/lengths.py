"""What a token costs by the length of its sequence: the scan and SSD, with and without gradients."""

from __future__ import annotations

from dataclasses import replace

from statewise.benchmark.case import OURS, Case, Workload, case_name
from statewise.benchmark.workloads import scan, ssd


def cases(quick: bool) -> list[Case]:
    """Those of the two workloads that are ours alone; the lengths of each take turns."""
    found = []
    for kind, here in (("scan", scan), ("SSD", ssd)):
        by_name = {case.name: case for case in here.cases(quick)}
        for gradients in (False, True):
            group = case_name(kind, gradients)
            names = [case_name(f"L={length:,}", gradients) for length in here.LONG]
            found += [
                replace(by_name[name], name=f"{kind}, {name}", sides={OURS: by_name[name].sides[OURS]}, group=group)
                for name in names
            ]
    return found


WORKLOAD = Workload(
    name="lengths",
    summary="scan and SSD at 4,096 to 131,072 steps, by themselves: the cost of a token",
    cases=cases,
)
