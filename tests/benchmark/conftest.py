"""What tests of benchmarks share."""

from __future__ import annotations

import pytest
from benchmark_toys import fixed, missing

from statewise.benchmark.case import OURS, Case, Workload
from statewise.benchmark.workloads import WORKLOADS


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Workload:
    def toys(quick: bool) -> list[Case]:
        return [
            Case(
                name=name,
                setting="toy",
                sides={OURS: fixed(ours), "theirs": fixed(20), "absent": missing},
                length=length,
                rounds=2,
            )
            for name, ours, length in (("L=1, forward", 2, 1), ("L=4, forward", 8, 4))
        ]

    workload = Workload(name="toy", summary="toys", cases=toys)
    monkeypatch.setitem(WORKLOADS, "toy", workload)
    return workload
