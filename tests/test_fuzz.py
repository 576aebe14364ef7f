"""A little of every fuzz target, the same cases each time; `make fuzz` runs them for as long as you like."""

from __future__ import annotations

import pytest
from fuzz.run import run_target
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_found(name: str) -> None:
    report = run_target(name, seed=0, seconds=2.0)
    assert report.cases > 0
    assert not report.findings, "\n" + "\n".join(report.findings)
