"""A little of every fuzz target, the same cases each time; `make fuzz` runs them for as long as you like."""

from __future__ import annotations

import pytest
from forked_programs import in_forks
from fuzz import run
from fuzz.__main__ import _sanitized
from fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "subprocess", in_forks())
    report = run.run_target(name, seed=0, seconds=1.0)
    assert report.cases > 0
    assert not report.findings, "\n" + "\n".join(report.findings)


def test_without_a_sanitizer_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    assert _sanitized(["registered"], "none") == {}
    assert _sanitized(["registered"], "auto") == {}
    assert "without sanitizers: there is no compiler" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="--sanitize: there is no compiler"):
        _sanitized(["time-varying"], "all")
