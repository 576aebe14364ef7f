"""The quick form of a reproduction, and its figures."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from statewise.reproduce import Outcome, reproduce, settings

PLOTS = find_spec("matplotlib") is not None


def quick(name: str, folder: Path, *assignments: str) -> Outcome:
    outcome = reproduce(name, folder, settings(name, quick=True, assignments=assignments), plots=PLOTS)
    assert outcome.exit_code == 0
    assert outcome.report is not None
    assert all((folder / plot).exists() for plot in outcome.record["plots"])  # type: ignore[index]
    return outcome


def figures(outcome: Outcome) -> dict[str, Any]:
    assert outcome.record is not None
    return outcome.record["figures"]
