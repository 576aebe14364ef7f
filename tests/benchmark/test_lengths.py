"""`statewise benchmark lengths`: the cost of a token of our side alone, and its picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from statewise import native
from statewise.benchmark.case import OURS
from statewise.benchmark.plot import _lines, plot_cost
from statewise.benchmark.run import run_workload
from statewise.benchmark.workloads import WORKLOADS, lengths, scan, ssd


@pytest.mark.skipif(not native.available(), reason=f"no C kernels: {native.why_not()}")
def test_every_long_case_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    cases = lengths.cases(False)
    assert len(cases) == 2 * (len(scan.LONG) + len(ssd.LONG))
    assert all([*case.sides] == [OURS] for case in cases)
    record = run_workload(WORKLOADS["lengths"], quick=True, memory=False)
    assert [*_lines(record["cases"])] == [
        "scan, forward",
        "scan, forward and backward",
        "SSD, forward",
        "SSD, forward and backward",
    ]
    plot_cost(record, tmp_path / "lengths.png")
    assert (tmp_path / "lengths.png").stat().st_size > 1000
